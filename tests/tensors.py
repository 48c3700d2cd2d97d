"""The tensors of many tests, and what tells two of them apart."""

import torch


def leaf(*values, **options):
    return torch.tensor(values, requires_grad=True, **options)


def guard(x):
    """A selection whose plain gradient is NaN where exp overflows."""
    return torch.where(x < 50, x.exp(), torch.zeros_like(x))


def bits(tensor):
    """Each number in a form that tells its bits: 0 is not -0. Every NaN is the same."""
    return ["nan" if x != x else float(x).hex() for x in tensor.flatten().tolist()]


def all_bits(tensor):
    """The numbers as integers of their size, which tell also one NaN from another."""
    flat = torch.view_as_real(tensor.contiguous()) if tensor.is_complex() else tensor.contiguous()
    return flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
