"""A compiled region is explained like the same code uncompiled: the line inside, the function, the kind, the remedy."""

import functools
import re
import shutil
import sys
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from origins import failure, report_of
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils.checkpoint import checkpoint

from zero_or_nan import explain
from zero_or_nan.explain.births.findings import COMPILED
from zero_or_nan.explain.watch.regions import (
    ALONE,
    CAME_BEFORE,
    DREW_AGAIN,
    FIXED_UNCOMPILED,
    NOT_BETWEEN,
    NOT_INSIDE,
    NOT_REPEATED,
    RAN_AGAIN,
)

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # Dynamo asks for it
]

REGIONS = sys.modules["zero_or_nan.explain.watch.regions"]


def at_0():
    return torch.tensor([0.0, 1.0], requires_grad=True)


def of(function, use=lambda f: f(at_0())):
    """A program that compiles a function, and uses it."""

    def make(compiled):
        function_or_region = compiled(function)
        return lambda: use(function_or_region).sum().backward()

    return make


def of_model(build, use=lambda model, x: model(x), bad=None):
    """A program that compiles a model, and uses it on four rows; the second may be bad."""

    def make(compiled):
        model, x = compiled(build()), torch.randn(4, 3)
        if bad is not None:
            x[1] = bad
        return lambda: use(model, x).square().mean().backward()

    return make


class SafeLog(nn.Module):
    def forward(self, x):
        y = (x - 0.1) * (x > 0.1)
        return torch.where(y > 0, torch.log(y), 0.0)


def net(extra):
    layers = [nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), extra, nn.BatchNorm1d(3), nn.Linear(3, 1)]
    return nn.Sequential(*layers)


def with_a_bad_weight():
    model = net(nn.Identity())
    model[2].weight.data.numpy()[1, 2] = nan
    return model


def with_breaks(x):
    a = x.log()
    print(end="")
    b = a * 2
    print(end="")
    return b.sum() * 3


class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def selected_outside(log):
    x = at_0()
    return torch.where(x > 0, log(x), 0.0)


def one_region_in_a_loop(log):
    x = at_0()
    return log(x) + log(x + 1) + log(x * 2)


PROGRAMS = {
    "selected inside": of(lambda x: torch.where(x > 0, torch.log(x), 0.0).sum()),
    "in forward": of(lambda x: (x / x).sum() + x.log().sum()),
    "one of each phase": of(lambda x: (x.sqrt() + torch.where(x > 0, x.log(), 0.0)).sum()),
    "selected outside": of(lambda x: x.log() * 2, selected_outside),
    "born before": of(lambda x: torch.where(x > 0, x * 2, 0.0).sum(), lambda loss: loss(at_0().log() + 0.5)),
    "an input that is written": of(lambda x: x.mul_(2).sqrt().sum(), lambda loss: loss(at_0() * 1)),
    "one region in a loop": of(lambda x: torch.where(x > 0, x.log(), 0.0) * 2, one_region_in_a_loop),
    "graph breaks": of(with_breaks),
    "a bad weight": of_model(with_a_bad_weight),
    "a bad row that is dropped": of_model(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.LayerNorm(3), nn.Linear(3, 1)),
        lambda model, x: model(x)[[0, 2, 3]], bad=inf,
    ),
    "a checkpoint around": of_model(
        lambda: nn.Sequential(nn.Linear(3, 3), SafeLog()),
        lambda model, x: checkpoint(model, x, use_reentrant=False),
    ),
    "in backward": of(lambda x: (x * 2).sqrt().sum()),
    "a checkpoint inside": of_model(lambda: Checkpointed(nn.Linear(3, 3), SafeLog())),
    "clean": of_model(lambda: net(nn.Identity())),
}  # fmt: skip


def reported(name, compiled=None):
    torch.manual_seed(0)
    return report_of(PROGRAMS[name](compiled or functools.partial(torch.compile, backend="aot_eager")))


def operands(origin):
    """The text, without the multiplication in backward, which `explain` can't repeat in an uncompiled checkpoint."""
    return origin.operands.partition("; in backward")[0]


def remedy(origin):
    """The remedy, without the loss, because the calls of other regions do not run again."""
    return re.sub("# With this line, .*\n", "", origin.remedy)


def told(report):
    """What the report says. Whether `ignoring` was tried where it can't help is not compared."""
    return [
        (each.kind, each.phase, each.operator, each.filename, each.line, each.source, each.module, operands(each))
        + (each.entries, each.count, each.shape, remedy(each), each.chapter, each.is_sure, each.tie, each.times)
        + (set(each.reached), each.kind == "contaminated" and each.fixed)
        for each in report
    ]


def plain(function):
    return function


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_uncompiled(name):
    if name == "a checkpoint around" and torch.__version__ < (2, 8):
        pytest.xfail("before PyTorch 2.8, a compiled region in a checkpoint gets another remedy, for the same origin")
    expected, report = reported(name, plain), reported(name)
    assert sorted(told(report), key=str) == sorted(told(expected), key=str)
    assert {RAN_AGAIN, DREW_AGAIN}.issuperset(report.notes)
    assert expected.ok == (name == "clean")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of inductor's own imports
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler of C++")
def test_inductor():
    kept = [each[:8] for each in told(reported("one of each phase", torch.compile))]
    assert kept == [each[:8] for each in told(reported("one of each phase", plain))]
    report = reported("selected inside", torch.compile)
    (origin,) = report  # inductor does not show what zeros mean: the kind is that of the uncompiled code
    assert (origin.kind, origin.operator, origin.fixed) == ("contaminated", "log", False)
    assert FIXED_UNCOMPILED in report.notes


def test_on_failure():
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Dropout(), SafeLog()), backend="aot_eager")

    @explain.on_failure(model=model)
    def step(x):
        loss = model(x).mean()
        loss.backward()
        return loss

    (origin,) = failure(step, torch.randn(4, 3))
    assert (origin.operator, origin.kind, origin.module) == ("log", "contaminated", "2")
    assert origin.source == "return torch.where(y > 0, torch.log(y), 0.0)"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_from_before():
    x = at_0()
    loss = torch.compile(lambda x: x.sqrt().sum(), backend="aot_eager")(x)
    report = report_of(lambda: loss.backward())
    assert [each.operator for each in report] == [COMPILED] and report.notes == [CAME_BEFORE]


def spoiled(graph, inputs):
    """Compiled code that gives a NaN that the graph does not give."""

    def run(*args):
        return [each * nan if getattr(each, "shape", None) == (3,) else each for each in graph(*args)]

    return make_boxed_func(run)


@pytest.mark.parametrize(
    ("function", "note"), [(lambda x: x * x * x, ALONE), (lambda x: F.dropout(x * x), NOT_REPEATED)]
)
def test_a_nan_of_the_compiled_code_alone(function, note):
    """The region is named, and the report says that the same code does not give it uncompiled; or may not."""
    x = torch.ones(3, requires_grad=True)
    backend = aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(graph), bw_compiler=spoiled)
    report = report_of(lambda: torch.compile(function, backend=backend)(x).sum().backward())
    assert [(each.operator, each.phase) for each in report] == [(COMPILED, "backward")]
    assert {ALONE, NOT_REPEATED} & {*report.notes} == {note}


def test_code_between_regions():
    """It runs uncompiled and unwatched. The report says so."""
    log = torch.compiler.disable(lambda x: x.log() * 2)
    x = at_0()
    report = report_of(lambda: torch.compile(lambda x: log(x * 2).square().sum(), backend="aot_eager")(x).backward())
    assert not report.ok and NOT_BETWEEN in report.notes


@pytest.mark.parametrize("name", ["in backward", "in forward"])
def test_a_region_that_cannot_run_again(name, monkeypatch):
    def fails(*args):
        raise RuntimeError("out of memory")

    if name == "in backward":
        monkeypatch.setattr(REGIONS._Run, "run", fails)
    else:
        monkeypatch.setattr(REGIONS, "graph_of", lambda compiled: None)
    report = reported(name)
    assert [each.operator for each in report] == [COMPILED] and report.notes == [NOT_INSIDE]
