"""Results, gradients, random numbers, buffers and hooks are those of a run without the watch, to the bit.

The user's modes and profilers see the same calls.
"""

import random
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.zero_or_nan.explain.test_no_alarm import drawn, gradients
from tests.zero_or_nan.ignoring.plainly import seen
from tests.zero_or_nan.ignoring.programs import programs
from tests.zero_or_nan.ignoring.telling import ByOperators
from zero_or_nan import explain
from zero_or_nan.functions.graph import DEEP_GRAPHS


def run(work, watch, spoiled):
    """What a piece of work gives, with the state of the random numbers after it. No false alarm is raised."""
    torch.manual_seed(7)
    random.seed(7)
    if watch == "block":
        with explain() as report:
            results = work()
        assert spoiled or report.ok, report
    elif watch == "on_failure":
        results = explain.on_failure(work)()
    else:
        results = work()
    return [*results, torch.get_rng_state(), torch.rand(3), torch.tensor(random.random())]


def check(work, spoiled=False):
    """A step that is spoiled fails under `on_failure`, so it is compared in a block alone."""
    expected = seen(run(work, None, spoiled))
    for watch in ["block"] if spoiled else ["block", "on_failure"]:
        assert seen(run(work, watch, spoiled)) == expected


@given(program=programs())
@settings(drawn, max_examples=10)
def test_random_programs(program):
    check(lambda: gradients(program, torch.Tensor.backward), spoiled=True)


class Small(nn.Module):
    """Dropout, a batch norm, and log 0 under `where` where it is spoiled."""

    def __init__(self, spoiled=False):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 6), nn.BatchNorm1d(6)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(6, 2)
        self.spoiled = spoiled

    def forward(self, x):
        h = self.drop(self.norm(self.first(x)))
        if self.spoiled:
            zero = h * torch.tensor([0.0, 1, 1, 1, 1, 1])
            h = torch.where(zero != 0, zero.abs().log(), h)
        return self.last(h)


spoiled = pytest.mark.parametrize("spoiled", [False, True])


def pass_by(kind, y, loss, every):
    """Run a kind of backward pass, and give the gradients."""
    if kind == "grad":
        return torch.autograd.grad(loss, every)
    if kind == "grad of some":
        return [*torch.autograd.grad(loss, [y, every[0]], retain_graph=True), *torch.autograd.grad(loss, every[0])]
    if kind == "retain_graph":
        for _ in range(3):
            loss.backward(retain_graph=True)
    elif kind == "penalty":
        (slope,) = torch.autograd.grad(loss, every[0], create_graph=True)
        (slope.square().sum() + loss).backward()
    elif kind == "vector":
        y.backward(torch.tensor([[1.0, 0.0]] * 5))
    else:
        loss.backward()
    return [p.grad for p in every]


FORWARD = {
    "checkpoint": lambda model, x: checkpoint(model, x * 2, use_reentrant=False),
    "reentrant checkpoint": lambda model, x: checkpoint(model, x * 2, use_reentrant=True),
    "compiled": lambda model, x: torch.compile(model, backend="aot_eager")(x),
    "autocast": lambda model, x: torch.autocast("cpu", dtype=torch.bfloat16)(model)(x).float(),
}


@spoiled
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("kind", [*FORWARD, "retain_graph", "grad", "grad of some", "penalty", "vector"])
def test_passes(kind, spoiled):
    def work():
        model, x = Small(spoiled), torch.randn(5, 3, requires_grad=True)
        y = FORWARD.get(kind, lambda model, x: model(x))(model, x)
        gradients = pass_by(kind, y, y.square().mean(), [x, *model.parameters()])
        torch.compiler.reset()
        return [y.detach(), *gradients, *model.buffers()]

    check(work, spoiled)


@spoiled
def test_hooks(spoiled):
    """Every kind is called as often and in the order of a run without the watch, and with the same numbers."""

    def work():
        called = []

        def told(name, value=None):
            called.append((name, None if value is None else value.nan_to_num(7.5).sum().item()))

        model, x = Small(spoiled), torch.randn(5, 3, requires_grad=True)
        x.register_hook(lambda grad: told("leaf", grad))
        model.first.weight.register_hook(lambda grad: told("parameter", grad))
        model.last.weight.register_post_accumulate_grad_hook(lambda leaf: told("accumulated", leaf.grad))
        model.first.register_forward_pre_hook(lambda module, args: told("before", args[0]))
        model.norm.register_forward_hook(lambda module, args, result: told("after", result))
        model.norm.register_full_backward_hook(lambda module, given, got: told("module", given[0]))
        model.norm.register_full_backward_pre_hook(lambda module, got: told("module before", got[0]))
        y = model(x)
        y.register_hook(lambda grad: told("intermediate", grad))
        y.retain_grad()
        y.grad_fn.register_hook(lambda given, got: told("node", got[0]))
        y.grad_fn.register_prehook(lambda got: told("node before", got[0]))
        torch.autograd.graph.register_multi_grad_hook([x, model.first.weight], lambda grads: told("several", grads[0]))
        loss = y.square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return [called, y.grad, x.grad]

    check(work, spoiled)


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


def everything():
    x = torch.tensor([1.0, 0.0, 100.0], requires_grad=True)
    y = torch.where(x > 0, x.log(), x * 0)
    y += 1
    y.mul_(2).sum().backward()
    (ByOperators.apply(x) * torch.tensor([1.0, 1.0, 0.0])).sum().backward()
    for name in ("checkpoint", "reentrant checkpoint", "autocast"):
        model, x = Small(), torch.randn(5, 3, requires_grad=True)
        FORWARD[name](model, x).relu_().square().mean().backward()
        FORWARD[name](lambda x, model=model: (model(x) * 0).sqrt(), x).sum().backward()
        torch.optim.Adam(model.parameters()).step()


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # up to PyTorch 2.12
@pytest.mark.parametrize("kind", [Operators, Functions, Profiler])
def test_modes_and_profilers_see_the_same_calls(kind, monkeypatch):
    monkeypatch.setattr(DEEP_GRAPHS, "_seen", 0)  # a node that is held keeps a gradient, which PyTorch then copies
    seen = []
    for outer, inner in ((kind(), nullcontext()), (kind(), explain()), (explain(), kind())):
        torch.manual_seed(0)
        with outer, inner:
            everything()
        seen.append(getattr(outer, "seen", None) or inner.seen)
    assert seen[0] and seen[0] == seen[1] == seen[2]
