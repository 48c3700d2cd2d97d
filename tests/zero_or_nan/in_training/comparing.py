"""A training with bad rows among the good ones has to go as in plain PyTorch on the good rows alone.

What differentiates is an argument called `ignoring`, so that a training runs the lines that a user writes.
"""

import inspect
import math
import warnings
from functools import partial, wraps

import pytest
import torch
from torch import Tensor, nn

from zero_or_nan import ignoring

GOOD = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
STEPS = 3


def among_good(*bad):
    """In each third of the rows are two good ones, as they are in `GOOD`, and a bad one."""
    return torch.cat([GOOD.view(3, 2, 4), torch.tensor(bad).view(3, 1, 1).expand(3, 1, 4)], 1).view(9, 4)


BAD = among_good(math.nan, math.inf, 3e38)
FINITE = among_good(11.0, -12.0, 13.0)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def is_used(rows):
    return (rows.abs() < 10).all(1)


def loss_of(model, rows):
    """Of the good rows alone, though the model sees them all."""
    return torch.where(is_used(rows)[:, None], model(rows).square(), 0.0).sum()


def steps(model):
    """Training steps, each with new gradients at its beginning, and with the optimizer's step at its end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        yield
        optimizer.step()


def state(model, loss):
    """What training gave: the last loss, the gradients, the parameters."""
    parameters = list(model.parameters())
    return [loss.detach(), *(p.grad for p in parameters if p.grad is not None), *(p.detach() for p in parameters)]


def is_finite(tensors):
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def compare(train, plain_raises=None, **tolerance):
    """Train with rows that are bad, finite but ignored, and good, by plain PyTorch and by ours.

    Args:
        train: called with `torch.autograd` or `ignoring`, and the rows; gives the tensors to compare.
        plain_raises: what plain PyTorch says of the bad rows, where its gradients are not merely contaminated.
        tolerance: rtol and atol.
    """
    if plain_raises is None:
        assert not is_finite(train(torch.autograd, BAD))
    else:
        with pytest.raises(RuntimeError, match=plain_raises):
            train(torch.autograd, BAD)
    expected = same_bits(train, GOOD)
    same_bits(train, FINITE)
    tolerance = {"rtol": 1e-5, "atol": 1e-6, **tolerance}
    torch.testing.assert_close(_without_a_warning(train, BAD), expected, **tolerance)


def compared(**options):
    """A test that is a training: `compare` gives it `ignoring` and the rows, and pytest all other arguments."""

    def made(train):
        @wraps(train)
        def test(**given):
            compare(partial(train, **given), **options)

        test.__signature__ = inspect.Signature([*inspect.signature(train).parameters.values()][2:])
        return test

    return made


def same_bits(train, rows):
    """What plain PyTorch gives, and ours too."""
    expected = train(torch.autograd, rows)
    assert is_finite(expected) and all(bool(tensor.any()) for tensor in expected)
    assert all(map(torch.equal, _without_a_warning(train, rows), expected))
    return expected


def _without_a_warning(train, rows):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="ignoring")
        tensors = train(ignoring, rows)
    assert {type(tensor) for tensor in tensors} == {Tensor}
    return tensors
