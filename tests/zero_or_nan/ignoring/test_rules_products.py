"""Matrix products of which the loss uses some rows, next to the product of those rows alone in float64."""

import math
from unittest import mock

import pytest
import torch

from zero_or_nan import ignoring
from zero_or_nan.ignoring.rules import products

inf, nan = math.inf, math.nan

POISONS = {
    "whole rows": lambda x, used: x.masked_fill(~used[:, None], nan),
    "whole rows of inf": lambda x, used: x.masked_fill(~used[:, None], -inf),
    "rows whose sums overflow together": lambda x, used: x.masked_fill(~used[:, None], 3e37),
    "one row": lambda x, used: _at(x, (~used).nonzero()[0], slice(None), nan),
    "an entry": lambda x, used: _at(x, (~used).nonzero()[-1], 2, inf),
    "an entry, then a row": lambda x, used: _at(
        _at(x, (~used).nonzero()[0], 1, nan), (~used).nonzero()[-1], slice(None), nan
    ),
    "one that is used": lambda x, used: _at(x.masked_fill(~used[:, None], nan), used.nonzero()[:1, 0], 3, inf),
}

PRODUCTS = {
    "linear": (torch.nn.functional.linear, lambda w: w),
    "x @ w": (torch.matmul, lambda w: w.mT),
    "w @ x": (lambda x, w: (w @ x.mT).mT, lambda w: w),
    "x @ w, laid out otherwise": (lambda x, w: x.mT.contiguous().mT @ w.mT.contiguous().mT, lambda w: w.mT),
}


def _at(x, row, column, number):
    x = x.clone()
    x[row, column] = number
    return x


@pytest.fixture(params=[0, 1 << 20], ids=["alone", "as a whole"], autouse=True)
def what_is_cheap(request, monkeypatch):
    """Products of any size are taken of the used rows alone, or none of these."""
    monkeypatch.setattr(products, "CHEAP", request.param)


@pytest.mark.parametrize("count", [0, 1, 5, 15])
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_gradients_of_both_factors(product, poison, count):
    torch.manual_seed(count)
    multiply, turned = PRODUCTS[product]
    used = torch.zeros(16, dtype=torch.bool)
    used[torch.randperm(16)[:count]] = True
    clean, weight, grad = torch.randn(16, 7), torch.randn(5, 7), torch.randn(16, 5)
    poisoned = POISONS[poison](clean, used)

    def gradients(by, x, rows, dtype=torch.float32):
        leaves = [x.to(dtype).requires_grad_(), turned(weight.to(dtype)).contiguous().requires_grad_()]
        return by((multiply(*leaves)[rows] * grad[used].to(dtype)).sum(), leaves)

    plain = gradients(torch.autograd.grad, poisoned, used)
    ours = gradients(ignoring.grad, poisoned, used)
    of_used, of_weight = gradients(torch.autograd.grad, poisoned[used], slice(None), torch.float64)
    of_all = torch.zeros(16, 7, dtype=torch.float64).masked_scatter_(used[:, None], of_used)
    for mine, right, theirs in zip(ours, (of_all, of_weight), plain, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert torch.equal(mine[theirs.isfinite()], theirs[theirs.isfinite()])


def test_what_was_not_used_is_not_multiplied():
    """Half of the rows are taken of both factors; none where the whole product is cheap."""
    x, w = torch.randn(16, 7).requires_grad_(), torch.randn(5, 7).requires_grad_()
    poisoned = torch.cat((x[:8], x[8:] * nan))
    with mock.patch.object(products, "taken", wraps=products.taken) as taken:
        ignoring.backward((poisoned @ w.mT)[:8].sum())
    assert [len(call.args[1]) for call in taken.call_args_list] == ([] if products.CHEAP else [8, 8])


def test_a_factor_that_is_only_said_to_be_negative():
    """As the imaginary part of a conjugate is: its memory holds the opposite."""
    x = torch.randn(64, 64, dtype=torch.complex64).conj().imag
    x[32:] = nan
    w = torch.randn(64, 64, requires_grad=True)
    ignoring.backward((x @ w)[:32].sum())
    assert x.is_neg()
    torch.testing.assert_close(w.grad, x[:32].sum(0)[:, None].expand(64, 64))
