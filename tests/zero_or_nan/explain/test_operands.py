"""What a number was made of, as it is written: a formula with its result, then a remark."""

import pytest
import torch
import torch.nn.functional as F
from origins import report_of
from tensors import leaf

from zero_or_nan import explain
from zero_or_nan.explain.births.arithmetic import number

inf, nan = float("inf"), float("nan")


WRITTEN = {
    "a product": (
        lambda: leaf([3e38, 1.0]) @ torch.tensor([[2.0], [1.0]]),
        "3e38 × 2 > 3.4e38, one of 2 products that are added",
    ),
    "mean": (lambda: leaf(1.0)[:0].mean(), "0 / 0 = nan, the mean of no elements"),
    "a large sum": (lambda: leaf(3e38, 3e38).sum(), "the sum of 2 elements of up to 3e38 > 3.4e38"),
    "softmax": (
        lambda: leaf([-inf, -inf, -inf]).softmax(-1),
        "inf − inf = nan: all 3 elements of the row are -inf",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_how_it_is_written(name):
    make, expected = WRITTEN[name]
    assert report_of(lambda: make().sum().backward()).origins[0].operands == expected


def test_where_it_came_in_stands_before_what_backward_made_of_it():
    weight, rows = leaf([1.0], [1.0]), torch.tensor([[1.0, 2.0], [nan, 1.0]])
    (origin,) = report_of(lambda: (rows @ weight)[:1].sum().backward())
    assert origin.operands == "nan in rows; in backward nan × 0 = nan, one of 2 products that are added"


def test_a_row_that_cross_entropy_is_to_ignore():
    scores = leaf([1.0, 2.0, 3.0], [-inf, -inf, -inf])
    with explain() as report:
        losses = F.cross_entropy(scores.softmax(-1), torch.tensor([0, 1]), reduction="none")
        losses[:1].sum().backward()
    (origin,) = report
    formula = "inf − inf = nan: all 3 elements of the row are -inf"
    assert origin.operands == f"{formula}; in backward 0 − exp(nan) × 0 = nan"


def test_powers_of_ten_are_as_short_as_they_can_be():
    values = [1e6, 1e300, 1e-7, 1e-10, 1e10, -1e20]
    assert [number(value) for value in values] == ["1e6", "1e300", "1e-7", "1e-10", "1e10", "-1e20"]


@pytest.mark.parametrize(
    ("shape", "label", "weight", "said"),
    [((5, 3), -100, None, "no elements"), ((2, 3, 4, 4), 1, [1.0, 0.0, 1.0], "are 0")],
)
def test_a_mean_over_no_target_is_0_by_0(shape, label, weight, said):
    logits = torch.zeros(shape, requires_grad=True)
    target = torch.full((shape[0], *shape[2:]), label)
    report = report_of(lambda: F.cross_entropy(logits, target, weight and torch.tensor(weight)).backward())
    assert report.origins[0].operands.startswith("0 / 0 = nan") and said in report.origins[0].operands


@pytest.mark.parametrize("function, text", [
    (lambda a, b: a.add(b, alpha=-1e30), "1e10 + -1e30 × 1e20 < -3.4e38"),
    (lambda a, b: torch.rsub(b, a, alpha=1e30), "1e10 − 1e30 × 1e20 < -3.4e38"),
    (lambda a, b: torch._foreach_add([a], [b], alpha=1e30)[0], "1e10 + 1e30 × 1e20 > 3.4e38"),
])  # fmt: skip
def test_what_is_scaled_is_shown_with_its_scale(function, text):
    with explain() as report:
        function(torch.tensor([1.0, 1e10]).requires_grad_(), torch.tensor([0.0, 1e20])).sum().backward()
    assert [(origin.kind, origin.operands) for origin in report] == [("overflow", text)]


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: torch.linalg.inv(torch.diag(x)), "overflow"),  # 1 / 1e-30, and the derivative is -1e60
        (lambda x: torch.linalg.svd(torch.diag(1 + 0 * x)).U, "undefined"),
    ],
)
def test_whether_the_derivative_of_a_matrix_exists(function, kind):
    report = report_of(lambda: function(leaf(1e-30, 0.5)).sum().backward())
    assert [(origin.kind, origin.phase) for origin in report] == [(kind, "backward")]
