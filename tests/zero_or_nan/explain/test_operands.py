"""What a number was made of, as it is written: a formula with its result, then a remark."""

from math import inf, nan

import pytest
import torch
from origins import report_of
from tensors import leaf

from zero_or_nan import explain
from zero_or_nan.explain.births.arithmetic import SAID, number

WRITTEN = {
    "a product": (
        lambda: leaf([3e38, 1.0]) @ torch.tensor([[2.0], [1.0]]),
        "3e38 × 2 > 3.4e38, one of 2 products that are added",
    ),
    "products of opposite infinities": (
        lambda: leaf([9.8e20, 9.8e20]) @ torch.tensor([[-4.3e20], [4.3e20]]),
        "inf − inf = nan, in a sum of 2 products",
    ),
    "the product that has the sign of the sum": (
        lambda: leaf([300.0, 300.0]).half() @ torch.tensor([[-300.0], [600.0]]).half(),
        "300 × 600 > 65504, one of 2 products that are added",
    ),
    "a product that is added": (
        lambda: torch.addmm(torch.tensor([[3e38]]), leaf([1e38]), torch.tensor([[1.0]])),
        "the sum of 1 product and another number > 3.4e38",
    ),
    "outside of a domain, by the last digit": (lambda: leaf(1.0000001).acos(), "acos(1.0000001)"),
    "what a derivative divides": (
        lambda: (leaf(1.0, 2.0) / torch.tensor([0.0, 1.0]))[1:],
        "1 / 0 = inf; in backward 0 / 0",
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


def test_a_sum_of_finite_numbers_is_nan_if_its_parts_overflow():
    """In which order a processor adds up decides whether they do."""
    assert SAID["sum"]([torch.tensor([3e38, 3e38, -3e38, -3e38])], torch.tensor(nan), ()).startswith("inf − inf, in a")


def test_powers_of_ten_are_as_short_as_they_can_be():
    values = [1e6, 1e300, 1e-7, 1e-10, 1e10, -1e20]
    assert [number(value) for value in values] == ["1e6", "1e300", "1e-7", "1e-10", "1e10", "-1e20"]


@pytest.mark.parametrize("function, text", [
    (lambda a, b: a.add(b, alpha=-1e30), "1e10 + -1e30 × 1e20 < -3.4e38"),
    (lambda a, b: torch.rsub(b, a, alpha=1e30), "1e10 − 1e30 × 1e20 < -3.4e38"),
    (lambda a, b: torch._foreach_add([a], [b], alpha=1e30)[0], "1e10 + 1e30 × 1e20 > 3.4e38"),
])  # fmt: skip
def test_what_is_scaled_is_shown_with_its_scale(function, text):
    with explain() as report:
        function(torch.tensor([1.0, 1e10]).requires_grad_(), torch.tensor([0.0, 1e20])).sum().backward()
    assert [(origin.kind, origin.operands) for origin in report] == [("overflow", text)]
