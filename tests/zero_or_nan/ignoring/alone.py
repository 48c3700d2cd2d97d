"""Gradients next to those that they have to be: plain PyTorch's bits where it is finite, and the used part's alone."""

import torch
from tensors import all_bits


def numbers(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed + 17 * len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


def assert_right(ours, plain, right, rtol=1e-4, atol=1e-5):
    """The bits of plain PyTorch wherever it is finite; close to the right gradients, and undefined where they are."""
    for mine, theirs, expected in zip(ours, plain, right, strict=True):
        kept = theirs.isfinite()
        assert torch.equal(all_bits(mine[kept]), all_bits(theirs[kept]))
        torch.testing.assert_close(mine.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)
