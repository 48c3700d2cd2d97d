"""`explain.probe`: which lines of a loss can fail, on which nearest input, and that it leaves nothing behind."""

import json
import os
import random
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.nn.functional as F
from sample import sample
from scratch import ROOT
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tools.measure.corpora import programs, variables
from tools.measure.probe import FILE
from zero_or_nan import explain
from zero_or_nan.explain.__main__ import main
from zero_or_nan.explain.probe import loss as of_losses
from zero_or_nan.explain.probe import probing
from zero_or_nan.explain.probe.candidates import kind_of

OWN = {program.name: program for program in programs(ROOT / FILE) if program.part == "own"}


@pytest.mark.parametrize("name", sample(OWN, 9))  # `make probe` searches all of them
def test_the_lines_that_can_fail_are_found_and_healthy_losses_are_not_blamed(name, tmp_path):
    names = variables(tmp_path, OWN[name].source)
    report = explain.probe(names["loss_fn"], *names["inputs"](), seconds=60)
    assert {finding.source for finding in report.findings} <= set(OWN[name].lines), report
    assert report.ok is not bool(OWN[name].lines), report
    for finding in report.findings:
        loss = names["loss_fn"](*finding.inputs)
        leaves = [each for each in finding.inputs if each.requires_grad]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        assert not all(bool(each.isfinite().all()) for each in (loss, *gradients) if each is not None)
        exec(finding.test, names)
        with pytest.raises(AssertionError):
            names["test_loss_fn_is_finite"]()


def softmax_log(logits, target):
    return -(target * logits.softmax(1).log()).sum(1).mean()


def test_the_factor_is_the_least_of_two_digits_and_the_remedy_is_tried_there():
    logits, target = torch.tensor([[1.0, -1.0, 0.0]], requires_grad=True), torch.tensor([[1.0, 0.0, 0.0]])
    (finding,) = explain.probe(softmax_log, logits, target).findings
    assert (finding.function, finding.kind, finding.distance) == ("log", "overflow", "logits is 52 times as large")
    assert not softmax_log(logits * 52, target).isfinite() and softmax_log(logits * 51, target).isfinite()
    assert "log_softmax(logits, dim=1)" in finding.remedy
    assert finding.file == __file__ and not finding.loss.isfinite() and set(finding.gradients) == {"logits"}
    assert "if logits is 52 times as large: the loss and the gradient of logits would not be finite" in str(finding)


def wants(*rows):
    return torch.tensor(rows, requires_grad=True)


def careful(p):
    if not bool((p > 0).all()):
        raise ValueError("not a probability")
    return p.log().mean()


NEAREST = {
    "row 0 of x is 0 everywhere": (
        lambda x: x.norm(dim=1).log().mean() if x.any() else x.sum(), wants([1.0, -2], [3, -1]),
    ),
    "the element [0, 0] of p is 0": (lambda p: p.log().mean(), wants([0.5, 0.3], [0.4, 0.9])),
    "row 0 of mask is False everywhere": (
        lambda x, mask: ((x * mask).sum(1) / mask.sum(1)).mean(), wants([1.0, -2], [3, -1]), torch.ones(2, 2).bool(),
    ),
    "a is the opposite of b in row 0": (
        lambda a, b: (a.reshape(2, 2, 2) + b).square().sum(-1).sqrt().mean(),
        wants([1.0, -2], [3, -1], [2, 2.5], [-1, 4]), wants([0.3, 1.7], [1.1, -2.3]),
    ),
    # A predicted box has a gradient, so its corners count nothing, even if the example has whole numbers.
    "boxes is equal to targets in row 0": (
        lambda boxes, targets: (boxes - targets).norm(dim=1).log().mean(),
        wants([10.0, 20.0], [30.0, 50.0]), torch.tensor([[11.0, 23.0], [28.0, 55.0]]),
    ),
    # Logits may be small at first.
    "x is 120 times as large": (lambda x: softmax_log(x, torch.eye(3)[:1]), wants([0.1, 0.9, 0.4])),
    "the inputs are those of the example": (lambda x: x.sqrt().sum(), wants(1.0, 0.0)),
}  # fmt: skip


ENDS = {
    "the element [0] of x is 1": (lambda x: torch.acos(x).mean(), wants(0.8, -0.4)),
    "the element [0] of x is -1": (lambda x: (1 + x).log().mean(), wants(0.8, -0.4)),
    "all of x is 0": (lambda x: x.square().mean().sqrt(), wants(0.5, 1.9)),
    "x is 0.5": (lambda y, x: (y / (1 - 2 * x)).mean(), wants(1.0, 2.0), torch.tensor(0.2)),
    "the element [1] of x is -1": (lambda x: (x / (1 + x)).mean(), wants(1.0, -2.5)),
    "row 0 of x is 0 everywhere": (
        lambda x: torch.func.vmap(lambda row: row.square().sum().sqrt())(x).mean(), wants([1.0, -2], [0.5, 3]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("distance", ENDS)
def test_the_end_of_a_range_and_a_pole_are_reached(distance):
    assert distance in [finding.distance for finding in explain.probe(*ENDS[distance]).findings]


def test_anomaly_mode_and_inference_mode_hide_nothing():
    batch = torch.tensor([1.0, 2.0]), torch.tensor([True, False])
    for mode in (torch.autograd.set_detect_anomaly(True), torch.inference_mode()):
        with mode:
            assert not explain.probe(lambda x, mask: (x * mask).sum() / mask.sum(), *batch).ok


def test_what_can_not_be_changed_is_said_and_refuses_nothing():
    graph, labels = torch.eye(3).to_sparse(), torch.tensor([0, 1, 2], dtype=torch.uint16)
    x = torch.randn(3, 4, requires_grad=True)
    assert explain.probe(lambda x, graph, y: F.cross_entropy(graph @ x, y.long()), x, graph, labels).ok
    assert explain.probe(lambda x: torch.pow(x, exponent=2).mean(), x).ok
    assert explain.probe(lambda x, boxes: x.abs().sum() + boxes.sum(), x, torch.zeros(0, 4)).ok
    report = explain.probe(lambda batch: batch.x.square().mean(), SimpleNamespace(x=x))
    assert report.notes == [probing.NO_TENSORS]


@pytest.mark.parametrize("distance", NEAREST)
def test_the_nearest_input_is_said_in_words(distance):
    (finding,) = explain.probe(*NEAREST[distance]).findings
    assert finding.distance == distance


def variance(x):
    return x.square().mean() - x.mean().square()


def test_a_loss_that_is_finite_but_off_by_more_than_half_is_found_with_the_call_that_lost_the_digits():
    (finding,) = explain.probe(variance, wants(0.1, -0.9, 0.4), seconds=60).findings
    assert (finding.kind, finding.function, finding.origin) == ("rounded", "sub", None)
    x = finding.inputs[0].detach()
    right, got = variance(x.double()), variance(x)
    assert got.isfinite() and (got - right).abs() > right / 2
    assert finding.exact == f"the loss is {got.item():.4g}, but {right.item():.4g} in float64"
    assert finding.distance.startswith("x is larger by") and finding.exact in str(finding)
    names = {"variance": variance}
    exec(finding.test, names)
    with pytest.raises(AssertionError, match="not close"):
        names["test_variance_is_right"]()
    names["variance"] = lambda x: variance(x.double())
    names["test_variance_is_right"]()


GRADES = torch.tensor([3.0, 0.0, 1.0])
HEALTHY = {
    "sums that are rounded, but not by half": (lambda x: (x - x.mean()).square().mean(), wants(0.1, -0.9, 0.4)),
    "a difference that only a number far away loses": (
        lambda x: ((x + torch.sqrt(x.square() + 4)) / 2).clamp_min(1e-7).log().square().mean(), wants(0.1, -0.9, 0.4)
    ),
    "a bound of a probability, which never exceeds 1": (
        lambda p: -(1 - p).clamp_min(torch.finfo(p.dtype).eps).log().mean(), wants(0.1, 0.8, 0.4)
    ),
    "a choice that rounding changes": (
        lambda x: x[(1e4 + x).argmax()] / x.abs().max().clamp_min(1e-9), wants(0.1, -0.9, 0.4)
    ),
    "far from the example, where float64 fails too": (lambda x: (99 - x**2).sqrt().mean(), wants(0.3, -0.5, 0.9)),
    "far, and negative": (lambda x: (x + 100).log().mean(), wants(3.0, -5.0)),
    "far, and above 1": (lambda p: (1.5 - p).log().mean(), wants(0.3, 0.5, 0.9)),
    "numbers up to 1 without a gradient are fractions, and do not grow": (
        lambda x, weight: weight * softmax_log(x, torch.eye(3)[:1]), torch.tensor([[0.1, 0.9, 0.4]]), wants(2.0)[0],
    ),
    "whole numbers without a gradient are grades of relevance, say, and grow by 10 at most": (
        lambda w, grades: (w * 2.0**grades).sum() / (2.0**grades).sum(), wants(0.3, 0.5, -1), GRADES
    ),
    "an exp that is too large by itself, even if its factor is 0": (
        lambda x, advantage: (x.exp() * advantage).mean(), wants(1.5, -0.5), torch.randn(2)
    ),
    "an assert keeps the function from where it would fail": (careful, torch.rand(4, requires_grad=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_loss_is_not_blamed(name):
    assert explain.probe(*HEALTHY[name]).ok


ZERO, ONE = torch.zeros(1), torch.ones(1)


@pytest.mark.parametrize(
    ("function", "loss_fn"),
    [
        ("log", lambda x: torch.log(x[0] + 2 * x[1] + 3).abs()),
        # A clamp passes no gradient on from beyond its end, so nothing fails there. At its end, a maximum always does.
        ("acos", lambda x: torch.acos(torch.minimum(F.normalize(x, dim=0)[:1], ONE)).sum()),
        ("sqrt", lambda x: (1 - torch.minimum(2 * x[:1] + x[1:], ONE)).sqrt().mean()),
        ("pow", lambda x: torch.maximum(4 - x.square().sum(), ZERO).pow(0.3).sum()),
    ],
)
def test_a_gradient_leads_where_no_special_input_does(function, loss_fn):
    report = explain.probe(loss_fn, wants(0.25, -1.5))
    assert [finding.function for finding in report.findings] == [function]


def test_the_end_of_a_clamp_is_reached_from_most_examples():
    """Halving the way alone reaches it from 3 of 6, because sums of neighbouring numbers skip the end."""

    def loss_fn(x):
        return torch.maximum(1 - 0.3 * x.square().sum(1), ZERO).sqrt().mean()

    examples = (torch.randn(4, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(6))
    assert sum(not explain.probe(loss_fn, x.requires_grad_()).ok for x in examples) > 3


def test_calls_that_were_searched_are_listed_unless_a_number_keeps_them_from_their_edge():
    def loss_fn(x):
        y = x.square() + 1
        z = y / 2 + y**3
        return (z + 1 / y + 2.0**x + y**0.5).mean()

    report = explain.probe(loss_fn, wants(1.0, -1.0))
    found = {(edge.function, edge.source.partition(" ")[0]) for edge in report.searched}
    assert report.ok and found == {("div", "return"), ("pow", "return")}
    assert "no failure was found here, which does not prove that these are safe" in str(report)


def test_the_kind_of_an_input():
    kinds = {
        "flags": torch.tensor([True, False]),
        "labels": torch.tensor([2, 0, 1]),
        "choices": torch.tensor([-1.0, 1.0]),
        "counts": torch.tensor([0.0, 3.0]),
        "distributions": torch.randn(3, 4).softmax(1),
        "log-distributions": torch.randn(3, 4).log_softmax(1),
        "directions": F.normalize(torch.randn(3, 4), dim=1),
        "fractions": torch.rand(4),
        "positives": torch.tensor([1.25, 0.5, 0.75]),
        "numbers": torch.tensor([-1.0, 0.3, 2.5]),
        "fixed": torch.randn(4, dtype=torch.complex64),
    }
    assert [kind_of(example) for example in kinds.values()] == list(kinds)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.calls, self.mode = 0, None

    def forward(self, x):
        self.calls += 1
        self.eval()
        self.train()
        random.random(), numpy.random.rand()
        self.layers[1].bias.grad = None
        return (torch.sigmoid(self.layers(x)) * 1e3).sigmoid().log().mean() + (x.sum(1) / x.norm(dim=1)).mean()


def everything(model):
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
    bits = [each.clone() for each in tensors]
    others = [p.requires_grad for p in model.parameters()], [p._version for p in model.parameters()]
    return bits, [*others, model.training, model.calls, random.getstate(), numpy.random.get_state()[1].tolist()]


@pytest.mark.parametrize("stops", [None, 1, 30])
def test_nothing_is_left_behind(stops):
    model, x = Model().eval(), torch.randn(6, 3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    left, grads = [stops], [parameter.grad for parameter in model.parameters()]

    def loss_fn(x):
        left[0] = None if left[0] is None else left[0] - 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return model(x)

    before, copy = everything(model), x.clone()
    if stops is None:
        assert not explain.probe(loss_fn, x).ok
    else:
        with pytest.raises(KeyboardInterrupt):
            explain.probe(loss_fn, x)
    after = everything(model)
    assert after[1] == before[1] and torch.equal(x, copy) and not x.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), grads, strict=True))


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, target):
        return -(target * (self.scale * torch.tensor([4.0, 1.0, -1.0])).softmax(0).log()).sum()


def test_parameters_are_found_by_name_and_their_values_are_in_the_finding():
    model = Temperature()
    (finding,) = explain.probe(model, torch.tensor([1.0, 0.0, 0.0])).findings
    assert finding.distance == f"all parameters are {finding.parameters['scale'].item():g} times as large"
    assert "parameter.data *=" in finding.test and model.scale.item() == 1 and model.scale.grad is None
    with torch.no_grad():
        model.scale.copy_(finding.parameters["scale"])
    assert not model(*finding.inputs).isfinite()


def test_the_same_seed_gives_the_same_findings():
    def loss_fn(x):
        return F.dropout(x, 0.5).exp().sum().log()

    reports = []
    for _ in range(2):
        torch.rand(1)  # the state of the random numbers outside of the search does not matter
        reports.append(explain.probe(loss_fn, wants(1.0, -2.0, 3.0), seed=7))
    assert not reports[0].ok and str(reports[0]) == str(reports[1])
    assert "torch.manual_seed(7)" in reports[0].findings[0].test


def test_errors_of_the_loss_are_the_users_on_the_example():
    for error, words, loss_fn, x, options in (
        (ValueError, "not a probability", careful, torch.zeros(4, requires_grad=True), {}),
        (TypeError, "needs the loss as a tensor of floats", lambda x: 1.0, torch.rand(4), {}),
        (ValueError, "nothing to differentiate", lambda x: x.double().mean(), torch.tensor([1, 2]), {}),
        (ValueError, "seconds=0 is not positive", careful, torch.rand(4), {"seconds": 0}),
    ):
        with pytest.raises(error, match=words):
            explain.probe(loss_fn, x, **options)


@pytest.fixture
def slow(monkeypatch):
    """A function that takes as many seconds as it is told, by a clock of its own."""
    now = [0.0]
    for module in (probing, of_losses):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes(seconds):
        now[0] += seconds

    return takes


@pytest.mark.parametrize(("seconds", "distances"), [(4.5, ["all of p is 0"]), (0.5, [])])
def test_what_was_found_when_the_time_is_up_is_kept_with_the_input_that_it_was_found_on(slow, seconds, distances):
    report = explain.probe(lambda p: [slow(1), p.log().mean()][1], torch.rand(8, requires_grad=True), seconds=seconds)
    assert [finding.distance for finding in report.findings] == distances
    assert report.notes == [
        f"the search was stopped after {seconds:g} seconds, and some inputs were not tried: pass a larger `seconds`"
    ]


@pytest.mark.parametrize(("seconds", "is_terminal"), [(60, True), (60, False), (1.5, True)])
def test_a_long_search_says_how_long_it_takes_and_counts_on_a_terminal(slow, monkeypatch, capsys, seconds, is_terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    x = torch.rand(8, 3, requires_grad=True)
    assert explain.probe(lambda p: [slow(0.5), p.square().mean()][1], x, seconds=seconds).ok
    first, _, counted = capsys.readouterr().err.partition("\n")
    said = re.fullmatch(r"explain.probe tries about (\d+) inputs, which takes about (\d+) seconds", first)
    assert bool(said) == (seconds == 60)
    if said:
        assert int(said[1]) / 2 == pytest.approx(int(said[2]), abs=3)
        assert ("\r3 inputs tried" in counted) == is_terminal and counted.endswith("\r\033[K" * is_terminal)


def test_a_slow_loss_is_tried_on_large_numbers_first(slow):
    x = torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, -3.0]], requires_grad=True)
    report = explain.probe(lambda *given: [slow(1), softmax_log(*given)][1], x, torch.eye(3)[:2], seconds=8)
    (finding,) = report.findings
    assert finding.function == "log" and "times as large" in finding.distance


def test_the_parameters_of_a_large_model_are_not_copied(monkeypatch):
    monkeypatch.setattr(of_losses, "MOST_WIDENED", 0)
    torch.manual_seed(0)
    model, x, target = nn.Linear(3, 400), torch.randn(2, 3), torch.eye(400)[:2]
    made = set()

    class Large(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.shape == model.weight.shape:
                made.add(result.dtype)
            return result

    def loss_fn(x, target):
        with Large():
            return softmax_log(model(x), target)

    with Large():
        (finding,) = explain.probe(loss_fn, x, target).findings
    assert int(re.findall(r"\d+", finding.distance)[0]) > 10  # float64 says that a number was lost on the way
    assert torch.float64 not in made


@pytest.mark.parametrize("returned", ["dict", "tuple", "rows"])
def test_the_loss_is_read_from_what_a_function_returns(returned):
    def loss_fn(x, options):
        rows = x["a"].sqrt() * options[0]
        return {"dict": {"loss": rows.mean()}, "tuple": (rows.mean(), x), "rows": rows}[returned]

    (finding,) = explain.probe(loss_fn, {"a": torch.rand(3, requires_grad=True)}, [2.0]).findings
    assert finding.distance == "the element [0] of x['a'] is 0"
    assert finding.test == ""  # the gradient of an input in a dict has no name to assert something of


@pytest.fixture
def searched(tmp_path, monkeypatch, capsys):
    """What the command prints of a script, and its exit status."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def search(source, *options):
        (tmp_path / "train.py").write_text(source)
        status = main(["--probe", *options, str(tmp_path / "train.py")])
        return status, "".join(capsys.readouterr())

    return search


SCRIPT = """
import torch

def loss_fn(p, y, *, eps=0.0):
    return -(y * (p + eps).log()).mean()

def step(model, x):
    return loss_fn(model(x).softmax(1), torch.eye(4)[[0, 1]])

torch.manual_seed(0)
model = torch.nn.Linear(3, 4)
loss = step(model, torch.randn(2, 3))
loss.backward()
print("trained")
"""


TOP = """
import torch, torch.nn.functional as F
step = lambda loss: loss.backward()
model, loss_fn, total = torch.nn.Linear(3, 4), torch.nn.L1Loss(), 0.0
for number in range(2):
    x, y = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]]), torch.eye(4)[[0, 1]]
    out = model(x)
    total += float(out.detach().sum())
    loss = -(y * out.softmax(1).log()).sum(1).mean() + 0 * loss_fn(out, y)
    loss.backward()
"""


LOOP = """
import torch
model = torch.nn.Linear(3, 4)
scale, std = torch.tensor(1.0), torch.tensor([0.2, 0.3, 0.4])
for x, mask in [(torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]]), torch.tensor([[1.0, 1, 0, 0], [1, 0, 1, 0]]))]:
    out = model(x / std)
{}
    loss.backward()
"""
MASK = """
import torch
model = torch.nn.Linear(3, 4)
x, m = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]]), torch.tensor([[True, False, True, True]] * 2)
{}.backward()
"""
MEAN = "lambda x, m: (model(x) * m).sum() / m.sum()"
IN_LOOP = {
    "    n = mask.sum().clamp(min=1)\n    loss = (out * mask).sum() / n / scale": "nothing was found",
    "    n = mask.sum()\n    loss = (out * mask).sum() / n / scale": "all of mask is 0",
    "    d = out.square().sum(1)\n    d.clamp_(min=1e-6)\n    loss = d.sqrt().mean()": "nothing was found",
    "    parts = []\n    parts.append((out * mask).sum() / mask.sum())\n    loss = sum(parts)": "mask is 0",
    "    parts = {}\n    parts['a'] = (out * mask).sum() / mask.sum()\n    loss = sum(parts.values())": "mask is 0",
    "    with torch.autocast('cpu'):\n        loss = (out * mask).sum() / mask.sum()": "mask is 0",
    "    loss = (out * mask).sum() / mask.sum()\n    if loss.item() > 9: continue": "mask is 0",
    "    loss = (out * mask).sum() / mask.sum()\n    model.eval(); loss.backward()": "mask is 0",
    "    model.loss = (out * mask).sum() / mask.sum()\n    loss = model.loss": "mask is 0",
    "    z = out * mask\n    loss = (z @ z.T).sum() / mask.sum()": "mask is 0",
    "    w = mask * 2\n    w = w / w.sum()\n    loss = (out * w).sum()": "mask is 0",
    "    try:\n        loss = (out * mask).sum() / mask.sum()\n        loss.backward()\n    except: pass": "mask is 0",
}
OF_FUNCTIONS = {
    f"a, b = lambda x: model(x).square().mean(), {MEAN}\n(a(x) + b(x, m))": "<lambda> (2): one line",
    "def make(eps):\n    def of(x, m): return (model(x) * m).sum() / (m.sum() + eps)\n    return of\n"
    "bad, good = make(0), make(1)\ngood(x, m)": "of: nothing",
    "def smooth(x): return x.square().mean()\n((model(x) * m).sum() / m.sum() + smooth(model(x)))": "the loss: one",
    "def smooth(x): return x.square().mean()\nexec('loss = (model(x) * m).sum() / m.sum() + smooth(model(x))')\n"
    "step = lambda: exec('loss.backward()')\nstep()\nmodel": "only a part of the loss",
    "def clip(v): return v.clamp(max=9)\nloss = clip((model(x) * m).sum() / m.sum())\nloss": "the loss: one line",
    "def of(x, m): return model(x), (model(x) * m).sum() / m.sum()\n(of(x, m)[1] / 2)": "of: one line",
    "head = torch.nn.Linear(4, 4).requires_grad_(False)\n"
    "def of(x): return -head(model(x)).softmax(1).log().mean()\nof(x)": "times as large",
    "def of(x, m):\n    loss = (model(x) * m).sum() / m.sum()\n    if not loss.isfinite(): raise SystemExit('nan')\n"
    "    return loss\nof(x, m)": "the loss itself stopped",
    "def of(x, *, m): return (model(x) * m).sum() / m.sum()\nof(x, m=m)": "all of m is False",
    "def of(**batch): return (model(batch['x']) * batch['m']).sum() / batch['m'].sum()\nof(x=x, m=m)": "m is False",
    "def of(x):\n    x = x.clone().requires_grad_()\n"
    "    return (torch.autograd.grad(model(x).sum(), x, create_graph=True)[0] / x).mean()\nof(x)": "of x is 0",
    f"inner = {MEAN}\ndef of(at): return inner([x][at], [m][at])\nof(0)": "all of m is False",
    f"mean, left = {MEAN}, iter([(x, m)])\ndef of(scale): return mean(*next(left)) * scale\nof(x.mean())": "m is False",
}


@pytest.mark.parametrize(("code", "said"), IN_LOOP.items())
def test_a_loss_is_cut_out_of_a_loop_with_all_that_changes_it(code, said, searched):
    status, printed = searched(LOOP.format(code))
    assert said in printed and status == int("nothing" not in said), printed


@pytest.mark.parametrize(("code", "said"), OF_FUNCTIONS.items())
def test_the_function_that_returned_a_loss_is_searched_with_its_own_batch(code, said, searched):
    assert said in searched(MASK.format(code))[1]


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        (SCRIPT, 1, ["step: one line can fail", "train.py:5"]),
        (SCRIPT.replace("eps=0.0", "eps=1e-6"), 0, ["step: nothing was found"]),
        (TOP, 1, ["the loss: one line can fail", "train.py:9", "def loss_fn_(x, y):", "F.log_softmax(out, dim=1)"]),
        (TOP.replace("loss.backward()", "(loss * 2 + out.square().mean()).backward()"), 1, ["train.py:9"]),
        (TOP.replace("    loss.backward()", "    step(loss)"), 1, ["train.py:9"]),
        ("import torch\nexec('torch.ones(2, requires_grad=True).sum().backward()')", 1, ["the loss as a function"]),
        ("print(1)", 1, ["ran no backward pass"]),
    ],
)
def test_the_command_searches_the_first_step_of_a_script(source, status, said, searched):
    found, printed = searched(source)
    assert found == status and all(words in printed for words in said)
    assert "loss_fn:" not in printed and "trained" not in printed


def test_the_command_prints_what_a_search_has_found_as_json(searched):
    status, printed = searched(SCRIPT, "--json")
    report = json.JSONDecoder().raw_decode(printed)[0]["step"]  # a slow search says so on stderr
    assert status == 1 and sorted(report) == ["findings", "notes", "ok", "runs", "searched", "seconds"]
    (finding,) = report["findings"]
    assert (
        " ".join(sorted(finding))
        == "bad_gradients distance exact file function kind line loss origin remedy source test"
    )
    assert (finding["function"], finding["line"], finding["loss"]) == ("log", 5, "nan")
    assert finding["bad_gradients"] == ["weight", "bias"]
    assert finding["origin"]["remedies"][0].keys() == {"code", "replaces", "tried"}


MARKED = """
import sys, pytest, torch

@pytest.mark.zero_or_nan(seconds=20)
def test_bad(tmp_path):
    return lambda p: p.log().mean() + 0 * sys.stderr.write("un" + "seen"), torch.rand(3, requires_grad=True)

@pytest.mark.zero_or_nan
def test_good():
    return lambda p: (p**2).mean(), torch.rand(3, requires_grad=True)

@pytest.mark.zero_or_nan
def test_nothing():
    pass

def test_plain():
    pass
"""


@pytest.mark.skipif(not entry_points(group="pytest11", name="zero_or_nan"), reason="needs an installed package")
def test_a_marked_test_fails_if_its_loss_can_and_the_plugin_imports_pytest_only(tmp_path):
    (tmp_path / "test_losses.py").write_text(MARKED)
    only = "import sys\nassert 'zero_or_nan_pytest' in sys.modules and not {'torch', 'zero_or_nan'} & {*sys.modules}"
    (tmp_path / "conftest.py").write_text(only)
    path = {"PYTHONPATH": str(Path(explain.__init__.__code__.co_filename).parents[2])}
    command = [sys.executable, "-m", "pytest", "--strict-markers", "test_losses.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **path})
    assert "2 failed, 2 passed" in done.stdout and "unseen" not in done.stdout, done.stdout
    assert "if the element [0] of p is 0" in done.stdout and "return loss_fn, x, y" in done.stdout
