"""Numbers of many bits: what float64 rounds away agrees with formulas that do not round it away."""

import math

import pytest
import torch
import torch.nn.functional as F

from zero_or_nan.explain.report.precise import Precise, TooHardError


def pair(x):
    return torch.stack([x, 2 * x])


_BELL = 2 / math.sqrt(math.pi) * math.exp(-64)

RUNS = {  # the function, where, and its value and slope there
    "1 - sigmoid": (lambda x: 1 / (1 - x.sigmoid()), 40.0, 1 + math.exp(40), math.exp(40)),
    "1 - tanh²": (lambda x: (1 - x.tanh() ** 2).log(), 20.0, 2 * (math.log(2) - 20), -2.0),
    "1 - softmax": (lambda x: (1 - pair(x).softmax(0)[1]).log(), 60.0, -60.0, -1.0),
    "1 - exp": (lambda x: (1 - x.exp()).log(), -1e-20, math.log(1e-20), -1e20),
    "1 - cos²": (lambda x: (1 - x.cos() ** 2).sqrt(), 1e-9, 1e-9, 1.0),
    "1 - erf": (lambda x: (1 - x.erf()).log(), 8.0, math.log(math.erfc(8)), -_BELL / math.erfc(8)),
    "below the range": (lambda x: F.softplus(x).log(), -800.0, -800.0, 1.0),
    "above the range": (lambda x: x.exp().log(), 800.0, 800.0, 1.0),
    "in place": (lambda x: (x * 1).exp_().sub(1).masked_fill_(x > 0, 5.0).neg_(), -1e-20, 1e-20, -1.0),
    "sums and views": (lambda x: (pair(x)[:, None] @ pair(x)[None]).flatten()[1:].sum(), 3.0, 8 * 9.0, 48.0),
    "a spread": (lambda x: pair(x).std() + pair(x).norm(), 0.25, (0.5**0.5 + 5**0.5) / 4, 0.5**0.5 + 5**0.5),
    "clamped": (lambda x: pair(x).clamp(max=1).mean(), 0.25, 0.375, 1.5),
    "picked": (lambda x: torch.cat([x[None], pair(x)])[torch.tensor([0, 2, 1])][1] * pair(x).amax(), 3.0, 36.0, 24.0),
}


@pytest.mark.parametrize("name", RUNS)
def test_it_gives_the_value_and_the_slope_of_exact_arithmetic(name):
    function, at, value, slope = RUNS[name]
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    with Precise():
        found = function(x)
        (gradient,) = torch.autograd.grad(found, x)
    assert found.item() == pytest.approx(value, rel=1e-13) and gradient.item() == pytest.approx(slope, rel=1e-13)


def test_a_difference_that_rounding_made_is_0():
    x = torch.tensor([2.0, 3.0, 0.1], dtype=torch.float64)
    with Precise():
        assert (x.sqrt() ** 2 - x).abs().log().tolist() == [-math.inf] * 3, "the difference of a last bit has a log"
        assert (x.mean() - x.sum() / 3).abs().log().item() == -math.inf
        assert (1 / (x - x)).isinf().all(), "a pole stays one"


REFUSED = {
    "an unknown operator": lambda x: torch.lgamma(x),
    "a gradient that adds up elements": lambda x: x[torch.tensor([0, 0])].exp(),
    "a large tensor": lambda x: x.expand(2000).exp(),
    "a complex number": lambda x: (1j * x).abs(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_can_not_follow_is_refused(name):
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    with Precise(), pytest.raises(TooHardError):
        torch.autograd.grad(REFUSED[name](x).sum(), x)
