"""Deep graphs are kept no longer than anybody needs them, whatever the passes over them were."""

import contextlib
import gc
import os
import sys
import threading

import pytest
import torch
import torch.utils.checkpoint
from tensors import leaf

from zero_or_nan import ignoring
from zero_or_nan.functions import graph as lifetimes
from zero_or_nan.ignoring.engine import attach as threads
from zero_or_nan.masks.cotangent import Cotangent

DEEP = lifetimes.DEEP + 10


def chain(start, length=DEEP):
    for _ in range(length):
        start = start.sin()
    return start


def once(first, second):
    ignoring.backward(first + second)


def each_by_itself(first, second):
    ignoring.backward(first, retain_graph=True)
    ignoring.backward(second)


def for_an_input(first, second, **recorded):
    *_, last = lifetimes.graph_from([first])
    ignoring.grad(first, [last.variable], **recorded)


def recorded(first, second):
    for_an_input(first, second, create_graph=True)


def in_threads(first, second):
    threads = [threading.Thread(target=ignoring.backward, args=(loss, None, True)) for loss in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def held():
    gc.collect()
    lifetimes.DEEP_GRAPHS.sweep()
    return sum(map(len, lifetimes.DEEP_GRAPHS._held)), len(lifetimes.DEEP_GRAPHS._known)


@pytest.mark.parametrize("contaminated", [False, True], ids=["clean", "contaminated"])
@pytest.mark.parametrize("passes", [once, each_by_itself, for_an_input, recorded, in_threads])
def test_nothing_is_held_when_the_losses_are_gone(passes, contaminated):
    before = held()
    x = leaf(1.0, 1.0)
    if contaminated:
        x.data[1] = torch.nan
    trunk = chain(x)
    first, second = chain(trunk)[:1].sum(), (trunk * trunk)[:1].sum()
    passes(first, second)
    if lifetimes._keeps_its_object():
        assert sum(map(len, lifetimes.DEEP_GRAPHS._held)) > before[0]
    del first, second, trunk
    assert held() == before


def test_ctrl_c_in_a_sweep_does_not_end_all_others(monkeypatch):
    before = held()
    loss = chain(leaf(1.0, 1.0)).sum()
    ignoring.backward(loss)
    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(lifetimes, "_is_free", interrupted)
        lifetimes.DEEP_GRAPHS.sweep()
    del loss
    assert held() == before


def interrupted(nodes):
    raise KeyboardInterrupt


@pytest.mark.parametrize("built", [False, True])
def test_whether_there_are_other_devices_is_told_without_setting_one_up(built, monkeypatch):
    def raises():
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", raises)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", raises)
    assert not threads._other_devices()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert threads._other_devices() is built


@pytest.mark.parametrize("others", [False, True])
def test_a_pass_is_known_in_its_thread_and_forgotten_after_it(others, monkeypatch):
    monkeypatch.setattr(threads, "_other_devices", lambda: others)
    seen = []
    x = torch.tensor([1.0, torch.nan], requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append(threads.current()))
    ignoring.backward(torch.where(x > 0, y.exp(), 0.0).sum())
    assert seen[0] is not None and threads.current() is None
    assert threads._take_out is None or not torch._C._is_key_in_tls(threads._KEY)
    torch.where(x > 0, (x * 3).exp(), 0.0).sum().backward()
    x.grad = None
    ignoring.backward(torch.where(x > 0, x.log(), 0.0).sum())
    assert x.grad.tolist() == [1.0, 0.0]


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


def test_what_is_stashed_inside_of_a_pass_is_given_back_once(monkeypatch):
    nobody = threads._Nobody()
    kept = [nobody] * 5  # where it is given back too often, the test fails and nothing crashes
    monkeypatch.setattr(threads, "_NOBODY", nobody)
    threads._takes_too_much.cache_clear()
    before = sys.getrefcount(nobody)
    y = leaf(1.0, 1.0) * 1
    y.register_hook(lambda gradient: threads.set_current(None))
    y.sum().backward()
    assert sys.getrefcount(nobody) == before and kept


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
