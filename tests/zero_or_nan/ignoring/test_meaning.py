"""What is ignored and what is not: each idea by its smallest example, judged by what the loss says."""

import math

import pytest
import torch
from tensors import bits
from torch import Tensor

from zero_or_nan import ignoring

nan, inf = math.nan, math.inf


def gradient(loss, *values, like=torch.float32):
    x = torch.tensor(values, dtype=like, requires_grad=True)
    (result,) = ignoring.grad(loss(x), x)
    assert type(result) is Tensor
    return result


def plain(loss, *values, like=torch.float32):
    x = torch.tensor(values, dtype=like, requires_grad=True)
    return torch.autograd.grad(loss(x), x)[0]


# The public cases.

DIVISOR, COUNT = torch.tensor([0.0, 2.0]), torch.tensor([2, 0])


def assigned_over(x):
    y = x / DIVISOR
    y[DIVISOR == 0] = 0
    return y


CASES = {
    "where over exp": (lambda x: torch.where(x < 50, x.exp(), 0.0), [0.0, 100.0], [1.0, 0.0]),
    "where over a count of 0": (lambda x: torch.where(COUNT > 0, x / COUNT, 0.0), [3.0, 0.0], [0.5, 0.0]),
    "nansum of x*x/x": (lambda x: (x * x / x).nansum(), [1.0, 0.0], [1.0, 0.0]),
    "nanmean": (lambda x: x.log().nanmean(), [1.0, -1.0], [1.0, 0.0]),
    "a division by zero assigned over": (assigned_over, [1.0, 1.0], [0.0, 0.5]),
    "masked_fill, then a slice": (
        lambda x: x.exp().masked_fill(torch.tensor([True, False, False]), 0)[:2],
        [100.0, 1.0, 100.0], [0.0, math.e, 0.0],
    ),
    "dangers in a row": (
        lambda x: torch.where(x > 0, (1 / x.sqrt()).log().exp().sin(), 0.0), [4.0, 0.0], [-math.cos(0.5) / 16, 0.0]
    ),
    "an inner selection alone": (
        lambda x: torch.where(x > 0, (x + torch.where(x > 0, 0.0, nan)).log(), 0.0), [2.0, -1.0], [0.5, 0.0]
    ),
    "what is ignored, through a derivative of 0": (
        lambda x: torch.where(x < 50, x.exp().floor() + x, 0.0), [1.0, 100.0], [1.0, 0.0]
    ),
    "one use that ignores and one that does not": (
        lambda x: torch.where(x < 50, x.exp(), 0.0) + 3 * x, [0.0, 100.0], [4.0, 3.0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_loss_has_the_gradient_of_what_it_uses(name):
    loss, values, expected = CASES[name]
    assert gradient(lambda x: loss(x).sum(), *values).tolist() == pytest.approx(expected)


# A zero that was computed is a number.


BOOL = torch.tensor([True, False])


@pytest.mark.parametrize("zero", [
    lambda y: y * 0, lambda y: y * BOOL, lambda y: BOOL.int() * y, lambda y: y - y, lambda y: y @ torch.zeros(2, 1),
    lambda y: torch.tensor([0.0, -inf]).softmax(0) * y,
])  # fmt: skip
def test_a_computed_zero_keeps_the_nan_of_plain_pytorch(zero):
    loss = lambda x: zero(x.sqrt()).sum()  # noqa: E731
    ours, theirs = gradient(loss, 4.0, 0.0), plain(loss, 4.0, 0.0)
    assert bits(ours) == bits(theirs) and ours[1].isnan()


def test_ignored_only_if_all_that_went_in_is():
    x = torch.tensor([1.0, 100.0, 100.0], requires_grad=True)
    total = torch.where(x < 50, x.exp(), 0.0).sum()
    (result,) = ignoring.grad(total + x[1] * 0, x, ignored="masked")
    assert result.get_mask().tolist() == [True, True, False]
    assert result.get_data().tolist() == pytest.approx([math.e, 0.0, 0.0])


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_of_a_softmax_those_count_that_share_an_entrys_sum(function, dim, each_way):
    x = (1000 * torch.arange(6.0)).reshape(2, 3).requires_grad_()  # most weights are 0, and so are most gradients
    (result,) = ignoring.grad(function(x, dim)[0, 1], x, ignored="masked")
    fibre = torch.zeros(2, 3, dtype=torch.bool)
    fibre.select(1 - dim % 2, 1 if dim == 0 else 0).fill_(True)
    assert result.get_mask().tolist() == fibre.tolist()
