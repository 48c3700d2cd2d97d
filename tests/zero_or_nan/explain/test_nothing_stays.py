"""After a block nothing of it is left: no patch, mode, or hook, no tensor of the user's; and memory stays bounded."""

import contextlib
import gc
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from origins import report_of
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, is_in_torch_dispatch_mode
from torch.utils.checkpoint import checkpoint

import zero_or_nan
from zero_or_nan import explain
from zero_or_nan.explain.program.rerun import without_warnings
from zero_or_nan.masks.watching import Mode


def of_pytorch():
    """All that a watch might replace."""
    return [
        torch.autograd._engine_run_backward,
        torch.autograd.graph._engine_run_backward,
        torch.autograd.Function.__dict__["apply"],
        torch.autograd.function._HookMixin.__dict__["_register_hook"],
        torch.autograd.graph.saved_tensors_hooks.__enter__,
        torch.compile,
        torch.amp.GradScaler.scale,
        torch.nn.Module.__call__,
        torch.Tensor.backward,
        list(torch.nn.modules.module._global_forward_hooks),
        list(_global_optimizer_pre_hooks),
        *(getattr(torch._dynamo.eval_frame, name, None) for name in ("set_eval_frame", "_maybe_set_eval_frame")),
        _get_current_function_mode_stack(),
        _get_current_dispatch_mode_stack(),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
    ]


def is_as(before):
    return all(one is other or one == other for one, other in zip(of_pytorch(), before, strict=True))


@pytest.fixture(autouse=True)
def untouched():
    import torch._dynamo.eval_frame  # noqa: F401

    before = of_pytorch()
    yield
    assert is_as(before)


def spoiled():
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    return x, torch.where(x > 0, x.log(), x * 0).sum()


def raises(error):
    def hook(*args):
        raise error

    return hook


class Ends(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x, error: (setattr(ctx, "error", error), x * 1)[1])
    backward = staticmethod(lambda ctx, gradient: raises(ctx.error)())


def raises_the_second_time(error):
    runs = iter([torch.exp])
    return lambda x: next(runs, raises(error))(x)


ENDS = {
    "forward": lambda x, loss, error: raises(error)(),
    "tensor hook": lambda x, loss, error: loss.register_hook(raises(error)) and loss,
    "leaf hook": lambda x, loss, error: x.register_hook(raises(error)) and loss,
    "node hook": lambda x, loss, error: loss.grad_fn.register_hook(raises(error)) and loss,
    "function": lambda x, loss, error: loss + Ends.apply(x, error).sum(),
    "checkpoint": lambda x, loss, error: loss + checkpoint(raises_the_second_time(error), x, use_reentrant=False).sum(),
    "after": lambda x, loss, error: loss,
}


@pytest.mark.parametrize(("where", "error"), [*((where, KeyError) for where in ENDS), ("forward", KeyboardInterrupt)])
def test_whatever_ends_it(where, error):
    with pytest.raises(error), explain():  # noqa: PT012
        ENDS[where](*spoiled(), error).backward()
        raise error
    report = report_of(lambda: spoiled()[1].backward())
    assert [origin.kind for origin in report] == ["contaminated"]


def watched_block(x, optimizer):
    with explain():
        x.exp().sum().backward()


@explain.on_failure
def decorated_step(x, optimizer):
    x.exp().sum().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # while a generator is let go
@pytest.mark.parametrize("run", [watched_block, decorated_step])
def test_ctrl_c_at_any_call_of_ours(run):
    """Python looks for signals where a function begins. PyTorch's own functions may leave a mode, and are left out."""
    ours = str(Path(zero_or_nan.__file__).parent)
    left: list[int] = []

    def interrupt(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            left[0] -= 1
            if not left[0]:
                sys.settrace(None)
                raise KeyboardInterrupt

    x = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    before, count, tracer = of_pytorch(), 0, sys.gettrace()
    while not left or left[0] <= 0:
        count += 1
        left[:] = [count]
        with contextlib.suppress(KeyboardInterrupt):
            sys.settrace(interrupt)
            run(x, optimizer)
        sys.settrace(tracer)
        assert is_as(before), count
    assert count > 50


def test_one_watch_is_entered_once():
    watch = explain()
    with watch, pytest.raises(RuntimeError, match="already watches a block"):
        watch.__enter__()


def in_threads(function, *arguments):
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(function, arguments))


def test_two_threads():
    """Each thread is told of its own, whichever ends first."""
    reports, steps = {}, threading.Barrier(2, timeout=20)

    def work(function):
        with explain() as report:
            steps.wait()
            function(torch.zeros(2, requires_grad=True)).sum().backward()
            steps.wait()
            if function is torch.log:
                time.sleep(0.05)
        reports[function] = [origin.operator for origin in report]

    with explain() as report:  # in this thread
        in_threads(work, torch.log, torch.sqrt)
    assert reports == {torch.log: ["log"], torch.sqrt: ["sqrt"]} and report.ok and not report.passes


def overlap(context, inside=lambda: None):
    """Two threads leave a context in the order in which they entered it."""
    steps = threading.Barrier(2, timeout=20)

    def work(waits):
        for _ in range(waits):
            steps.wait()
        with context():
            steps.wait()
            inside()
            steps.wait()
        for _ in range(1 - waits):
            steps.wait()

    in_threads(work, 0, 1)


def test_the_compiler_compiles_after_two_threads():
    """PyTorch's flags for the modes would stay set."""
    overlap(Mode)
    assert not is_in_torch_dispatch_mode()


def test_the_filters_of_warnings_after_two_threads():
    """Each silences itself alone, whichever ends first."""
    before = list(warnings.filters)
    overlap(without_warnings, lambda: warnings.warn("of a thread that is silent", stacklevel=1))
    assert list(warnings.filters) == before
    with pytest.warns(UserWarning, match="of this thread"):
        warnings.warn("of this thread", stacklevel=1)


def steps():
    with explain() as report:
        for _ in range(2):
            yield report
            spoiled()[1].backward()
    yield report


def test_a_generator_that_suspends_inside():
    generator = steps()
    next(generator)
    assert torch.ones(2).sum() == 2
    (report,) = {id(report): report for report in generator}.values()
    assert len(report) == 1
    first, second = steps(), steps()
    next(first), next(second)
    assert [len(list(each)[-1]) for each in (first, second)] == [1, 1]  # they end in the wrong order


@pytest.mark.usefixtures("fresh_compiler")
def test_the_compiler_compiles_no_function_of_ours():
    """A compiled function lives as long as the process, with what it has in hand: the watch, and the user's model."""
    counts = torch._dynamo.utils.counters

    def run(watched):
        torch.compiler.reset()
        counts.clear()
        model = nn.Linear(4, 8)
        model.register_full_backward_hook(lambda *gradients: None)
        model.weight.register_hook(lambda gradient: None)
        compiled = torch.compile(model, backend="eager")
        watched(lambda: compiled(torch.ones(5, 4, requires_grad=True)).sum().backward())
        return counts["frames"]["total"], weakref.ref(model)

    plain, _ = run(lambda step: step())
    frames, kept = run(report_of)
    gc.collect()
    assert frames == plain and kept() is None


@pytest.mark.usefixtures("fresh_compiler")
def test_a_pass_beside_compiled_autograd():
    """It would compile our hooks, and fail where the user allows no break in a graph."""
    x = torch.zeros(2, requires_grad=True)

    def step():
        compiler = torch.compile(backend="eager", fullgraph=True)
        with torch._dynamo.compiled_autograd._enable(compiler):
            x.sqrt().sum().backward()

    report = report_of(step)
    assert [origin.operator for origin in report] == ["sqrt"] and x.grad.isinf().all()


def test_a_proxy_among_the_variables_is_not_asked():
    """As Flask's request outside of a request."""
    proxy = type("Proxy", (), {"__class__": property(raises(RuntimeError("working outside of a request")))})
    x = torch.zeros(2, requires_grad=True)
    report = report_of(lambda: exec("x.sqrt().sum().backward()", {"x": x, "request": proxy()}))
    assert [origin.operator for origin in report] == ["sqrt"]


def test_no_tensor_is_kept():
    gc.collect()
    with explain() as report:
        x, loss = spoiled()
        loss.backward()
        known = [weakref.ref(thing) for thing in (x, loss, x.grad)]
        del x, loss
        gc.collect()
        assert [ref() for ref in known] == [None] * 3  # inside of the block
        net, x = nn.Linear(3, 4), torch.randn(2, 3, requires_grad=True)
        y = (net(x) * 0).sqrt()
        y.register_hook(lambda gradient: None)
        y.sum().backward()
        kept = [weakref.ref(thing) for thing in (net, x, y, x.grad, net.weight, net.weight.grad)]
    del net, x, y
    gc.collect()
    assert not report.ok and [ref() for ref in kept] == [None] * 6


def ours():
    """How many tensors there are, and objects of this library."""
    gc.collect()
    kinds = Counter(type(thing) for thing in gc.get_objects())
    names = {kind: str(getattr(kind, "__module__", "")) for kind in kinds}
    return sum(kinds[kind] for kind, name in names.items() if kind is torch.Tensor or name.startswith("zero_or_nan"))


@pytest.mark.parametrize("spoils_at", [None, 7])
def test_a_long_loop(spoils_at):
    """With NaN in every parameter from step 7 on where it is spoiled: nothing is kept of a step."""
    torch.manual_seed(0)
    weight = torch.randn(2, requires_grad=True)
    early = 0
    with explain() as report:
        for step in range(400):
            scale = float("inf") if step == spoils_at else 1.0
            loss = (weight * torch.tensor([1.0, scale])).square().sum()
            weight.grad = None
            loss.backward()
            with torch.no_grad():
                weight -= 0.01 * weight.grad
            if step == 99:
                early = ours()
        late = ours()
    assert len(report) == (0 if spoils_at is None else 1)
    assert late < early + 250  # memory that was given back is swept from time to time; a step would keep one at least


@pytest.mark.parametrize("function", [torch.square, lambda y: torch.where(y > 0, y.log(), y * 0), torch.sqrt])
def test_a_saved_tensor_is_unpacked_as_often_as_without_the_watch(function):
    """An offloader hands each tensor out once."""

    def train():
        store, unpacked = {}, []

        def pack(tensor):
            store[len(store)] = tensor.detach().clone()
            return len(store) - 1

        def unpack(key):
            unpacked.append(key)
            return store.pop(key)

        x = torch.tensor([0.0, 1.0], requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = function(x * 1).sum()
        loss.backward()
        return unpacked

    with explain() as report:
        watched = train()
    assert watched == train()
    assert report.ok == (function is torch.square)
