"""The kind of a NaN in a second derivative is decided by the exact second derivative, which float64 has or has not."""

import pytest
import torch
from origins import report_of, telling
from torch import tensor
from torch.autograd import grad


def derivative(function, x, order):
    """The derivative of the sum of a function, of this order."""
    y = function(x)
    for _ in range(order - 1):
        (y,) = grad(y.sum(), x, create_graph=True)
    (result,) = grad(y.sum(), x)
    return result


CASES = {
    "product of two weights of a softmax": (
        lambda x: torch.logaddexp(x / 2 + 1, -2 * x), [0.4, -60.0], 2, "overflow", "second derivative is 1.219e-64"
    ),
    "too large itself": (torch.log, [1.0, 1e-25], 2, "overflow", "second derivative is -1e50: float32 ends at"),
    "third derivative": (torch.log, [1.0, 1e-14], 3, "overflow", "third derivative is 2e42: float32 ends at"),
    "power of 0 with a slope": (lambda x: x**1.5, [1.0, 0.0], 2, "undefined", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_kind_is_that_of_the_exact_derivative(case):
    function, point, order, kind, exact = CASES[case]
    right = derivative(function, tensor(point, dtype=torch.float64, requires_grad=True), order)
    assert bool(right.isfinite().all()) is (kind == "overflow")
    (origin,) = report_of(lambda: derivative(function, tensor(point, requires_grad=True), order))
    assert (origin.kind, origin.phase) == (kind, "backward")
    assert exact in origin.exact and bool(exact) is bool(origin.exact)


def test_a_hessian_by_rows_keeps_the_calls_for_each_row():
    def program():
        x = tensor([0.4, -60.0], requires_grad=True)
        (slope,) = grad(torch.logaddexp(x / 2 + 1, -2 * x).sum(), x, create_graph=True)
        for each in slope:
            grad(each, x, retain_graph=True)

    # the first row ignores the second element: its true derivative is 0
    assert telling("kind")(report_of(program)) == ["contaminated", "overflow"]
