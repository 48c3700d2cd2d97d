"""Gradients of gradients: what the first pass ignored is a constant for the second, and for the third."""

import math
from math import isfinite

import pytest
import torch
from hypothesis import assume, given, settings
from programs import WEIGHTS, Number, programs

from zero_or_nan import ignoring

properties = settings(deadline=None, derandomize=True, database=None, max_examples=1000)


def gradients(auto, program, order, dtype=torch.float64):
    """That of the weighted sum of the gradient before, and so on; None for a leaf that nothing leads back to."""
    leaves, loss = program.by_pytorch(dtype)
    weights = torch.tensor(WEIGHTS, dtype=dtype).reshape(2, -1)
    for _ in range(order - 1):
        assume(loss.requires_grad)
        found = auto.grad(loss, leaves, create_graph=True, allow_unused=True)
        loss = sum((w * g).sum() for w, g in zip(weights, found, strict=True) if g is not None)
    assume(isinstance(loss, torch.Tensor) and loss.requires_grad)
    return auto.grad(loss, leaves, allow_unused=True)


@pytest.mark.parametrize("order", [2, 3])
@properties
@given(program=programs())
def test_every_entry_is_what_floats_give_entry_by_entry(order, program):
    for ours, expected in zip(gradients(ignoring, program, order), program.numbers(order), strict=True):
        numbers = [0.0] * 4 if ours is None else ours.tolist()
        for o, e in zip(numbers, [Number(0) if e is None else e for e in expected], strict=True):
            assert isfinite(o) == isfinite(e.value)
            assert not isfinite(o) or math.isclose(o, e.value, rel_tol=1e-9, abs_tol=1e-9 * e.size)
