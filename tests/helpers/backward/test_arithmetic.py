"""A figure shows the arithmetic of an element only if recomputing it gives the bits that the node passed on."""

import dataclasses
from math import inf, nan

import pytest
import torch
from tensors import leaf
from torch.nn import functional

from helpers.backward.arithmetic import RULES, arithmetic
from helpers.backward.graph import record
from helpers.entries import outcome


def first(loss, inputs=None, function=None, slot=0, **options):
    """How the first node of that function computed what it sent."""
    for step in record(loss, inputs, **options):
        if function in (None, step.function):
            return step, next(sent for sent in step.sends if sent.slot == slot)
    raise AssertionError(function)


X = [0.5, 2.0, -3.0]
MATRIX = [[1.0, nan], [2.0, 3.0], [0.25, -1.0]]


def overwritten(x):
    y = x * 1
    y[torch.tensor([True, False, False])] = 0
    return y


def written_slice(x):
    y = x * 1
    y[:2] = 0
    return y


CASES = {
    "mul": ("grad × other", lambda x: x * torch.tensor([1.0, nan, 2.0])),
    "div": ("grad ÷ other", lambda x: x / torch.tensor([1.0, 0.0, 2.0])),
    "exp": ("grad × result", lambda x: x.exp()),
    "reciprocal": ("−grad × (result × result)", lambda x: x.reciprocal()),
    "sqrt": ("grad ÷ (2 × result)", lambda x: x.sqrt()),
    "rsqrt": ("−0.5 × grad × result³", lambda x: x.rsqrt()),
    "log": ("grad ÷ self", lambda x: x.log()),
    "sigmoid": ("grad × (1 − result) × result", lambda x: x.sigmoid()),
    "tanh": ("grad × (1 − result × result)", lambda x: x.tanh()),
    "pow": ("grad × (3 × self^2)", lambda x: x**3),
    "add": ("grad", lambda x: x + 1),
    "sub": ("grad", lambda x: x - 1),
    "neg": ("−grad", lambda x: -x),
    "abs": ("grad × sign(self)", lambda x: x.abs()),
    "linalg_vector_norm": ("grad × (self ÷ norm)", lambda x: x.norm()),
    "where": ("grad if condition else 0", lambda x: torch.where(torch.tensor([True, False, True]), x, 1)),
    "masked_fill": ("0 if mask else grad", lambda x: x.masked_fill(torch.tensor([True, False, True]), 1)),
    "clamp": ("grad if inside the bounds else 0", lambda x: x.clamp(-1, 1)),
    "clamp_min": ("grad if inside the bounds else 0", lambda x: x.clamp_min(0)),
    "clamp_max": ("grad if inside the bounds else 0", lambda x: x.clamp_max(0)),
    "relu": ("grad if result > 0 else 0", lambda x: x.relu()),
    "sum": ("grad, for every element", lambda x: x.sum()),
    "mean": ("grad ÷ 3", lambda x: x.mean()),
    "nansum": ("grad if not isnan(self) else 0", lambda x: (x * torch.tensor([1.0, nan, 2.0])).nansum()),
    "index": ("grad where picked, else 0", lambda x: x[torch.tensor([2, 0, 2])]),
    "index_put": ("grad, 0 where overwritten", overwritten),
    "copy_slices": ("grad, 0 where overwritten", written_slice),
    "slice": ("grad in the slice, else 0", lambda x: x[1:]),
    "select": ("grad at index 1, else 0", lambda x: x[1]),
    "t": ("grad, transposed", lambda x: x.reshape(1, 3).t()),
    "transpose": ("grad, transposed", lambda x: x.reshape(1, 3).transpose(0, 1)),
    "view": ("grad, in the input's shape", lambda x: x.view(3, 1)),
    "unsafe_view": ("grad, in the input's shape", lambda x: torch.ops.aten._unsafe_view(x, [3, 1])),
    "reshape_alias": ("grad, in the input's shape", lambda x: torch.ops.aten._reshape_alias(x, [3, 1], [1, 1])),
    "squeeze": ("grad, in the input's shape", lambda x: x[:1].squeeze(0)),
    "unsqueeze": ("grad, in the input's shape", lambda x: x.unsqueeze(0)),
    "clone": ("grad, in the input's shape", lambda x: x.clone()),
    "alias": ("grad, in the input's shape", lambda x: torch.ops.aten.alias(x)),
    "expand": ("grad, summed over the copies", lambda x: x.expand(2, 3)),
    "mm": ("grad @ mat2.T", lambda x: x.reshape(1, 3).mm(torch.tensor(MATRIX))),
    "addmm": ("grad", lambda x: torch.addmm(x[:2], torch.ones(1, 3), torch.tensor(MATRIX))),
    "mv": ("self.T @ grad", lambda x: torch.tensor(MATRIX).t().mv(x)),
}


@pytest.mark.parametrize(
    "function", sorted(set(RULES) - {"linear"})
)  # `linear` is a node of its own on some devices alone
def test_a_rule_gives_the_very_bits(function):
    formula, compute = CASES[function]
    x = leaf(*X)
    y = compute(x)
    gradient = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) - 0.5
    node = function if function != "reshape_alias" else "_reshape_alias"
    steps = record(y, {"x": x}, gradient)
    found = [step for step in steps if step.function in (function, node)]
    if not found:
        pytest.skip(f"this PyTorch has no node of {function}: {[step.function for step in steps]}")
    sent = found[0].sends[0]
    made = arithmetic(found[0], sent)
    assert made is not None, (found[0].node, found[0].saved)
    assert made.formula == formula
    value = sent.value["vanilla"]
    # No rule is believed if the node passed on something else, and be it the sign of a zero.
    for data in (torch.full_like(value.data, 0.123), value.data.double(), value.data * torch.tensor(-1.0)):
        other = dataclasses.replace(sent, value={"vanilla": dataclasses.replace(value, data=data)})
        assert arithmetic(found[0], other) is None or function in ("add", "sub")  # their rule also knows the negative


@pytest.mark.parametrize(
    ("compute", "slot", "formula"),
    [
        (lambda a, b: a * b, 1, "grad × self"),
        (lambda a, b: a / b, 1, "−grad × ((self ÷ other) ÷ other)"),
        (lambda a, b: a - b, 1, "−grad"),
        (lambda a, b: a + b, 1, "grad"),
        (lambda a, b: torch.where(torch.tensor([True, False]), a, b), 1, "0 if condition else grad"),
        (lambda a, b: a.reshape(2, 1).mm(b.reshape(1, 2)), 1, "self.T @ grad"),
        (lambda a, b: torch.addmm(a, a.reshape(2, 1), b.reshape(1, 2)), 1, "grad @ mat2.T"),
        (lambda a, b: torch.addmm(a, a.reshape(2, 1), b.reshape(1, 2)), 2, "mat1.T @ grad"),
        (lambda a, b: a.reshape(1, 2).mv(b), 0, "grad @ vec"),
        (lambda a, b: functional.linear(a.reshape(1, 2), b.reshape(1, 2)), 1, "self.T @ grad"),
    ],
)
def test_the_other_inputs_have_formulas_of_their_own(compute, slot, formula):
    a, b = leaf(1.5, -2.0), leaf(0.3, 4.0)
    y = compute(a, b)
    step, sent = first(y, {"a": a, "b": b}, slot=slot, gradient=torch.ones_like(y))
    made = arithmetic(step, sent)
    assert made is not None and made.formula == formula


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: torch.add(x, x, alpha=2),  # the second slot
        lambda x: torch.addmm(x, x, x, alpha=2),
        lambda x: torch.addmm(x, x, x, beta=2, alpha=2),
        lambda x: x.norm(dim=0).sum(),
        lambda x: x.cumsum(0).sum(),
        lambda x: 2.0**x,
    ],
)
def test_what_no_rule_says_is_not_made_up(compute):
    x = torch.tensor([[0.5, 1.0], [2.0, -1.0]], requires_grad=True)
    y = compute(x)
    for step in record(y, {"x": x}, torch.ones_like(y)):
        if step.function in ("add", "addmm", "linalg_vector_norm", "cumsum", "pow"):
            assert arithmetic(step, step.sends[-1]) is None


@pytest.mark.parametrize(("dim", "keepdim"), [(0, False), ([-1, 0], True)])
@pytest.mark.parametrize("function", ["sum", "mean", "nansum"])
def test_reductions_along_dimensions(function, dim, keepdim):
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
    y = getattr(x, function)(dim=dim, keepdim=keepdim)
    step, sent = first(y, {"x": x}, gradient=torch.arange(1.0, y.numel() + 1).reshape(y.shape))
    made = arithmetic(step, sent)
    assert made is not None and outcome(made.value).texts() == sent.value["vanilla"].texts()
    assert function != "mean" or made.formula == f"grad ÷ {6 // y.numel()}"


def test_of_a_sum_of_products_the_first_that_is_nan_is_told():
    weight = torch.tensor([[0.5, 1.0]], requires_grad=True)
    rows = torch.tensor([[1.0, 2.0], [3.0, nan], [inf, nan]])
    step, sent = first(functional.linear(rows, weight)[:1].sum(), {"weight": weight}, "mm", slot=1)
    made = arithmetic(step, sent)
    assert made.formula == "self.T @ grad" and not made.entrywise
    assert dict(made.births()) == {0: "0 × inf = NaN", 1: "0 × NaN = NaN"}
    mask = step.arrives[0]["ignoring"].mask
    assert [made.ignored(at, mask) for at in (0, 1)] == ["-- × inf", "-- × NaN"]
    assert made.ignored(0, torch.ones_like(mask)) == ""
