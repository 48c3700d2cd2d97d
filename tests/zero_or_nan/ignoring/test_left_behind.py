"""A pass leaves nothing behind: no hook, no mode, no graph that lives on, whatever failed and in whatever thread."""

import gc
import os
import sys
import threading
from unittest.mock import Mock

import pytest
import torch
from plainly import both, checkpointed, leaf, lost, sliced
from torch.autograd.graph import saved_tensors_hooks
from users_functions import function

from zero_or_nan import ignoring
from zero_or_nan.functions import graph as lifetimes
from zero_or_nan.functions.graph import graph_from
from zero_or_nan.ignoring.engine import attach as threads
from zero_or_nan.masks.cotangent import Cotangent


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


FAILING = []
"""Not empty while what is to fail fails."""


def fail(*_):
    if FAILING:
        raise LookupError


fails = function(lambda ctx, x: x * 1, lambda ctx, gradient: (fail(), gradient)[1])


def unpack(tensor):
    fail()
    return tensor


FAILURES = {
    "hook": lambda x: (x.register_hook(fail), x)[1],
    "derivative": lambda x: fails(x),
    "reentrant recomputation": lambda x: checkpointed(lambda x: (fail(), x.exp())[1], True)(x),
    "derivative inside a reentrant checkpoint": lambda x: checkpointed(lambda x: fails(x).exp(), True)(x),
    "a gradient of another shape": lambda x: (x.register_hook(lambda g: g.new_zeros(7) if FAILING else None), x)[1],
    "unpacking at a slice": lambda x: packed(sliced, x),
}  # fmt: skip


def packed(function, x):
    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        return function(x)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_pass_that_failed_leaves_nothing_behind(failure, each_way):
    def program(auto):
        x = leaf(3, 3)
        y = checkpointed(torch.tanh, True)(x * 1) + sliced(x * 1).clamp(0.1, 3)
        z = FAILURES[failure](y.exp() * 1)
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
    if failure == "hook":  # the test's own hooks are there
        plain[0] = ours[0] = sorted(set(ours[0]) - set(plain[0]))
    assert ours == plain and ours[1] is not None and ours[0] == []


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


# Deep graphs are kept no longer than anybody needs them, whatever the passes over them were.


def chain(start):
    for _ in range(lifetimes.DEEP + 10):
        start = start.sin()
    return start


def in_threads(first, second, x):
    threads = [threading.Thread(target=ignoring.backward, args=(loss, None, True)) for loss in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


PASSES = {
    "one by one": lambda first, second, x: [ignoring.backward(loss, retain_graph=True) for loss in (first, second)],
    "recorded": lambda first, second, x: ignoring.grad(first, x, create_graph=True),
    "in threads": in_threads,
}


def held():
    gc.collect()
    lifetimes.DEEP_GRAPHS.sweep()
    return sum(map(len, lifetimes.DEEP_GRAPHS._held)), len(lifetimes.DEEP_GRAPHS._known)


@pytest.mark.parametrize("contaminated", [False, True], ids=["clean", "contaminated"])
@pytest.mark.parametrize("passes", PASSES.values(), ids=PASSES)
def test_nothing_is_held_when_the_losses_are_gone(passes, contaminated):
    before = held()
    x = torch.ones(2, requires_grad=True)
    if contaminated:
        x.data[1] = torch.nan
    trunk = chain(x)
    first, second = chain(trunk)[:1].sum(), (trunk * trunk)[:1].sum()
    passes(first, second, x)
    if lifetimes._keeps_its_object():
        assert sum(map(len, lifetimes.DEEP_GRAPHS._held)) > before[0]
    del first, second, trunk
    assert held() == before


@pytest.mark.skipif(not lifetimes._keeps_its_object(), reason="this PyTorch frees a deep graph without help")
def test_ctrl_c_in_a_sweep_does_not_end_all_others(monkeypatch):
    before = held()
    loss = chain(torch.ones(2, requires_grad=True)).sum()
    ignoring.backward(loss)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(lifetimes, "_is_free", Mock(side_effect=KeyboardInterrupt))
        lifetimes.DEEP_GRAPHS.sweep()
    del loss
    assert held() == before


@pytest.mark.parametrize("built", [False, True])
def test_whether_there_are_other_devices_is_told_without_setting_one_up(built, monkeypatch):
    def raises():
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", raises)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", raises)
    assert not threads._other_devices()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert threads._other_devices()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_is_forked_while_another_thread_has_the_lock():
    taken, done = threading.Event(), threading.Event()

    def work():
        with lifetimes.DEEP_GRAPHS._lock:
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert taken.wait(60)
    child = os.fork()
    if not child:
        free = lifetimes.DEEP_GRAPHS._lock.acquire(timeout=30)
        os._exit(0 if free else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_write_into_a_slice_leaves_no_cotangent_for_the_garbage_collector():
    """A program may write into hundreds of slices of a large tensor."""
    gc.collect()
    gc.disable()
    try:
        x = torch.ones(3, 2, requires_grad=True)
        y = x * 1
        y[0] = x[0].log()
        torch.view_as_complex(y[1]).mul_(2)
        ignoring.grad(torch.where(y > 0.5, y, 0.0).sum(), x)
        assert not any(type(thing) is Cotangent for thing in gc.get_objects())
    finally:
        gc.enable()
