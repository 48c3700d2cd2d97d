"""A pass leaves nothing behind: no hook, no mode, no graph that lives on, whatever failed and in whatever thread."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from plainly import both, checkpointed, leaf, lost, sliced
from torch.autograd.graph import saved_tensors_hooks
from users_functions import function

import zero_or_nan
from zero_or_nan import ignoring
from zero_or_nan.functions.graph import graph_from
from zero_or_nan.ignoring.engine import attach as threads


def left_behind(roots):
    """What a pass has left in the graph, in this thread or in a checkpoint."""
    found = []
    for node in graph_from(roots):
        for register in (node.register_hook, getattr(node, "register_prehook", None)):
            if register is not None:
                handle = register(lambda *_: None)
                if len(handle.hooks_dict_ref()) > 1:
                    found.append(f"hooks of {node.name()}")
                handle.remove()
        function = getattr(node, "run_function", None)
        if function is not None and "ignoring" in type(function).__module__:
            found.append("a checkpoint's function")
    if threads.current() is not None:
        found.append("the pass of this thread")
        threads.set_current(None)
    if torch._C._len_torch_dispatch_stack():
        found.append("a mode")
    if torch.autograd._profiler_enabled():
        found.append("the profiler")
    return found


def test_two_threads_on_one_retained_graph(each_way):
    def program(auto):
        x = leaf(3, 3)
        y = checkpointed(lambda x: x.exp().clamp(0.5, 2), True)(x * 1) * 1
        y[0].clamp_(0.6, 1.5)
        loss = lost(y)
        together = threading.Barrier(2)
        failures = []

        def work():
            try:
                for _ in range(10):
                    together.wait(10)
                    auto.backward(loss, retain_graph=True)
            except Exception as error:
                failures.append(repr(error))
                together.abort()

        workers = [threading.Thread(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return [failures, x.grad, left_behind([loss])]

    plain, ours = both(program)
    assert ours == plain and ours[0] == [] and ours[2] == []


class Failure(Exception):
    pass


FAILING = []
"""Not empty while what is to fail fails."""


def fail(*_):
    if FAILING:
        raise Failure


fails = function(lambda ctx, x: x * 1, lambda ctx, gradient: (fail(), gradient)[1])


def unpack(tensor):
    fail()
    return tensor


FAILURES = {
    "hook": lambda x, fine: (x.register_hook(fail), x)[1],
    "node hook": lambda x, fine: (x.grad_fn.register_hook(fail), x)[1],
    "derivative": lambda x, fine: fails(x),
    "recomputation": lambda x, fine: checkpointed(lambda x: (fail() if not fine else None, x.exp())[1], False)(x),
    "reentrant recomputation": lambda x, fine: checkpointed(lambda x: (fail(), x.exp())[1], True)(x),
    "derivative inside a reentrant checkpoint": lambda x, fine: checkpointed(lambda x: fails(x).exp(), True)(x),
    "a gradient of another shape": lambda x, fine: (
        x.register_hook(lambda g: g.new_zeros(7) if FAILING else None), x
    )[1],
    "unpacking at a slice": lambda x, fine: packed(sliced, x),
}  # fmt: skip


def packed(function, x):
    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        return function(x)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_pass_that_failed_leaves_nothing_behind(failure, each_way):
    def program(auto):
        x = leaf(3, 3)
        y = checkpointed(torch.tanh, True)(x * 1) + sliced(x * 1).clamp(0.1, 3)
        z = FAILURES[failure](y.exp() * 1, False)
        z = checkpointed(torch.tanh, True)(z) + sliced(z * 1).clamp(0.1, 3)
        loss = lost(torch.linalg.cholesky(z @ z.t() + torch.eye(3)))
        FAILING.append(True)
        try:
            auto.backward(loss, retain_graph=True)
            problem = None
        except Exception as error:
            problem = [type(error).__name__, str(error)]
        finally:
            FAILING.clear()
        left = left_behind([loss])
        x.grad = None
        torch.autograd.backward(loss, retain_graph=True)
        return [left, problem, x.grad]

    plain, ours = both(program)
    if failure in ("hook", "node hook"):  # the test's own hooks are there
        plain[0] = ours[0] = sorted(set(ours[0]) - set(plain[0]))
    assert ours == plain and ours[1] is not None and ours[0] == []


# Deep graphs, in a process of their own: where one is not freed well, the process dies.

DEEP = """
import gc, threading
import torch
from zero_or_nan import ignoring
from zero_or_nan.functions import graph
from zero_or_nan.ignoring.engine import passes

torch.set_num_threads(1)


def deep(length):
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    for number in range(length):
        y = y * 1.0
        if number == length // 2:
            half = y
    return x, y, half, y.sum()


def drop_the_loss_last(x, y, half, loss):
    del x, half, y
    del loss


def drop_the_middle_last(x, y, half, loss):
    del loss, x, y
    ignoring.backward(torch.ones(2, requires_grad=True).sum())
    del half


def read_by_hand(x, y, half, loss):
    node = loss.grad_fn
    for _ in range(1000):
        node = node.next_functions[0][0]
    del loss, x, half
    gc.collect()
    del y
    gc.collect()
    del node


def run(way, length):
    parts = list(deep(length))
    ignoring.backward(parts[-1])
    assert parts[0].grad.tolist() == [2.0, 2.0]
    way(*[parts.pop(0) for _ in range(4)])


def start(*arguments):
    print(*[getattr(argument, "__name__", argument) for argument in arguments], flush=True)
    thread = threading.Thread(target=run, args=arguments)
    thread.start()
    thread.join()


ways = (drop_the_loss_last, drop_the_middle_last, read_by_hand)
threading.stack_size(1 << 19)  # where a shorter graph is too deep already
for longest in (100_000, 50_000):
    for way in ways:
        start(way, 5_000)
        gc.disable()
        start(way, 5_000)
        gc.enable()
    run(drop_the_loss_last, longest)
    passes.is_safe = lambda *_: False  # the second time each pass is a careful one
parts = deep(50_000)
graph.held_from([parts[-1]])
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_deep_graphs_are_freed():
    script = f"import sys; sys.path.insert(0, {str(Path(zero_or_nan.__file__).parents[1])!r})\n" + DEEP
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=230)
    assert process.returncode == 0 and "done" in process.stdout, (process.stdout[-200:], process.stderr[-2000:])


def test_many_views_after_a_selection_take_linear_work():
    def calls(count):
        """The calls from Python that a pass makes: the same on every machine, which time is not."""
        made = []
        x = torch.ones(2, requires_grad=True)
        y = torch.where(x > 0, x, 0.0)
        for _ in range(count):
            y = y.view(2)
        loss = y[:1].sum()
        sys.setprofile(lambda frame, event, arg: made.append(None))
        try:
            ignoring.backward(loss)
        finally:
            sys.setprofile(None)
        assert x.grad.tolist() == [1.0, 0.0]
        return len(made)

    calls(100)
    assert calls(1000) < 4.25 * calls(250)
