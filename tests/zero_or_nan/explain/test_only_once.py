"""A backward in Python that can run only once runs once, and what is not found out for that is not told."""

import pytest
import torch
from origins import report_of
from own_function import exponential

from zero_or_nan import explain, ignoring


class Frees(torch.autograd.Function):
    """exp, which lets go of what it kept."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.exp()
        return ctx.kept.clone()

    @staticmethod
    def backward(ctx, gradient):
        kept = ctx.kept
        del ctx.kept
        return gradient * kept


class Writes(torch.autograd.Function):
    """exp, which writes its gradient over what it saved, as kernels do that save memory."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result.clone())
        return result

    @staticmethod
    def backward(ctx, gradient):
        (kept,) = ctx.saved_tensors
        kept.data.mul_(gradient)
        return kept


@pytest.fixture(params=[Frees, Writes])
def function(request):
    return request.param


def step(function, last):
    x = torch.tensor([0.5, last], requires_grad=True)
    (torch.where(x < 50, function.apply(x), torch.zeros(2)) * torch.tensor([3.0, 1.0])).sum().backward()
    return x.grad.tolist()


def test_the_gradient_is_that_of_plain_pytorch_and_nobody_says_what_he_does_not_know(function):
    report = report_of(lambda: step(function, 1.0))
    assert report.ok and not report.notes
    plain = step(function, 100.0)
    with explain() as report:
        watched = step(function, 100.0)
    assert str(plain) == str(watched) and "nan" in str(plain)
    (origin,) = report
    assert not origin.is_sure and origin.fixed is None and origin.kind == "overflow"
    assert "if the loss uses this element, its exact value is 2.68812e43" in str(origin)
    assert any("may allow only one pass" in note for note in report.notes)


def test_one_that_is_recorded_may_run_twice_and_is_told_apart():
    Exp = exponential()
    ignoring.function(Exp)
    report = report_of(lambda: step(Exp, 100.0))
    (origin,) = report
    assert origin.is_sure and (origin.kind, origin.fixed) == ("contaminated", True) and not report.notes
