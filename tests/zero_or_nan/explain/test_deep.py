"""Graphs that are too deep for PyTorch to free one node inside the other, once Python has seen their nodes."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading
import torch
from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError

torch.set_num_threads(1)


def chain(length, bad):
    y = torch.ones(2, requires_grad=True)
    if bad:
        y = y * torch.tensor([1.0, torch.nan])
    for _ in range(length):
        y = y.sin()
    return y[:1].sum()


def forward_alone():
    with explain() as report:
        chain(2_500, True)
    assert not report.origins


def forward_and_backward():
    for bad in (False, True):
        with explain() as report:
            loss = chain(2_500, bad)
            loss.backward()
            del loss
        assert len(report.origins) == bad


def a_total_that_keeps_its_graph():
    weight = torch.ones(2, requires_grad=True)
    with explain() as report:
        total = torch.zeros(())
        for step in range(2_500):
            loss = (weight[:1] * (torch.nan if step == 5 else 1.0)).sum()
            loss.backward(retain_graph=True)
            total = total + loss
        del total, loss
    assert len(report.origins) == 1


def on_failure():
    @explain.on_failure
    def step():
        loss = chain(2_500, True)
        loss.backward()
        return loss

    try:
        step()
    except NotFiniteError:
        return
    raise AssertionError


threading.stack_size(1 << 18)  # where 2,500 nodes are too deep already
for run in (forward_alone, forward_and_backward, a_total_that_keeps_its_graph, on_failure):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    print(run.__name__, flush=True)
if torch.__version__.startswith("2.12."):  # leaves something in a thread that went backward, freed by Python as it ends
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_deep_graphs_are_freed():
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=290)
    assert process.returncode == 0, (process.stdout[-200:], process.stderr[-2000:])
    assert process.stdout.count("\n") == 4 and "Error" not in process.stderr, process.stderr[-2000:]
