"""Training runs that end in a NaN or an infinity: runs that diverge, and runs that only look as if they did.

    @run("diverges", lr=1e8)
    def regression(lr):
        '''One sentence: what happens.'''
        ...
        return step

A run returns the function of one training step, which takes the number of the step. The expectations were written
before the tool saw a run:

- "diverges": the weights and the loss grew from step to step, and a smaller learning rate cures it.
- "jumped": the loss jumped in one step while the weights had not grown, and the weights followed.
- "no": the last step fails for another reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

TrainingStep = Callable[[int], Any]


@dataclass(frozen=True)
class TrainingRun:
    """A training run. `lr` is its learning rate, `cured_by` a rate with which it stays finite."""

    make: Callable[[float], TrainingStep]
    expected: str
    lr: float
    cured_by: float | None

    @property
    def name(self) -> str:
        return self.make.__name__


RUNS: list[TrainingRun] = []


def run(expected: str, lr: float = 0.01, cured_by: float | None = None) -> Callable[[Any], Any]:
    def register(make: Any) -> Any:
        RUNS.append(TrainingRun(make, expected, lr, cured_by))
        return make

    return register


def training(optimizer: torch.optim.Optimizer, loss_of: Callable[[int], torch.Tensor]) -> TrainingStep:
    """A step that computes a loss from its number, and lets the optimizer move."""

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(number)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def sgd(model: nn.Module, lr: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


# Runs that diverge.


@run("diverges", lr=0.01, cured_by=1e-7)
def features_that_were_not_scaled(lr):
    """Square metres and years go in as they are: the curvature is some 10⁶, and a rate of 0.01 is far too large."""
    model = nn.Linear(2, 1)
    x = torch.rand(32, 2) * torch.tensor([200.0, 2000.0])
    y = x @ torch.tensor([[3.0], [0.1]])
    return training(sgd(model, lr), lambda _: F.mse_loss(model(x), y))


@run("diverges", lr=30.0, cured_by=1e-3)
def adam_at_a_large_rate(lr):
    """Adam moves each weight by its rate; ten layers multiply the weights."""
    model = nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.ReLU())), nn.Linear(16, 1))
    x = torch.randn(32, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    return training(optimizer, lambda _: F.mse_loss(model(x), x[:, :1]))


@run("diverges", lr=3.0, cured_by=0.01)
def updates_by_hand(lr):
    """Gradient descent from scratch, without an optimizer."""
    w = torch.randn(3, requires_grad=True)
    x = torch.randn(32, 3) * 3

    def step(_):
        loss = (x @ w - x.sum(1)).square().mean()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=lr)
            w.grad = None
        return loss.item()

    return step


@run("diverges", lr=10.0, cured_by=0.1)
def weights_from_zero(lr):
    """Linear regression whose weights start at 0, so that there is no first size to compare with."""
    model = nn.Linear(3, 1)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(32, 3)
    return training(sgd(model, lr), lambda _: (model(x) - x.sum(1, keepdim=True)).square().mean())


@run("diverges", lr=1e6, cured_by=1e-4)
def recurrent_net_at_a_huge_rate(lr):
    """The first update ends it: in some time steps, the loss ignores what is too large, because of relu."""
    net, head = nn.RNN(4, 8, nonlinearity="relu", batch_first=True), nn.Linear(8, 1)
    parameters = [*net.parameters(), *head.parameters()]
    x = torch.randn(16, 10, 4)

    def step(_):
        loss = F.mse_loss(head(net(x)[0][:, -1]), x.sum((1, 2))[:, None])
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=lr)
                parameter.grad = None
        return loss.item()

    return step


# Runs that fail for another reason.


@run("jumped")
def bad_batch_that_moves_the_weights(lr):
    """One element of batch 4 is 10¹²: the step is finite, the weights follow, and a later step overflows."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(8, 4)
    large = x.clone()
    large[:, 0] = 1e12
    return training(sgd(model, lr), lambda n: F.mse_loss(model(large if n == 4 else x), x[:, :1]))


@run("no")
def huge_reward_in_the_second_step(lr):
    """The loss of the second step overflows, its gradient doesn't, and the optimizer has used it when that is seen."""
    model = nn.Linear(4, 1)
    x = torch.randn(8, 4)
    return training(sgd(model, lr), lambda n: (model(x) - (1e25 if n == 1 else 1.0)).square().mean())


@run("no")
def weights_that_grow_while_the_loss_falls(lr):
    """Separable classes: the weights grow a thousandfold, the loss falls, and then 1 − p is 0 and its log −inf."""
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 0.01)
    nn.init.zeros_(model.bias)
    x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [-1.0, -2.0], [-2.0, -1.0]])
    y = torch.tensor([[1.0], [1.0], [0.0], [0.0]])

    def loss_of(_):
        p = model(x).sigmoid()
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    return training(torch.optim.Adam(model.parameters(), lr=3.0), loss_of)
