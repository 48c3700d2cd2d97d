"""`explain.probe`: which lines of a loss can fail, on which nearest input, and that it leaves nothing behind."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zero_or_nan import explain
from zero_or_nan.explain.probe import probing
from zero_or_nan.explain.probe.candidates import Input, candidates, kind_of
from zero_or_nan.explain.probe.loss import Case

TEXT = Path(__file__).with_name("losses.md").read_text(encoding="utf-8")
OWN = {
    name: (re.findall(r"(?m)^- line: `(.*)`$", facts), code)
    for name, facts, code in re.findall(
        r"(?ms)^### (\w+)\n(.*?)^```python\n(.*?)^```$", re.search(r"(?ms)^## own\n(.*?)(?=^## |\Z)", TEXT)[1]
    )
}


def loaded(name, folder):
    """A loss of the file, with its example."""
    path = folder / f"{name}.py"
    path.write_text(f"import torch\nimport torch.nn.functional as F\nfrom torch import nn\n{OWN[name][1]}")
    names = {"__name__": name}
    exec(compile(path.read_text(), str(path), "exec"), names)
    torch.manual_seed(0)
    return names["loss_fn"], names["inputs"]()


@pytest.mark.parametrize("name", OWN)
def test_the_lines_that_can_fail_are_found_and_healthy_losses_are_not_blamed(name, tmp_path):
    loss_fn, inputs = loaded(name, tmp_path)
    report = explain.probe(loss_fn, *inputs, seconds=60)
    lines = OWN[name][0]
    assert {finding.source for finding in report.findings} <= set(lines), report
    assert report.ok is not bool(lines), report
    for finding in report.findings:
        loss = loss_fn(*finding.inputs)
        leaves = [each for each in finding.inputs if each.requires_grad]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        assert not all(bool(each.isfinite().all()) for each in (loss, *gradients) if each is not None)
        names = {"loss_fn": loss_fn}
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


def test_one_row_and_one_element_are_enough():
    (finding,) = explain.probe(lambda x: x.norm(dim=1).log().mean(), torch.randn(5, 3, requires_grad=True)).findings
    assert finding.distance == "row 0 of x is 0 everywhere"
    (finding,) = explain.probe(lambda p: p.log().mean(), torch.rand(2, 3, requires_grad=True)).findings
    assert finding.distance == "the element [0, 0] of p is 0"


def test_a_row_without_a_target():
    def loss_fn(x, mask):
        return ((x * mask).sum(1) / mask.sum(1)).mean()

    mask = torch.tensor([[True, False], [True, True]])
    (finding,) = explain.probe(loss_fn, torch.randn(2, 2, requires_grad=True), mask).findings
    assert (
        finding.distance == "row 0 of mask is False everywhere"
        or finding.distance == "the element [0, 0] of mask is False"
    )


@pytest.mark.parametrize("loss_fn", [lambda x: (1 - x**2).sqrt().mean(), lambda x: (x + 40).log().mean()])
def test_an_input_far_from_the_example_is_not_blamed_if_float64_fails_there_too(loss_fn):
    assert explain.probe(loss_fn, torch.tensor([0.3, -0.5, 0.9], requires_grad=True)).ok


def test_a_batch_of_one_row_is_a_note():
    def loss_fn(advantage):
        return ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).abs().mean()

    report = explain.probe(loss_fn, torch.tensor([[1.0], [-2.0], [0.5]], requires_grad=True))
    assert report.ok and ["a batch of one row is not finite" in note for note in report.notes] == [True]


def test_calls_that_were_searched_are_listed_as_searched():
    report = explain.probe(lambda x: (2 + x.tanh()).log().mean(), torch.randn(4, requires_grad=True))
    assert report.ok and [edge.function for edge in report.searched] == ["log"]
    assert "searched without success, which does not prove that they are safe" in str(report)


def test_a_number_may_keep_a_call_from_its_edge():
    def loss_fn(x):
        y = x.square() + 1
        return (y / 2 + y**3 + 1 / y + 2.0**x + y**0.5).mean()

    report = explain.probe(loss_fn, torch.tensor([1.0, -1.0], requires_grad=True))
    assert report.ok and [edge.function for edge in report.searched] == ["div", "pow"]


def test_an_input_keeps_its_kind():
    kinds = {
        "flags": torch.tensor([True, False]),
        "labels": torch.tensor([2, 0, 1]),
        "choices": torch.tensor([-1.0, 1.0]),
        "counts": torch.tensor([0.0, 3.0]),
        "distributions": torch.randn(3, 4).softmax(1),
        "log-distributions": torch.randn(3, 4).log_softmax(1),
        "directions": F.normalize(torch.randn(3, 4), dim=1),
        "fractions": torch.rand(4),
        "positives": torch.rand(4) + 0.5,
        "numbers": torch.randn(4),
        "fixed": torch.randn(4, dtype=torch.complex64),
    }
    kinds["positives"][0], kinds["numbers"][0] = 1.25, -1.0
    assert [kind_of(example) for example in kinds.values()] == list(kinds)
    for kind, example in kinds.items():
        for candidate in candidates(Case((example,)), [Input("x", example, kind, False)], []):
            (x,) = candidate.case.tensors
            if kind == "labels":
                assert x.min() >= 0 and x.max() <= 2
            elif kind in ("distributions", "directions", "log-distributions"):
                assert kind_of(x) in (kind, "distributions")
            elif kind == "positives":
                assert x.min() > 0
            elif kind != "numbers":
                assert kind_of(x) in (kind, "choices")


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


def test_two_models_may_have_the_same_names():
    one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    (finding,) = explain.probe(lambda x: (one(x) + other(x)).sigmoid().log().mean(), torch.randn(3, 2)).findings
    assert len(finding.gradients) == 4 and {"weight", "bias"} < set(finding.gradients)


def test_the_same_seed_gives_the_same_findings():
    def loss_fn(x):
        return F.dropout(x, 0.5).exp().sum().log()

    reports = [explain.probe(loss_fn, torch.tensor([1.0, -2.0, 3.0], requires_grad=True), seed=7) for _ in range(2)]
    assert not reports[0].ok and str(reports[0]) == str(reports[1])
    assert "torch.manual_seed(7)" in reports[0].findings[0].test


def test_errors_of_the_loss_are_the_users_on_the_example_and_a_refusal_elsewhere():
    def careful(p):
        if not bool((p > 0).all()):
            raise ValueError("not a probability")
        return p.log().mean()

    assert explain.probe(careful, torch.rand(4, requires_grad=True)).ok
    with pytest.raises(ValueError, match="not a probability"):
        explain.probe(careful, torch.zeros(4, requires_grad=True))
    with pytest.raises(TypeError, match="needs the loss as a tensor of floats"):
        explain.probe(lambda x: 1.0, torch.rand(4))
    with pytest.raises(ValueError, match="nothing to differentiate"):
        explain.probe(lambda x: x.double().mean(), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="seconds=0 is not positive"):
        explain.probe(careful, torch.rand(4), seconds=0)


def test_an_example_that_fails_is_a_finding():
    (finding,) = explain.probe(lambda x: x.sqrt().sum(), torch.tensor([1.0, 0.0], requires_grad=True)).findings
    assert (finding.function, finding.distance) == ("sqrt", "the inputs are those of the example")


def test_the_search_says_that_its_time_was_up():
    report = explain.probe(softmax_log, torch.randn(2, 3, requires_grad=True), torch.eye(3)[:2], seconds=1e-6)
    assert report.notes == [
        "the search was stopped after 1e-06 seconds, and some inputs were not tried: pass a larger `seconds`"
    ]


def test_what_was_found_when_the_time_is_up_is_kept_with_the_input_that_it_was_found_on(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(probing, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes_a_second(p):
        now[0] += 1
        return p.log().mean()

    report = explain.probe(takes_a_second, torch.rand(8, requires_grad=True), seconds=4.5)
    assert [finding.distance for finding in report.findings] == ["all of p is 0"] and len(report.notes) == 1


@pytest.mark.parametrize("returned", ["dict", "tuple", "rows"])
def test_the_loss_is_read_from_what_a_function_returns(returned):
    def loss_fn(x, options):
        rows = x["a"].sqrt() * options[0]
        return {"dict": {"loss": rows.mean()}, "tuple": (rows.mean(), x), "rows": rows}[returned]

    (finding,) = explain.probe(loss_fn, {"a": torch.rand(3, requires_grad=True)}, [2.0]).findings
    assert finding.distance == "the element [0] of x['a'] is 0"
    assert finding.test == ""  # the gradient of an input in a dict has no name to assert something of


def test_a_gradient_leads_where_no_special_input_does():
    def loss_fn(x):
        return torch.log(x[0] + 2 * x[1] - 0.5 * x[2] + 4).abs()

    report = explain.probe(loss_fn, torch.tensor([1.5, -0.5, 1.0], requires_grad=True))
    assert [finding.function for finding in report.findings] == ["log"]


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


def ran(*arguments, folder):
    path = {"PYTHONPATH": str(Path(explain.__init__.__code__.co_filename).parents[2])}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, **path})


def test_the_command_searches_the_first_step_of_a_script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = ran("zero_or_nan.explain", "--probe", "train.py", folder=tmp_path)
    assert done.returncode == 1 and "trained" not in done.stdout, done.stderr
    assert "step: one line can fail" in done.stdout and "train.py:5" in done.stdout
    (tmp_path / "train.py").write_text(SCRIPT.replace("eps=0.0", "eps=1e-6"))
    done = ran("zero_or_nan.explain", "--probe", "train.py", folder=tmp_path)
    assert (done.returncode, done.stdout.partition(" (")[0]) == (0, "step: nothing was found")


def test_the_command_says_that_no_function_returned_the_loss(tmp_path):
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(2, requires_grad=True).sum().backward()\n")
    done = ran("zero_or_nan.explain", "--probe", "train.py", folder=tmp_path)
    assert done.returncode == 1 and "write the loss as a function" in done.stderr
    (tmp_path / "train.py").write_text("print(1)\n")
    assert "ran no backward pass" in ran("zero_or_nan.explain", "--probe", "train.py", folder=tmp_path).stderr


MARKED = """
import pytest, torch

@pytest.mark.zero_or_nan(seconds=20)
def test_bad(tmp_path):
    return lambda p: p.log().mean(), torch.rand(3, requires_grad=True)

@pytest.mark.zero_or_nan
def test_good():
    return lambda p: (p**2).mean(), torch.rand(3, requires_grad=True)

@pytest.mark.zero_or_nan
def test_nothing():
    pass

def test_plain():
    pass
"""


def test_a_marked_test_fails_if_its_loss_can(tmp_path):
    (tmp_path / "test_losses.py").write_text(MARKED)
    done = ran("pytest", "--strict-markers", "test_losses.py", folder=tmp_path)
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    assert "if the element [0] of p is 0" in done.stdout and "return loss_fn, x, y" in done.stdout


def test_the_plugin_imports_pytest_only(tmp_path):
    code = "import sys, zero_or_nan_pytest; assert 'torch' not in sys.modules and 'zero_or_nan' not in sys.modules"
    (tmp_path / "only.py").write_text(code)
    assert ran("only", folder=tmp_path).returncode == 0
