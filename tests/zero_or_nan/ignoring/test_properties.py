"""Random programs: the gradient is what elements give one by one, and plain PyTorch's where that is finite."""

import math
from math import isfinite, isnan
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from programs import Program, programs
from sample import examples

from zero_or_nan import ignoring
from zero_or_nan.functions.families import products
from zero_or_nan.ignoring.engine import passes, plan, precheck
from zero_or_nan.masks import mask as masks

properties = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def same(ours, expected):
    """Within rounding, and of the same kind: NaN, an infinity, finite."""
    if isnan(expected) or isnan(ours):
        return isnan(expected) and isnan(ours)
    return math.isclose(ours, expected, rel_tol=1e-7, abs_tol=1e-300)


def gradients(auto, program, dtype=torch.float64, **options):
    leaves, loss = program.by_pytorch(dtype)
    assume(loss.requires_grad)
    return auto.grad(loss, leaves, allow_unused=True, **options)


@pytest.fixture(params=["as it is", "by rules alone", "as if large"], autouse=True)
def way(request, monkeypatch):
    """With nodes that are left to plain PyTorch, with all followed by operator, and by what pays for large tensors."""
    if request.param == "by rules alone":
        monkeypatch.setattr(plan, "SKIPS", False)
        monkeypatch.setattr(plan, "USES_TRANSFERS", False)
    elif request.param == "as if large":
        for module, name in [(masks, "MANY"), (precheck, "WORTH_REMEMBERING")]:
            monkeypatch.setattr(module, name, 2)
        for module, name in [(products, "CHEAP"), (precheck, "SMALL")]:
            monkeypatch.setattr(module, name, 0)
        monkeypatch.setattr(products, "MOST", 1)


AT_A_BOUND = Program(
    leaves=[[-1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, -1.0]],
    steps=[("matmul", [1, 0], None), ("clamp", [2], None)],
    last=("finite ones", None),
)


@properties
@given(programs())
@example(AT_A_BOUND)
def test_every_element_is_what_elements_give_one_by_one(program):
    for ours, expected in zip(gradients(ignoring, program), program.by_elements(), strict=True):
        if ours is None:
            assert expected == [None] * 4
        else:
            for o, e in zip(ours.tolist(), [0.0 if e is None else e for e in expected], strict=True):
                assert same(o, e)


@properties
@given(programs())
def test_the_mask_says_what_the_loss_leads_back_to(program):
    for ours, expected in zip(gradients(ignoring, program, ignored="masked"), program.by_elements(), strict=True):
        if ours is not None:
            assert ours.get_mask().tolist() == [e is not None for e in expected]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@properties
@given(program=programs())
def test_the_bits_are_plain_pytorchs_where_it_is_finite(dtype, program):
    theirs = gradients(torch.autograd, program, dtype)
    with mock.patch.object(passes, "is_safe", lambda *_: False):
        ours = gradients(ignoring, program, dtype)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        for o, t in zip(a.tolist(), b.tolist(), strict=True) if a is not None else ():
            assert not isfinite(t) or o.hex() == t.hex()
