"""The book's cases, in a few lines each: a loss in plain PyTorch, its leaves, and the right gradient of each leaf.

If the order of a sum could matter, it is of small whole numbers, because their sum is exact on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from .words import FIXED, ROUNDED, ULPS, Reference, Words, reference

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Setting:
    """The setting of a case: outputs, the vector that backward gets for them, leaves, and a reference for each leaf."""

    outputs: Tensor
    leaves: Sequence[Tensor]
    wanted: Sequence[Reference]
    vector: Tensor | None = None


SetUp = Callable[[torch.device], Setting]


@dataclass(frozen=True)
class CheckedCase:
    """A case: its name, the thread it comes from, its setup on a device, and the ulps that still count as *right*.

    `recorded`: the words for plain PyTorch's gradient and for ours. They were the same with all `RELEASES`.
    """

    name: str
    thread: str
    set_up: SetUp
    ulps: int
    recorded: Words


CASES: list[CheckedCase] = []
"""Every case, in the order of the book's chapters."""


def case(name: str, thread: str = "", ulps: int = ULPS, recorded: Words = FIXED) -> Callable[[SetUp], None]:
    """Register a function of a device as the setup of a case."""
    return lambda set_up: CASES.append(CheckedCase(name, thread, set_up, ulps, recorded))


def _leaf(numbers: object, device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32, device=device, requires_grad=True)


def _of(outputs: Tensor, x: Tensor, wanted: Reference) -> Setting:
    return Setting(outputs, [x], [wanted])


def _of_all(outputs: Tensor, loss: Callable[..., Tensor], *leaves: Tensor) -> Setting:
    """A setting whose loss uses every element of the leaves. `loss` computes it from them in float64, on the CPU."""
    exact = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    gradients = torch.autograd.grad(loss(*exact), exact)
    return Setting(outputs, leaves, list(map(_all_used, gradients)))


def _all_used(gradient: Tensor) -> Reference:
    return Reference(gradient, torch.ones_like(gradient, dtype=torch.bool))


@case("gradient argument of backward", "Stack Overflow 43451125", recorded=("right", "right"))
def _gradient_argument(device: torch.device) -> Setting:
    a, b, c = _leaf([1, 2, 3], device), _leaf([3, 4, 5], device), _leaf([6, 7, 8], device)
    vector = torch.tensor([0.1, 1.0, 0.0001], device=device)
    weights = vector.cpu().double()

    def outputs(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return 3 * a + 2 * b * b + c.log()

    return replace(_of_all(outputs(a, b, c), lambda *exact: (outputs(*exact) * weights).sum(), a, b, c), vector=vector)


@case("where over exp", "pytorch#10729")
def _where_over_exp(device: torch.device) -> Setting:
    x = _leaf([-10, -5, 0, 5, 10, 50, 60, 70, 80, 90, 100], device)
    loss = torch.where(x < 0, x.exp(), torch.ones_like(x)).sum()
    return _of(loss, x, reference(lambda used: used.exp().sum(), x, x < 0))


@case("clamp after exp", "pytorch#10729")
def _clamp_after_exp(device: torch.device) -> Setting:
    x = _leaf([-10, -5, 5, 10, 90, 100], device)
    return _of(x.exp().clamp(max=1).sum(), x, reference(lambda used: used.exp().sum(), x, x < 0))


@case("where over division", "pytorch#52248")
def _where_over_division(device: torch.device) -> Setting:
    a, never = _leaf(1.5, device), torch.tensor(False, device=device)
    y = torch.where(never, a / 0, torch.ones_like(a))
    return _of(y, a, reference(lambda used: used.sum(), a, never))


@case("nansum", "pytorch#67180")
def _nansum(device: torch.device) -> Setting:
    a, b = torch.tensor([1.0, 2.0, NAN], device=device), _leaf(1.0, device)
    return _of(torch.nansum(a * b), b, reference(lambda b: 1 * b + 2 * b, b))


@case("nanmean", "pytorch#67180")
def _nanmean(device: torch.device) -> Setting:
    a, b = torch.tensor([1.0, 2.0, NAN], device=device), _leaf(1.0, device)
    return _of(torch.nanmean(a * b), b, reference(lambda b: (1 * b + 2 * b) / 2, b))


@case("x / 0, masked by indexing", "pytorch#4132")
def _masked_by_indexing(device: torch.device) -> Setting:
    x, divisor = _leaf([1, 1], device), torch.tensor([0.0, 1.0], device=device)
    return _of((x / divisor)[divisor != 0].sum(), x, reference(lambda used: used.sum(), x, divisor != 0))


@case("x / 0, masked by assignment", "pytorch#4132")
def _masked_by_assignment(device: torch.device) -> Setting:
    x, divisor = _leaf([1, 1], device), torch.tensor([0.0, 1.0], device=device)
    y = x / divisor
    y[divisor == 0] = 0
    return _of(y.sum(), x, reference(lambda used: used.sum(), x, divisor != 0))


@case("rows sliced after a linear layer", "PyTorch forum 135053")
def _sliced_rows(device: torch.device) -> Setting:
    good = torch.arange(1.0, 33).reshape(4, 8)
    rows = torch.cat([good, torch.full((4, 8), NAN)]).to(device)
    weight, bias = _leaf([[1, -2, 3, -4, 5, -6, 7, -8]], device), _leaf([1], device)
    outputs = linear(rows, weight, bias)[:4].sum()
    return _of_all(outputs, lambda weight, bias: linear(good.double(), weight, bias).sum(), weight, bias)


@case("rows that overflow in a deep network", "PyTorch forum 135053")
def _overflowing_rows(device: torch.device) -> Setting:
    good = torch.arange(1.0, 9).reshape(2, 4)
    rows = torch.cat([good, torch.full((2, 4), 3e38)]).to(device)
    first, second = _leaf([[1, 2, 1, 2], [2, 1, 2, 1]], device), _leaf([[3, 1], [1, 3]], device)

    def loss(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return linear(linear(rows, first).relu(), second).relu()[:2].sum()

    return _of_all(loss(rows, first, second), partial(loss, good.double()), first, second)


@case("queries sliced after attention", ulps=ROUNDED)
def _sliced_queries(device: torch.device) -> Setting:
    good, bad = torch.tensor([[1.0, 2], [2, 1]]), torch.full((2, 2), NAN)
    queries = torch.cat([good, bad])[None, None].to(device)
    keys, values = _leaf([[[[1, 0], [0, 1], [1, 1]]]], device), _leaf([[[[1, 2], [3, 4], [5, 7]]]], device)

    def loss(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return scaled_dot_product_attention(queries, keys, values)[:, :, :2, 0].sum()

    return _of_all(loss(queries, keys, values), partial(loss, good.double()[None, None]), keys, values)


@case("sequences sliced after an LSTM", ulps=ROUNDED)
def _sliced_sequences(device: torch.device) -> Setting:
    good = torch.tensor([[[1.0, 2], [0, 1]], [[2, 1], [1, 0]]])
    rows = torch.cat([good, torch.full((2, 2, 2), NAN)], dim=1).to(device)
    layer = torch.nn.LSTM(2, 2).to(device)
    parameters = list(layer.parameters())
    with torch.no_grad():
        for number, parameter in enumerate(parameters, 1):
            parameter.copy_(torch.linspace(0.1, 0.5, parameter.numel()).reshape(parameter.shape) / number)
    # The reference uses the same kernels on the good rows, because cuDNN is thousands of ulps from float64 in any case.
    alone = torch.autograd.grad(layer(good.to(device))[0].sum(), parameters)
    gradients = [gradient.cpu().double() for gradient in alone]
    return Setting(layer(rows)[0][:, :2].sum(), parameters, list(map(_all_used, gradients)))


@case("rows sliced after a Fourier transform")
def _sliced_spectra(device: torch.device) -> Setting:
    x = _leaf([[1, 2, 4, 8], [0, 0, 0, 0]], device)
    mean = torch.fft.rfft(x.log())[0, 0].real
    return _of(mean, x, reference(lambda used: used.log().sum(), x, x[:, 0] > 0))


@case("topk of logarithms")
def _topk(device: torch.device) -> Setting:
    x = _leaf([0, 1, 2, 3], device)
    return _of(x.log().topk(2).values.sum(), x, reference(lambda used: used.log().sum(), x, x > 1))


@case("gather of square roots")
def _gather(device: torch.device) -> Setting:
    x = _leaf([4, 0, 9], device)
    chosen = x.sqrt().gather(0, torch.tensor([2, 0, 2], device=device))
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    return _of(chosen.sum(), x, reference(lambda used: (used.sqrt() * weights).sum(), x, x > 0))


@case("1 / x, rounded as plain PyTorch rounds", "Stack Overflow, 2018", ulps=0, recorded=("rounded", "rounded"))
def _reciprocal(device: torch.device) -> Setting:
    x = _leaf([1, 2, 3, 5, 7, 11], device)
    return _of((1 / x).sum(), x, reference(lambda x: (1 / x).sum(), x))


@case("sqrt of a 0 that is used stays infinite", recorded=("right", "right"))
def _used_root(device: torch.device) -> Setting:
    x = _leaf([4, 0], device)
    return _of(x.sqrt().sum(), x, reference(lambda x: x.sqrt().sum(), x))


@case("a loss that is NaN stays NaN", "PyTorch forum 135053", recorded=("right", "right"))
def _computed_zero(device: torch.device) -> Setting:
    rows = torch.tensor([[1.0, 2.0], [NAN, INF]], device=device)
    weight = _leaf([[1, 1]], device)
    zero = torch.tensor([[1.0], [2.0 - 6.0 / 3.0]], device=device)  # computed, so it is a number like any other
    exact, weights = rows.cpu().double(), zero.cpu().double()
    wanted = reference(lambda weight: (weights * linear(exact, weight)).sum(), weight)
    return _of((zero * linear(rows, weight)).sum(), weight, wanted)
