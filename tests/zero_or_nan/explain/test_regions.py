"""A compiled region is explained like the same code uncompiled: the line inside, the function, the kind, the remedy."""

import functools
import gc
import itertools
import shutil
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils.checkpoint import checkpoint

from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError
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

nan, inf = float("nan"), float("inf")
REGIONS = sys.modules["zero_or_nan.explain.watch.regions"]
PROGRAMS = []


def program(make):
    """Gets what compiles a function, and returns the block to explain."""
    PROGRAMS.append(make)
    return make


def at_0():
    return torch.tensor([0.0, 1.0], requires_grad=True)


class SafeLog(nn.Module):
    def forward(self, x):
        y = (x - 0.1) * (x > 0.1)
        return torch.where(y > 0, torch.log(y), 0.0)


class Log(nn.Module):
    def forward(self, x):
        return x.log()


class BreaksInside(nn.Module):
    def forward(self, x):
        y = x.log()
        print(end="")
        return y * 2


class Net(nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.norm = nn.BatchNorm1d(3)
        self.extra = extra
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(self.norm(self.extra(x))).squeeze(-1)


@program
def selected_inside(compiled):
    loss = compiled(lambda x: torch.where(x > 0, torch.log(x), 0.0).sum())
    return lambda: loss(at_0()).backward()


@program
def in_backward(compiled):
    loss = compiled(lambda x: (x * 2).sqrt().sum())
    return lambda: loss(at_0()).backward()


@program
def in_forward(compiled):
    scores = compiled(lambda x: (x / x) * 3)
    return lambda: scores(at_0()).sum().backward()


@program
def loss_inside(compiled):
    loss = compiled(lambda x: (x / x).sum())
    return lambda: loss(at_0()).backward()


@program
def two_in_forward(compiled):
    loss = compiled(lambda x: (x / x).sum() + x.log().sum())
    return lambda: loss(at_0()).backward()


@program
def one_of_each_phase(compiled):
    loss = compiled(lambda x: (x.sqrt() + torch.where(x > 0, x.log(), 0.0)).sum())
    return lambda: loss(at_0()).backward()


@program
def selected_outside(compiled):
    log = compiled(lambda x: x.log() * 2)
    x = at_0()
    return lambda: torch.where(x > 0, log(x), 0.0).sum().backward()


@program
def born_before(compiled):
    loss = compiled(lambda x: torch.where(x > 0, x * 2, 0.0).sum())
    return lambda: loss(at_0().log() + 0.5).backward()


@program
def born_after(compiled):
    square = compiled(lambda x: x.square() * 3)
    return lambda: square(at_0()).sqrt().sum().backward()


@program
def a_bad_weight(compiled):
    model = Net(nn.Identity())
    with torch.no_grad():
        model.layers[1].weight[1, 2] = nan
    model, x = compiled(model), torch.randn(4, 3)
    return lambda: F.mse_loss(model(x), torch.ones(4)).backward()


@program
def bad_data(compiled):
    model, x = compiled(Net(nn.Identity())), torch.randn(4, 3)
    x[1, 1] = nan
    return lambda: F.mse_loss(model(x), torch.ones(4)).backward()


@program
def a_bad_row_that_is_dropped(compiled):
    model, x = compiled(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.LayerNorm(3), nn.Linear(3, 1))), torch.randn(4, 3)
    x[1] = inf
    return lambda: model(x)[[0, 2, 3]].square().mean().backward()


@program
def in_a_module(compiled):
    model, x = compiled(Net(SafeLog()), fullgraph=True), torch.randn(4, 3)
    return lambda: F.mse_loss(model(x), torch.ones(4)).backward()


@program
def behind_graph_breaks(compiled):
    def loss(x):
        a = x.log()
        print(end="")
        b = a.exp() * a
        print(end="")
        return b.sum() * 3

    loss = compiled(loss)
    return lambda: loss(at_0()).backward()


@program
def a_break_in_a_module(compiled):
    model, x = compiled(Net(BreaksInside())), torch.randn(4, 3)
    return lambda: F.mse_loss(model(x), torch.ones(4)).backward()


@program
def a_chain_of_regions(compiled):
    layers = [compiled(nn.Sequential(nn.Linear(3, 3), SafeLog(), nn.Linear(3, 3), Log())) for _ in range(2)]
    model, x = nn.Sequential(*layers), torch.randn(4, 3)
    return lambda: model(x).mean().backward()


@program
def one_region_in_a_loop(compiled):
    log = compiled(lambda x: torch.where(x > 0, x.log(), 0.0) * 2)
    x = at_0()
    return lambda: (log(x).sum() + log(x + 1).sum() + log(x * 2).sum()).backward()


@program
def dropout(compiled):
    model, x = compiled(nn.Sequential(nn.Linear(9, 9), nn.Dropout(), SafeLog())), torch.randn(4, 9)
    return lambda: model(x).mean().backward()


@program
def a_buffer_that_is_written(compiled):
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean.mul_(0.9).add_(x.detach() * 0.1)
            return (x / self.mean).sum()

    model = compiled(Average())
    return lambda: model(at_0()).backward()


@program
def an_input_that_is_written(compiled):
    loss = compiled(lambda x: x.mul_(2).sqrt().sum())
    return lambda: loss(at_0() * 1).backward()


@program
def amp(compiled):
    model, x = compiled(nn.Sequential(nn.Linear(3, 3), SafeLog())), torch.randn(4, 3)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().mean()
        loss.backward()

    return run


@program
def a_checkpoint_around(compiled):
    model, x = compiled(nn.Sequential(nn.Linear(3, 3), SafeLog())), torch.randn(4, 3)
    return lambda: checkpoint(model, x, use_reentrant=False).sum().backward()


@program
def a_checkpoint_inside(compiled):
    layers = nn.Sequential(nn.Linear(3, 3), SafeLog())
    loss = compiled(lambda x: checkpoint(layers, x, use_reentrant=False).sum())
    x = torch.randn(4, 3)
    return lambda: loss(x).backward()


@program
def by_grad(compiled):
    root = compiled(lambda x: (x * 2).sqrt())
    x = at_0()
    return lambda: torch.autograd.grad(root(x).sum(), x)


@program
def twice_through_a_graph(compiled):
    root = compiled(lambda x: (x * 2).sqrt().sum())

    def run():
        x = at_0()
        loss = root(x)
        loss.backward(retain_graph=True)
        x.grad = None
        loss.backward()

    return run


@program
def backward_inside(compiled):
    linear = nn.Linear(3, 2, bias=False)

    def step(x):
        y = linear(x)
        loss = torch.where(y > 0, y.log(), 0.0).sum()
        loss.backward()

    step = compiled(step)
    return lambda: step(torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]))


@program
def clean(compiled):
    model, x = compiled(Net(nn.Identity())), torch.randn(4, 3)
    return lambda: model(x).mean().backward()


def report_of(make, compiled):
    torch.manual_seed(0)
    run = make(compiled)
    with explain() as report:
        run()
    return report


def operands(origin):
    """The text, without the multiplication in backward, which `explain` can't repeat in an uncompiled checkpoint."""
    return origin.operands.partition("; in backward")[0]


def told(report):
    """What the report says. Whether `ignoring` was tried where it can't help is not compared."""
    return [
        (each.kind, each.phase, each.operator, each.filename, each.line, each.source, each.module, operands(each))
        + (each.entries, each.count, each.shape, each.remedy, each.chapter, each.is_sure, each.tie, each.times)
        + (set(each.reached), each.kind == "contaminated" and each.fixed)
        for each in report
    ]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_as_uncompiled(make):
    plain = report_of(make, lambda function, **options: function)
    compiled = functools.partial(torch.compile, backend="aot_eager")
    for _ in ("cold", "warm"):
        report = report_of(make, compiled)
        assert sorted(told(report), key=str) == sorted(told(plain), key=str)
        assert {RAN_AGAIN, DREW_AGAIN}.issuperset(report.notes)
    assert plain.ok == (make is clean)


def has_a_compiler():
    return shutil.which("g++") is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of inductor's own imports
@pytest.mark.skipif(not has_a_compiler(), reason="inductor needs a compiler of C++")
@pytest.mark.parametrize("make", [in_backward, in_forward, bad_data, one_of_each_phase], ids=lambda make: make.__name__)
def test_inductor(make):
    plain = report_of(make, lambda function, **options: function)
    report = report_of(make, torch.compile)
    kept = [each[:8] for each in told(report)]
    assert kept == [each[:8] for each in told(plain)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of inductor's own imports
@pytest.mark.skipif(not has_a_compiler(), reason="inductor needs a compiler of C++")
def test_inductor_does_not_show_what_zeros_mean():
    """The kind is that of the uncompiled code, and a note says why `ignoring` gave no finite gradient here."""
    report = report_of(selected_inside, torch.compile)
    (origin,) = report
    assert (origin.kind, origin.operator, origin.fixed) == ("contaminated", "log", False)
    assert FIXED_UNCOMPILED in report.notes


def test_on_failure():
    model = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Dropout(), SafeLog()), backend="aot_eager")
    calls = []

    @explain.on_failure(model=model)
    def step(x):
        calls.append(x)
        loss = model(x).mean()
        loss.backward()
        return loss

    with pytest.raises(NotFiniteError) as raised:
        for x in itertools.repeat(torch.randn(4, 3)):
            step(x)
    (origin,) = raised.value.report
    assert (origin.operator, origin.kind, origin.module) == ("log", "contaminated", "2")
    assert origin.source == "return torch.where(y > 0, torch.log(y), 0.0)"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_from_before():
    x = at_0()
    loss = torch.compile(lambda x: x.sqrt().sum(), backend="aot_eager")(x)
    with explain() as report:
        loss.backward()
    assert [each.operator for each in report] == [COMPILED] and report.notes == [CAME_BEFORE]


def spoils(phase):
    """A backend whose compiled code gives a NaN that the graph does not give."""

    def compile(graph, inputs):
        def run(*args):
            results = graph(*args)
            return [
                torch.full_like(each, nan) if isinstance(each, torch.Tensor) and each.shape == (3,) else each
                for each in results
            ]

        return make_boxed_func(run)

    def plain(graph, inputs):
        return make_boxed_func(graph)

    forward, backward = (compile, plain) if phase == "forward" else (plain, compile)
    return aot_autograd(fw_compiler=forward, bw_compiler=backward)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_nan_of_the_compiled_code_alone(phase):
    """The region is named, and the report says that the same code does not give it uncompiled."""
    x = torch.ones(3, requires_grad=True)
    square = torch.compile(lambda x: x * x * x, backend=spoils(phase))
    with explain() as report:
        square(x).sum().backward()
    assert [each.operator for each in report] == [COMPILED] and ALONE in report.notes
    assert [each.phase for each in report] == [phase]


def test_a_nan_that_may_depend_on_random_numbers():
    x = torch.ones(3, requires_grad=True)
    drop = torch.compile(lambda x: F.dropout(x * x), backend=spoils("backward"))
    with explain() as report:
        drop(x).sum().backward()
    assert [each.operator for each in report] == [COMPILED]
    assert NOT_REPEATED in report.notes and ALONE not in report.notes


def test_code_between_regions():
    """It runs uncompiled and unwatched. The report says so."""
    log = torch.compiler.disable(lambda x: x.log() * 2)
    x = at_0()
    with explain() as report:
        torch.compile(lambda x: log(x * 2).square().sum(), backend="aot_eager")(x).backward()
    assert not report.ok and NOT_BETWEEN in report.notes


def test_a_region_that_cannot_run_again(monkeypatch):
    def fails(*args):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(REGIONS._Run, "run", fails)
    report = report_of(in_backward, functools.partial(torch.compile, backend="aot_eager"))
    assert [each.operator for each in report] == [COMPILED] and report.notes == [NOT_INSIDE]


def test_a_region_whose_graph_is_not_kept(monkeypatch):
    monkeypatch.setattr(REGIONS, "graph_of", lambda compiled: None)
    report = report_of(in_forward, functools.partial(torch.compile, backend="aot_eager"))
    assert [each.operator for each in report] == [COMPILED] and report.notes == [NOT_INSIDE]


def test_bits_stay_the_same():
    """Results, gradients, buffers, random numbers, and how often the user's code runs: also if a region runs again."""
    calls = []

    def train(is_watched):
        torch.compiler.reset()
        torch.manual_seed(0)
        calls.clear()
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(), SafeLog(), nn.Linear(3, 1))

        def forward(x):
            y = model(x)
            torch._dynamo.graph_break()
            calls.append(len(calls))
            return y * 2

        run = torch.compile(forward, backend="aot_eager")
        found = []
        for _ in range(3):
            x = torch.randn(5, 3, requires_grad=True)
            if is_watched:
                with explain() as report:
                    run(x).mean().backward()
                assert not report.ok
            else:
                run(x).mean().backward()
            found += [x.grad, *(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers())]
        return [*found, torch.get_rng_state(), torch.tensor(calls), torch.rand(3)]

    for with_watch, without in zip(train(True), train(False), strict=True):
        assert torch.equal(with_watch.nan_to_num(7.5), without.nan_to_num(7.5))
        assert torch.equal(with_watch.isnan(), without.isnan())


def test_arguments_are_freed_with_the_graph():
    root = torch.compile(lambda x: (x * 2).sqrt(), backend="aot_eager")
    leaf = at_0()
    with explain():
        x = leaf * 1
        known = weakref.ref(x)
        loss = root(x).sum()
        loss.backward()
        del x, loss
        gc.collect()
        assert known() is None


class CompiledByHand(torch.autograd.Function):
    """Has the name of a region, and is none."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient / (2 * x.sqrt())


def test_a_function_of_the_user_is_no_region_whatever_its_name():
    x = torch.zeros(1, requires_grad=True)
    with explain() as report:
        CompiledByHand.apply(x).sum().backward()
    assert "1 / 0" in str(report) and "compiled region ran" not in str(report)
