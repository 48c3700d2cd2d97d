"""Gradients next to those that they have to be: plain PyTorch's bits where it is finite, and the used part's alone."""

import warnings

import torch
from tensors import all_bits


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
