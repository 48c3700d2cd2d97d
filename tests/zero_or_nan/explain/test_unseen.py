"""Modes and profilers of the user's see the same calls with and without a watch."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.zero_or_nan.ignoring.telling import ByOperators
from zero_or_nan import explain
from zero_or_nan.functions.graph import DEEP_GRAPHS


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Profiler(profile):
    @property
    def seen(self):
        return [event.name for event in self.events()]


def training(first=1.0):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.randn(5, 3)
        x[0] *= first
        model(x).softmax(-1).prod().backward()
        optimizer.step()


def contaminated():
    x = torch.tensor([1.0, 0.0, 100.0], requires_grad=True)
    y = torch.where(x > 0, x.log(), x * 0)
    y += 1
    y.mul_(2).sum().backward()
    (ByOperators.apply(x) * torch.tensor([1.0, 1.0, 0.0])).sum().backward()


def checkpoints():
    layer, x = nn.Linear(3, 4), torch.randn(5, 3, requires_grad=True)
    for reentrant in (False, True):
        checkpoint(lambda x: layer(x).exp().relu(), x, use_reentrant=reentrant).sum().backward()
        checkpoint(lambda x: (layer(x) * 0).sqrt(), x, use_reentrant=reentrant).sum().backward()


def everything():
    for program in (training, lambda: training(float("nan")), contaminated, checkpoints):
        program()


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # up to PyTorch 2.12
@pytest.mark.parametrize("kind", [Operators, Functions, Profiler])
def test_the_same_is_seen(kind, monkeypatch):
    monkeypatch.setattr(DEEP_GRAPHS, "_seen", 0)  # a node that is held keeps a gradient, which PyTorch then copies
    seen = []
    for outer, inner in ((kind(), nullcontext()), (kind(), explain()), (explain(), kind())):
        torch.manual_seed(0)
        with outer, inner:
            everything()
        seen.append(getattr(outer, "seen", None) or inner.seen)
    assert seen[0] and seen[0] == seen[1] == seen[2]
