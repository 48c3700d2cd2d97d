"""Matrix products of which the loss uses some rows, next to the product of those rows alone in float64."""

from math import inf, nan

import pytest
import torch
from alone import assert_fixed

from zero_or_nan import ignoring
from zero_or_nan.functions.families import products

POISONS = {
    "whole rows": lambda x, used: x.masked_fill(~used[:, None], nan),
    "rows whose sums overflow together": lambda x, used: x.masked_fill(~used[:, None], 3e37),
    "one row": lambda x, used: _at(x, (~used).nonzero()[0], slice(None), nan),
    "an entry": lambda x, used: _at(x, (~used).nonzero()[-1], 2, inf),
    "an element, then a row": lambda x, used: _at(
        _at(x, (~used).nonzero()[0], 1, nan), (~used).nonzero()[-1], slice(None), nan
    ),
    "one that is used": lambda x, used: _at(x.masked_fill(~used[:, None], nan), used.nonzero()[:1, 0], 3, inf),
}

PRODUCTS = {
    "linear": (torch.nn.functional.linear, lambda w: w),
    "addmm, scaled": (lambda x, w: torch.addmm(w[:, 0], x, w.mT, alpha=3), lambda w: w),
    "w @ x": (lambda x, w: (w @ x.mT).mT, lambda w: w),
    "x @ w, laid out otherwise": (lambda x, w: x.mT.contiguous().mT @ w.mT.contiguous().mT, lambda w: w.mT),
}


def _at(x, row, column, number):
    x = x.clone()
    x[row, column] = number
    return x


@pytest.fixture(params=[0, 1 << 20], ids=["alone", "as a whole"])
def cheap(request, monkeypatch):
    """Products of any size are taken of the used rows alone, or none of these."""
    monkeypatch.setattr(products, "CHEAP", request.param)
    return request.param


@pytest.mark.parametrize("count", [0, 5, 15])
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_gradients_of_both_factors(product, poison, count, cheap):
    torch.manual_seed(count)
    multiply, turned = PRODUCTS[product]
    used = torch.zeros(16, dtype=torch.bool)
    used[torch.randperm(16)[:count]] = True
    clean, weight = torch.randn(16, 7), turned(torch.randn(5, 7)).contiguous()
    poisoned = POISONS[poison](clean, used)
    clean = torch.where(used[:, None], poisoned, 0)
    assert_fixed(multiply, [poisoned, weight], [clean, weight], used, 1e-5, 1e-6)


def test_a_bias_learns_alone(cheap):
    """Neither factor has a gradient, and the node saves none of them."""
    layer = torch.nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    y = layer(torch.tensor([[1.0, 2.0, 3.0], [nan, nan, nan]]))
    ignoring.backward(torch.where(y.isnan(), 0, y.exp()).sum())
    torch.testing.assert_close(layer.bias.grad, y[0].exp().detach())


BASES = {
    # name: the function of a base, and a shape that it is broadcast from
    "addmm": (lambda base, x: torch.addmm(base, x, x, beta=0), (2, 2)),
    "addmv": (lambda base, x: torch.addmv(base, x, x[0], beta=0), (2,)),
    "addr": (lambda base, x: torch.addr(base, x[0], x[1], beta=0), (2, 2)),
    "baddbmm": (lambda base, x: torch.baddbmm(base, x[None], x[None], beta=0), ()),
    "addmm_": (lambda base, x: base.clone().addmm_(x, x, beta=0), (2, 2)),
}


@pytest.mark.parametrize("overflow", [1.0, 1e30])
@pytest.mark.parametrize("name", BASES)
def test_a_base_that_is_not_read_is_ignored(name, overflow):
    """The gradient by the factors is plain PyTorch's, also where the cotangent overflows."""
    add, shape = BASES[name]
    x, zeros = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).requires_grad_(), torch.zeros(shape, requires_grad=True)
    for by in (torch.autograd.grad, ignoring.grad):
        loss = (add(zeros.sqrt(), x) * overflow * overflow).sum()
        to_base, to_x = by(loss, [zeros, x])
        assert to_base.isnan().all() if by is torch.autograd.grad else not to_base.any()
        if by is torch.autograd.grad:
            expected = to_x
    assert torch.equal(to_x, expected)


def test_a_base_that_is_read_or_multiplied_by_a_zero_that_was_computed_is_used():
    x, zeros = torch.ones(2, 2), torch.zeros(2, 2, requires_grad=True)
    for used in (torch.addmm(zeros.sqrt(), x, x), torch.addmm(x, zeros.sqrt(), x, alpha=0), zeros.sqrt() * 0 + x):
        (ours,) = ignoring.grad(used.sum(), zeros)
        assert not ours.isfinite().any()


NUMBERS = {
    "NaN in both": ([0.0, -0.0, 1.0, -2.0, nan], [0.0, 1.0, 3.0, nan]),
    "NaN and inf in both": ([0.0, 1.0, -2.0, nan, inf, -inf], [0.0, 1.0, -1.0, nan, inf, -inf]),
    "NaN in many": ([1.0, nan], [2.0, nan]),
    "NaN in the saved one": ([0.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0, nan]),
    "inf in the saved one": ([0.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0, inf]),
}


@pytest.mark.parametrize("numbers", NUMBERS)
def test_used_elements_that_meet_what_is_not_finite(numbers):
    torch.manual_seed(0)
    few = [torch.tensor(each) for each in NUMBERS[numbers]]
    for share in (0.2, 0.5, 0.9, 1.0) * 5:
        used = torch.rand(3, 4) < share
        cotangent = torch.where(used, few[0][torch.randint(len(few[0]), (3, 4))], 0.0)
        saved = few[1][torch.randint(len(few[1]), (4, 2))]
        terms = torch.where(used[:, :, None], cotangent[:, :, None].double() * saved.double(), 0.0)
        product = ignoring.Cotangent(cotangent, used) @ saved
        torch.testing.assert_close(product.value.double(), terms.sum(1), equal_nan=True)
