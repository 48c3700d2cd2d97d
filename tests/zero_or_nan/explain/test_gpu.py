"""What is different on a GPU, as far as a CPU can show it.

There PyTorch computes backward in threads of its own, kernels assert instead of raising errors, numbers can't be read
while a CUDA graph is captured, and users set another default device.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from origins import failure, report_of, told
from torch import nn, ones, tensor
from torch.utils.checkpoint import checkpoint

from zero_or_nan import explain, ignoring
from zero_or_nan.explain.births.findings import Mistakes
from zero_or_nan.explain.program import rerun
from zero_or_nan.ignoring.engine import attach

# Threads.


@pytest.fixture
def passes_inside_in_another_thread(monkeypatch):
    """As on a GPU, a reentrant checkpoint runs its pass in a thread that works for the one that began backward."""
    start, here = torch.autograd.backward, threading.get_ident()

    def work(*args, **kwargs):
        attach._keep_in_tls(attach._HOME, here)
        x = ones(1, requires_grad=True)
        x.register_hook(lambda gradient: start(*args, **kwargs))
        x.backward()

    def backward(*args, **kwargs):
        if attach.engine_run() == -1:
            return start(*args, **kwargs)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(work, *args, **kwargs).result()

    monkeypatch.setattr(torch.autograd, "backward", backward)


def step_of(w):
    def step():
        x = ones(2, requires_grad=True)
        checkpoint(lambda x: (w * x).log(), x, use_reentrant=True).sum().backward()

    return step


@pytest.mark.usefixtures("passes_inside_in_another_thread")
def test_the_pass_inside_of_an_extra_pass_adds_to_no_gradient():
    w = ones(2, requires_grad=True)
    report_of(lambda: report_of(step_of(w)))
    explain.on_failure(lambda: report_of(step_of(w)) and None)()
    assert torch.equal(w.grad, 2 * ones(2))
    bad = tensor([0.0, 1.0], requires_grad=True)
    report = failure(explain.on_failure(step_of(bad)))
    assert bad.grad is None and told(report) == [("undefined", "forward", "log")]


# Asserts.

WRONG = {
    "an index": lambda: ones(2).gather(0, tensor([2])),
    "a place to add to": lambda: torch.zeros(2).scatter_add(0, tensor([5]), ones(1)),
    "an element": lambda: ones(2).take(tensor([2])),
    "a row to fill": lambda: ones(2).index_fill(0, tensor([2]), 1.0),
    "an index in brackets": lambda: ones(2, 3)[:, tensor([3])],
    "an index after a mask": lambda: ones(2, 3, 2)[ones(2, 3) > 0, tensor([2] * 6)],
    "a token": lambda: F.embedding(tensor([2]), ones(2, 3)),
    "tokens": lambda: F.embedding_bag(tensor([[2]]), ones(2, 3)),
    "a label with a margin": lambda: F.multi_margin_loss(ones(1, 2), tensor([2])),
    "one of several labels": lambda: F.multilabel_margin_loss(ones(1, 2), tensor([[2, -1]])),
    "a label": lambda: F.cross_entropy(ones(1, 2), tensor([2])),
    "a probability": lambda: F.binary_cross_entropy(tensor([1.1]), ones(1)),
    "a probability of NaN": lambda: F.binary_cross_entropy(tensor([torch.nan]), ones(1)),
    "a probability to draw by": lambda: torch.bernoulli(tensor([1.5])),
    "weights to draw by": lambda: torch.multinomial(tensor([0.0, 0.0]), 1),
    "a rate": lambda: torch.poisson(tensor([-1.0])),
    "a place in a larger image": lambda: F.max_unpool1d(ones(1, 1, 1), tensor([[[7]]]), 2),
    "a count": lambda: ones(2).repeat_interleave(tensor([-1, 1])),
    "an assert": lambda: torch._assert_async(tensor(False)),
}


def right():
    """Calls that no kernel refuses."""
    yield ones(2).gather(0, tensor([1]))
    yield ones(()).gather(0, tensor(0))
    yield ones(2).gather(0, torch.empty(0, dtype=torch.long))
    yield ones(2, 3)[:, tensor([-3, 2])]
    yield ones(2, 3)[ones(2, 3) > 0]
    yield ones(2).take(tensor([-2]))
    yield F.cross_entropy(ones(2, 2), tensor([1, -100]))
    yield F.cross_entropy(ones(2), tensor(1))
    yield F.binary_cross_entropy(tensor([0.0, 1.0]), ones(2))
    yield torch.bernoulli(tensor([1.0]))
    yield ones(2).bernoulli_(0.5)


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(rerun, "are_possible", lambda: True)


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_what_a_kernel_would_assert_is_refused_before_it_runs(call):
    with pytest.raises(Exception):  # noqa: B017  (the CPU's own errors are of many kinds)
        call()
    with rerun.without_asserts(), pytest.raises(IndexError, match="out of range"):
        call()
    with rerun.without_asserts():
        assert len(list(right())) == 11


@pytest.mark.usefixtures("on_a_gpu")
def test_the_search_refuses_them_and_finds_the_same(monkeypatch):
    """If `explain.probe` takes one row of `embeddings`, the other anchors are out of range."""
    refused, would_assert = [], rerun.would_assert
    monkeypatch.setattr(rerun, "would_assert", lambda *call: would_assert(*call) and not refused.append(call[0]))

    def loss(embeddings, anchors):
        return -embeddings[anchors].softmax(1).log().mean()

    report = explain.probe(loss, torch.randn(4, 3, requires_grad=True), tensor([3, 2, 1, 0]))
    assert refused and [finding.function for finding in report.findings] == ["log"]


# The default device.


def test_what_explain_makes_is_on_the_device_of_the_program():
    """A program on the CPU, where new tensors have no numbers, stands for one on a GPU, where they are on the GPU."""
    x, rows, labels = tensor([0.0, 200.0], requires_grad=True), torch.randn(4, 3), tensor([0, 1, 2, 0])
    counts, end = tensor([5, 2, 4, 3]), torch.ones(4)

    def prior(counts, labels):
        return -(counts / counts.sum())[labels].log().mean()

    def angle(rows):
        return torch.acos(torch.minimum(F.normalize(rows, dim=1)[:, 2], end)).mean()

    def said():
        x.grad = None
        report = report_of(lambda: x.softmax(0).log().sum().backward())
        probed = [explain.probe(angle, rows), explain.probe(prior, counts.double(), labels)]
        return [str(each).replace(", device='cpu'", "") for each in (report, *probed)]

    expected = said()
    with torch.device("meta"):
        assert said() == expected


def test_a_pack_is_unpacked_on_its_own_device():
    rows, lengths, w = ones(3, 2, 4), tensor([3, 1]), ones(4, requires_grad=True)
    rows[1:, 1] = torch.nan
    packed = nn.utils.rnn.pack_padded_sequence(rows * w, lengths)
    result = nn.GRU(4, 2)(packed)[0].data.sum()
    with torch.device("meta"):
        ignoring.backward(result)
    assert w.grad.isfinite().all()


# A graph that is captured.


def test_nothing_is_read_while_a_graph_is_captured(monkeypatch):
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    report = report_of(lambda: tensor([0.0, 1.0], requires_grad=True).log().sum().backward())
    assert report.ok and "was captured in a CUDA graph" in report.notes[0] and not report.passes
    loss = ones(2, requires_grad=True).log().sum()
    for call in (lambda: ignoring.backward(loss), lambda: ignoring.grad(loss, [loss])):
        with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
            call()


def test_a_captured_graph_runs_once():
    """Its backward writes over what its forward pass saved, so a second run gives other gradients."""
    runs = []

    class Graphed(torch.autograd.Function):
        __module__ = "torch.cuda.graphs"

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            runs.append(1)
            return gradient * 2

    x = tensor([0.0, 1.0], requires_grad=True)
    report = report_of(lambda: torch.where(x > 0, Graphed.apply(x).log(), 0).sum().backward())
    assert len(runs) == 1 and told(report) == [("undefined", "forward", "log")]


def test_random_numbers_of_a_gpu_count(monkeypatch):
    states = [tensor([1])]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(states))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", states.__setitem__)
    before = rerun.RandomState.now()
    assert not before.has_changed()
    states[0] = tensor([2])
    assert before.has_changed()


def test_what_fails_after_an_assert_is_no_mistake_of_ours(monkeypatch):
    """PyTorch itself tells the user that the GPU refuses every call. Warnings are errors here."""
    monkeypatch.setattr(Mistakes, "are_raised", False)
    mistakes = Mistakes()
    mistakes.note("log", RuntimeError("CUDA error: device-side assert triggered"))
    mistakes.warn(1)
    mistakes = Mistakes()
    mistakes.note("log", torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.warns(UserWarning, match="left too little"):
        mistakes.warn(1)
