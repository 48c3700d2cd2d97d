"""Gradients next to those that they have to be: plain PyTorch's bits where it is finite, and the used part's alone."""

import warnings

import torch
from tensors import all_bits

from zero_or_nan import ignoring


def numbers(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed + 17 * len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


def assert_close(found, right, rtol=1e-4, atol=1e-6):
    """Close to the right gradients, and undefined where they are."""
    for ours, expected in zip(found, right, strict=True):
        torch.testing.assert_close(ours.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)


def assert_right(ours, plain, right, rtol=1e-4, atol=1e-5):
    """The same, with the bits of plain PyTorch wherever it is finite."""
    for mine, theirs in zip(ours, plain, strict=True):
        kept = theirs.isfinite()
        assert torch.equal(all_bits(mine[kept]), all_bits(theirs[kept]))
    assert_close(ours, right, rtol, atol)


def gradients(method, function, tensors, used=..., dtype=None):
    """By each tensor, of a weighted sum of the used elements of a function's result."""
    leaves = [tensor.to(dtype or tensor.dtype, copy=True).requires_grad_() for tensor in tensors]
    output = function(*leaves)[used]
    parts = [output.real, output.imag] if output.is_complex() else [output]
    weights = torch.linspace(0.5, 1.5, output.numel(), dtype=parts[0].dtype).reshape(output.shape)
    return method(sum((part * weights).sum() for part in parts), leaves)


def assert_fixed(function, poisoned, clean, used, rtol=1e-4, atol=1e-5, right=None):
    """What a function makes of poison that is not used doesn't matter: next to clean tensors, in float64.

    Args:
        right: the same function in other words, for the clean tensors.

    Returns:
        The gradients of plain PyTorch.
    """
    ours, plain = (gradients(auto.grad, function, poisoned, used) for auto in (ignoring, torch.autograd))
    expected = gradients(torch.autograd.grad, right or function, clean, used, torch.float64)
    assert_right(ours, plain, expected, rtol, atol)
    return plain


def of_each_sequence(net, x, states, rows, lengths, loss):
    """The gradients of a recurrent net's weights, its batch and first states, each sequence by itself in float64.

    Args:
        states: the first states, or none.
        rows, lengths: the sequences that are used, and how long each sequence is.
        loss: the loss of a sequence, from its outputs and a list of its last states.
    """
    net.double().zero_grad()
    given = [t.detach().double().requires_grad_() for t in (x, *states)]
    for row in rows:
        first = tuple(t[:, row : row + 1].contiguous() for t in given[1:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # oneDNN has no projection
            batch = given[0][row : row + 1, : lengths[row]]
            out, last = net(batch, first[0] if len(first) == 1 else first or None)
        loss(out[0], [state[:, 0] for state in (last if isinstance(last, tuple) else (last,))]).backward()
    return [p.grad for p in net.parameters()] + [t.grad for t in given]
