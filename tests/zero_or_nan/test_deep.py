"""Graphs that are too deep for PyTorch to free one node inside the other, once Python has seen their nodes.

They are freed in a process of its own, because it dies where one is not freed well.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import zero_or_nan

PROGRAM = """
import gc, os, threading
import torch
from zero_or_nan import explain, ignoring
from zero_or_nan.explain import NotFiniteError
from zero_or_nan.functions import graph
from zero_or_nan.ignoring.engine import passes

torch.set_num_threads(1)
threading.stack_size(1 << 17)  # where 1,300 nodes are too deep already


def start(run, *arguments):
    print(run.__name__, *arguments, flush=True)
    thread = threading.Thread(target=run, args=arguments)
    thread.start()
    thread.join()


# What `explain` watches.


def chain(bad):
    y = torch.ones(2, requires_grad=True)
    if bad:
        y = y * torch.tensor([1.0, torch.nan])
    for _ in range(1_300):
        y = y.sin()
    return y[:1].sum()


def forward_alone():
    with explain() as report:
        chain(True)
    assert not report.origins


def forward_and_backward():
    for bad in (False, True):
        with explain() as report:
            loss = chain(bad)
            loss.backward()
            del loss
        assert len(report.origins) == bad


def a_total_that_keeps_its_graph():
    weight = torch.ones(2, requires_grad=True)
    with explain() as report:
        total = torch.zeros(())
        for step in range(1_300):
            loss = (weight[:1] * (torch.nan if step == 5 else 1.0)).sum()
            loss.backward(retain_graph=True)
            total = total + loss
        del total, loss
    assert len(report.origins) == 1


def on_failure():
    @explain.on_failure
    def step():
        loss = chain(True)
        loss.backward()
        return loss

    try:
        step()
    except NotFiniteError:
        return
    raise AssertionError


for run in (forward_alone, forward_and_backward, a_total_that_keeps_its_graph, on_failure):
    start(run)

# Passes of `ignoring`, after which the parts of a graph are let go in different orders.


def deep(length):
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    for number in range(length):
        y = y * 1.0
        if number == length // 2:
            half = y
    return {"x": x, "y": y, "half": half, "loss": y.sum()}


def read_by_hand(node):
    for _ in range(1000):
        node = node.next_functions[0][0]
    return node


def let_go(order, length):
    parts = deep(length)
    ignoring.backward(parts["loss"])
    assert parts["x"].grad.tolist() == [2.0, 2.0]
    for part in order.split():
        if part == "read":
            parts["node"] = read_by_hand(parts["loss"].grad_fn)
        elif part == "pass":
            ignoring.backward(torch.ones(2, requires_grad=True).sum())
        elif part == "collect":
            gc.collect()
        else:
            del parts[part]


ORDERS = ["x half y loss", "loss x y pass half", "read loss x half collect y collect node"]
for _ in ("quick", "careful"):
    for order in ORDERS:
        start(let_go, order, 1_300)
        gc.disable()
        start(let_go, order, 1_300)
        gc.enable()
    let_go(ORDERS[0], 10_000)
    passes.is_safe = lambda *_: False
parts = deep(10_000)
graph.held_from([parts["loss"]])
del parts
print("done", flush=True)
if torch.__version__.startswith("2.12."):  # leaves something in a thread that went backward, freed by Python as it ends
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_deep_graphs_are_freed():
    home = str(Path(zero_or_nan.__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {home!r})\n{PROGRAM}"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=490)
    assert process.returncode == 0, (process.stdout[-200:], process.stderr[-2000:])
    assert process.stdout.endswith("done\n") and "Error" not in process.stderr, process.stderr[-2000:]
