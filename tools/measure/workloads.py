"""The programs whose costs are measured: models and steps, with and without elements that contaminate the gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.masked import masked_tensor

from zero_or_nan import ignoring

Loss = Callable[[], Tensor]


@dataclass(frozen=True)
class Workload:
    """A computation, with or without elements that contaminate plain PyTorch's gradient.

    `methods` takes whether the case is contaminated, and gives the methods. Each method is a function that runs
    forward, and a function that runs backward on the loss. `entries` and `nodes` are set if cases differ only in their
    number.
    """

    name: str
    methods: Callable[[bool], dict[str, tuple[Loss, Callable[[Tensor], None]]]]
    memory: bool = True
    entries: int | None = None
    nodes: int | None = None


def _layers(model: Callable[[], nn.Module], shape: tuple[int, ...], contaminated: bool) -> dict[str, Any]:
    """A model on a batch of rows. If contaminated, half of the rows are NaN, and the loss slices them away."""
    layers, rows, used = _model_and_rows(model, shape, contaminated)

    def forward() -> Tensor:
        layers.zero_grad()
        loss: Tensor = layers(rows)[:used].sum()
        return loss

    return {"plain": (forward, Tensor.backward), "ignoring": (forward, ignoring.backward)}


def _model_and_rows(
    model: Callable[[], nn.Module], shape: tuple[int, ...], contaminated: bool
) -> tuple[nn.Module, Tensor, int]:
    """A model, a batch, and how many of its rows the loss uses."""
    torch.manual_seed(0)
    layers, rows, used = model(), torch.randn(shape), shape[0]
    if contaminated:
        used //= 2
        rows[used:] = torch.nan
    return layers, rows, used


def _in_regions(
    model: Callable[[], nn.Module], shape: tuple[int, ...], backend: str, contaminated: bool
) -> dict[str, Any]:
    """The same for a compiled model. Its plain backward is compiled too, with the marks that inductor needs."""

    def made() -> nn.Module:
        ignoring.follow_compiled()
        torch._dynamo.reset()
        compiled: Any = torch.compile(model(), backend=backend)
        return cast(nn.Module, compiled)

    return _layers(made, shape, contaminated)


def _penalised(model: Callable[[], nn.Module], shape: tuple[int, ...], contaminated: bool) -> dict[str, Any]:
    """A critic with a gradient penalty.

    It computes the gradient of its inputs, and then the gradient of the penalty.
    """
    layers, rows, used = _model_and_rows(model, shape, contaminated)
    rows.requires_grad_()

    def forward() -> Tensor:
        layers.zero_grad()
        rows.grad = None
        loss: Tensor = layers(rows)[:used].sum()
        return loss

    def step(grad: Callable[..., Any], backward: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def run(loss: Tensor) -> None:
            (slope,) = grad(loss, [rows], create_graph=True)
            backward(loss + (slope[:used].norm(dim=1) - 1).square().sum())

        return run

    plain = step(torch.autograd.grad, Tensor.backward)
    return {"plain": (forward, plain), "ignoring": (forward, step(ignoring.grad, ignoring.backward))}


def _perceptron(width: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))


def _transformer(width: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)


class _Block(nn.Module):
    """Two convolutions, and the input added to their output."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.path = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        shorter = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.past = nn.Identity() if channels == out else shorter

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.past(x))


def _resnet() -> nn.Module:
    """ResNet-18 with frozen norms, because norms that use a batch's own statistics would use the NaN rows."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [_Block(before, after) for before, after in itertools.pairwise(widths)]
    first = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()


class _Recurrent(nn.Module):
    """An LSTM whose last step is used."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.steps = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.steps(x)[0][:, -1]
        return result


class _Chain(nn.Module):
    """A chain of many nodes."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        for _ in range(self.nodes):
            x = x.sin()
        return x


def _where_over_exp(entries: int, contaminated: bool) -> dict[str, Any]:
    """`where(x < 80, exp(x), 0)`. If contaminated, two thirds of the exponentials overflow."""
    x = torch.linspace(-1, 240 if contaminated else 70, entries).requires_grad_()
    zero = torch.zeros(())

    def once() -> Tensor:
        x.grad = None
        return torch.where(x < 80, x.exp(), zero).sum()

    def twice() -> Tensor:
        x.grad = None
        used = x < 80
        return torch.where(used, torch.where(used, x, zero).exp(), zero).sum()

    def masked() -> Tensor:
        values = x.detach()
        loss: Tensor = masked_tensor(values, values < 80, requires_grad=True).exp().sum()
        return loss

    return {
        "plain": (once, Tensor.backward),
        "ignoring": (once, ignoring.backward),
        "double where": (twice, Tensor.backward),
        "masked": (masked, Tensor.backward),
    }


SIZES = [10**power for power in range(1, 8)]
CHAINS = [5_000, 50_000, 200_000]
CASES = {
    case.name: case
    for case in (
        Workload("4-layer MLP, width 1024, batch 256", partial(_layers, lambda: _perceptron(1024), (256, 1024))),
        Workload("4-layer MLP, width 8, batch 4", partial(_layers, lambda: _perceptron(8), (4, 8)), False),
        Workload(
            "transformer layer, width 512, 8 × 64 tokens", partial(_layers, lambda: _transformer(512, 8), (8, 64, 512))
        ),
        Workload(
            "transformer layer, width 256, 8 × 64 tokens", partial(_layers, lambda: _transformer(256, 8), (8, 64, 256))
        ),
        Workload(
            "transformer layer, width 16, 4 × 8 tokens",
            partial(_layers, lambda: _transformer(16, 2), (4, 8, 16)),
            False,
        ),
        Workload("ResNet-18, 4 images of 64 × 64", partial(_layers, _resnet, (4, 3, 64, 64))),
        Workload("LSTM, width 128, 16 × 32 tokens", partial(_layers, lambda: _Recurrent(128), (16, 32, 128))),
        *(
            Workload(f"a chain of {n:,} nodes", partial(_layers, partial(_Chain, n), (4, 4)), False, nodes=n)
            for n in CHAINS
        ),
        *(Workload(f"where over exp, {n} elements", partial(_where_over_exp, n), n == SIZES[-1], n) for n in SIZES),
        # The last case: once a gradient was recorded, every later pass checks whether its nodes were recorded.
        Workload(
            "gradient penalty, 4-layer MLP, width 256, batch 64",
            partial(_penalised, lambda: _perceptron(256), (64, 256)),
            False,
        ),
    )
}


_LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer layer, width 512, 8 × 64 tokens": (lambda: _transformer(512, 8), (8, 64, 512)),
    "transformer layer, width 512, 8 × 512 tokens": (lambda: _transformer(512, 8), (8, 512, 512)),
    "transformer layer, width 1024, 8 × 64 tokens": (lambda: _transformer(1024, 8), (8, 64, 1024)),
    "block of ResNet-18, 64 channels, 8 images of 56 × 56": (lambda: _Block(64, 64).eval(), (8, 64, 56, 56)),
}
COMPILED = {
    f"{name}, {backend}": Workload(f"{name}, {backend}", partial(_in_regions, model, shape, backend))
    for name, (model, shape) in _LAYERS.items()
    for backend in ("aot_eager", "inductor")
}
"""Models as large as one layer of a real model, which run compiled. Inductor needs a C++ compiler."""


TrainingStep = Callable[[Callable[[Tensor], None]], Tensor]
"""A training step that is not finite. It takes the function that runs backward, and returns the loss."""


def _one_bad_row(model: Callable[[], nn.Module], shape: tuple[int, ...]) -> TrainingStep:
    """A model on a batch with one row of NaN, which the loss uses."""
    layers, rows, _ = _model_and_rows(model, shape, False)
    rows[1] = torch.nan

    def step(backward: Callable[[Tensor], None]) -> Tensor:
        layers.zero_grad()
        loss: Tensor = layers(rows).square().mean()
        backward(loss)
        return loss

    return step


def _bad_chain(nodes: int, at: int = 0, used: bool = True) -> TrainingStep:
    """A chain in which one element becomes NaN before some node. The loss uses this element, or slices it away."""
    weight, spoils = torch.full((4,), 0.5, requires_grad=True), torch.tensor([torch.nan, 1.0, 1.0, 1.0])

    def step(backward: Callable[[Tensor], None]) -> Tensor:
        weight.grad = None
        x = weight * 1.0
        for number in range(nodes):
            x = (x * spoils if number == at else x).sin()
        loss = (x if used else x[1:]).sum()
        backward(loss)
        return loss

    return step


def _logarithms(count: int, size: int) -> TrainingStep:
    """Logarithms of 0. Each of them is a separate origin."""
    weight = torch.ones(size, requires_grad=True)

    def step(backward: Callable[[Tensor], None]) -> Tensor:
        weight.grad = None
        loss = torch.zeros(())
        for number in range(count):
            loss = loss + (weight * torch.arange(size).sub(number % size)).abs().log().sum()
        backward(loss)
        return loss

    return step


FAILING = {
    "one logarithm of 0": partial(_logarithms, 1, 64),
    "4-layer MLP, width 64, batch 32, one row of NaN": partial(_one_bad_row, lambda: _perceptron(64), (32, 64)),
    "4-layer MLP, width 1024, batch 256, one row of NaN": partial(_one_bad_row, lambda: _perceptron(1024), (256, 1024)),
    "ResNet-18, 4 images of 64 × 64, one of NaN": partial(_one_bad_row, _resnet, (4, 3, 64, 64)),
    "a chain of 1,000 nodes, NaN at the start": partial(_bad_chain, 1_000),
    "a chain of 10,000 nodes, NaN at the start": partial(_bad_chain, 10_000),
    "a chain of 10,000 nodes, NaN in the middle": partial(_bad_chain, 10_000, 5_000),
    "a chain of 10,000 nodes, NaN that is sliced away": partial(_bad_chain, 10_000, used=False),
    "a chain of 100,000 nodes, NaN at the start": partial(_bad_chain, 100_000),
    "100 logarithms of 0": partial(_logarithms, 100, 64),
}
"""Steps for which `explain` reports something."""
