"""If fixing a contaminated origin is not enough, the report names the origin behind it, which its NaN hides."""

import torch
from origins import told
from tensors import leaf

from zero_or_nan import explain
from zero_or_nan.explain.report.narration import BEHIND


def lengths_and_directions(length):
    """Directions under a where, and the lengths themselves: 0 / 0, and behind it the slope of the length."""
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    n = length(x)
    directions = torch.where(n[:, None] > 0, x / n[:, None], 0)
    return x, directions[:, 0].sum() + n.sum()


def by_hand(x):
    return x.square().sum(-1).sqrt()


def test_a_slope_behind_a_division():
    with explain() as report:
        x, loss = lengths_and_directions(by_hand)
        loss.backward()
    assert told(report) == [("contaminated", "forward", "div"), ("undefined", "backward", "sqrt")]
    division, root = report
    assert division.fixed is False and "fix the other origins" in division.remedy
    assert root.source == "return x.square().sum(-1).sqrt()" and root.reached == ["x"] and root.entries == [(0,)]
    assert root.operands == "inf, the derivative of sqrt at 0"
    assert report.notes == [BEHIND.format("sqrt", root.line)]


def test_a_function_that_only_passes_a_nan_on_is_not_behind():
    """The root of the whole loss is no step of the shadow, because nothing is ignored there."""
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    with explain() as report:
        n = by_hand(x)[:, None]
        total = torch.where(n > 0, x / n, 0).sum()
        (total - total.detach()).sqrt().backward()
    assert {origin.operator for origin in report} == {"div", "sqrt"} and not report.notes


def test_a_product_that_overflows_behind_it_is_not_named():
    """Its factors are finite, but not their product in the pass of `ignoring`. The remedy promises no gradient."""
    x = leaf(0.0, 0.0)
    with explain() as report:
        n = x * 1e30
        (torch.where(n > 0, x / n, 0) + n * 1e30).sum().backward()
    (origin,) = report
    assert (origin.operator, origin.fixed) == ("div", False) and "does not fix it here" in origin.remedy
