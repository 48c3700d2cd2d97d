"""A figure shows the arithmetic of an element only if recomputing it gives the bits that the node passed on."""

import dataclasses
from math import inf, nan

import pytest
import torch
from tensors import leaf
from torch.nn import functional

from helpers.backward.arithmetic import arithmetic, moved
from helpers.backward.graph import record


def sent_by(function, loss, inputs, slot=0):
    """The first node of a function, and what it sent to one of its inputs."""
    gradient = torch.arange(loss.numel(), dtype=loss.dtype).reshape(loss.shape) - 0.5
    for step in record(loss, inputs, gradient):
        if step.function == function:
            return step, next(sent for sent in step.sends if sent.slot == slot)
    raise AssertionError(function)


MATRIX = [[1.0, nan], [2.0, 3.0], [0.25, -1.0]]
FORMULAS = [
    ("mul", 0, "grad × other", lambda a, b: a * b),
    ("mul", 1, "grad × self", lambda a, b: a * b),
    ("div", 0, "grad ÷ other", lambda a, b: a / b),
    ("div", 1, "−grad × ((self ÷ other) ÷ other)", lambda a, b: a / b),
    ("exp", 0, "grad × result", lambda a, b: a.exp()),
    ("reciprocal", 0, "−grad × (result × result)", lambda a, b: a.reciprocal()),
    ("sqrt", 0, "grad ÷ (2 × result)", lambda a, b: a.sqrt()),
    ("log", 0, "grad ÷ self", lambda a, b: a.log()),
    ("sigmoid", 0, "grad × (1 − result) × result", lambda a, b: a.sigmoid()),
    ("pow", 0, "grad × (2 × self)", lambda a, b: a**2),
    ("mm", 0, "grad @ mat2.T", lambda a, b: a.reshape(1, 3).mm(torch.tensor(MATRIX))),
    ("mm", 1, "self.T @ grad", lambda a, b: a.reshape(3, 1).mm(b.reshape(1, 3))),
    ("addmm", 0, "grad", lambda a, b: torch.addmm(a[:2], torch.ones(1, 3), torch.tensor(MATRIX))),
    ("addmm", 1, "grad @ mat2.T", lambda a, b: torch.addmm(a, a.reshape(3, 1), b.reshape(1, 3))),
    ("addmm", 2, "mat1.T @ grad", lambda a, b: torch.addmm(a, a.reshape(3, 1), b.reshape(1, 3))),
]


@pytest.mark.parametrize(("function", "slot", "formula", "compute"), FORMULAS)
def test_a_rule_gives_the_very_bits(function, slot, formula, compute):
    a, b = leaf(0.5, 2.0, -3.0), leaf(0.3, 0.0, 4.0)
    step, sent = sent_by(function, compute(a, b), {"a": a, "b": b} if slot or "b" in formula else {"a": a}, slot)
    made = arithmetic(step, sent)
    assert made is not None and made.formula == formula
    # No rule is believed if the node passed on something else, and be it the sign of a zero.
    value = sent.value["vanilla"]
    for data in (torch.full_like(value.data, 0.123), value.data.double(), value.data * torch.tensor(-1.0)):
        other = dataclasses.replace(sent, value={"vanilla": dataclasses.replace(value, data=data)})
        assert arithmetic(step, other) is None


MOVES = [
    ("add", 0, "grad", lambda a, b: a + b),
    ("add", 1, "grad", lambda a, b: a + b),
    ("sub", 1, "−grad", lambda a, b: a - b),
    ("add", 1, "", lambda a, b: torch.add(a, b, alpha=2)),
    ("neg", 0, "−grad", lambda a, b: -a),
    ("where", 1, "0 if condition else grad", lambda a, b: torch.where(a > 0, a, b)),
    ("masked_fill", 0, "0 if mask else grad", lambda a, b: a.masked_fill(a > 0, 1)),
    ("relu", 0, "grad if result > 0 else 0", lambda a, b: a.relu()),
    ("sum", 0, "grad, for every element", lambda a, b: a.sum()),
    ("nansum", 0, "grad × (not isnan(self))", lambda a, b: a.nansum()),
    ("index", 0, "grad where picked, else 0", lambda a, b: a[torch.tensor([2, 0, 2])]),
    ("slice", 0, "grad in the slice, else 0", lambda a, b: a[1:]),
    ("select", 0, "grad at index -1, else 0", lambda a, b: a[-1]),
    ("t", 0, "grad, transposed", lambda a, b: a.reshape(1, 3).t()),
    ("view", 0, "grad, in the input's shape", lambda a, b: a.view(3, 1)),
    ("cumsum", 0, "", lambda a, b: a.cumsum(0)),
]


@pytest.mark.parametrize(("function", "slot", "words", "compute"), MOVES)
def test_a_node_that_moves_its_cotangent_says_how(function, slot, words, compute):
    a, b = leaf(0.5, 2.0, -3.0), leaf(1.0, 1.0, 1.0)
    step, sent = sent_by(function, compute(a, b), {"a": a, "b": b} if slot else {"a": a}, slot)
    assert arithmetic(step, sent) is None and moved(step, slot) == words


@pytest.mark.parametrize(
    ("function", "slot", "compute"),
    [
        ("addmm", 2, lambda x: torch.addmm(x, x, x, alpha=2)),
        ("addmm", 0, lambda x: torch.addmm(x, x, x, beta=2)),
        ("cumsum", 0, lambda x: x.cumsum(0)),
        ("pow", 0, lambda x: x**3),
        ("pow", 0, lambda x: 2.0**x),
    ],
)
@pytest.mark.parametrize("scale", [0, 1])  # if everything is 0, a wrong formula gives the same bits
def test_what_no_rule_says_is_not_made_up(function, slot, compute, scale):
    x = torch.tensor([[2.0]], requires_grad=True)
    y = compute(x)
    steps = record(y, {"x": x}, scale * torch.ones_like(y))
    step, sent = next((step, sent) for step in steps for sent in step.sends if sent.slot == slot)
    assert step.function == function and arithmetic(step, sent) is None and moved(step, slot) == ""


def test_of_a_sum_of_products_the_first_that_is_nan_is_told():
    weight = torch.tensor([[0.5, 1.0]], requires_grad=True)
    rows = torch.tensor([[1.0, 2.0], [3.0, nan], [inf, nan]])
    steps = record(functional.linear(rows, weight)[:1].sum(), {"weight": weight})
    step = next(each for each in steps if each.function == "mm")
    made = arithmetic(step, step.sends[0])
    assert made.formula == "self.T @ grad"
    assert made.births() == {0: "0 × inf = NaN", 1: "0 × NaN = NaN"}
    mask = step.arrives[0]["ignoring"].mask
    assert [made.ignored(at, mask) for at in (0, 1)] == ["-- × inf", "-- × NaN"]
    assert made.ignored(0, torch.ones_like(mask)) == ""
