"""A training that diverges is called so, with its numbers; one that fails for another reason is not."""

import copy
import functools
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch
from origins import failure
from runs import RUNS
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zero_or_nan import explain
from zero_or_nan.explain.report.course import EXPLODED, GROWN, Course, largest

WORDS = {"the training diverged": "diverges", "perhaps the training diverges": "diverges", "the loss jumped": "jumped"}
MOST = 80


def said(report):
    """What a report says of the steps before, in one word."""
    return WORDS[report.cause.partition(":")[0]] if report.cause else "no"


@functools.cache
def failed(run, lr=None):
    """The report of the step that fails, or None if none does."""
    torch.manual_seed(0)
    step = explain.on_failure(run.make(run.lr if lr is None else lr))
    for number in range(MOST):
        try:
            step(number)
        except FloatingPointError as error:
            return error.report
    return None


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_what_diverges_is_called_so_and_nothing_else(run):
    """By the decorator, and by a block around the whole training, which sees the backward passes alone."""
    assert said(failed(run)) == run.expected
    torch.manual_seed(0)
    step = run.make(run.lr)
    with explain() as report:
        for number in range(MOST):
            step(number)
            if not report.ok:
                break
    assert said(report) == run.expected
    for each in (report, failed(run)):
        if each.cause:
            (origin,) = each
            assert "written above" in origin.remedy and each.cause.endswith("divergence.html#what-to-do")
            assert origin.chapter in each._repr_html_().partition("born in")[0].partition("to do")[0]


@pytest.mark.parametrize("run", [run for run in RUNS if run.expected != "no"], ids=lambda run: run.name)
def test_what_the_cause_names_is_a_remedy(run):
    """A smaller rate, and clipping: the printed line runs before each step. Adam rescales, and is the exception."""
    assert run.cured_by is None or failed(run, run.cured_by) is None
    cause = failed(run).cause
    line = dedent("\n".join(each for each in cause.splitlines() if each.startswith("    ")))
    assert ("clip" in line) != cause.startswith("perhaps")
    if "clip" not in line or run.name == "updates_by_hand":
        return

    def clip(optimizer, *_):
        model = SimpleNamespace(parameters=lambda: optimizer.param_groups[0]["params"])
        exec(line, {"torch": torch, "model": model})

    hook = register_optimizer_step_pre_hook(clip)
    try:
        assert failed.__wrapped__(run) is None
    finally:
        hook.remove()


def test_the_numbers_are_those_of_the_run():
    run = next(run for run in RUNS if run.name == "features_that_were_not_scaled")
    torch.manual_seed(0)
    step = run.make(run.lr)
    losses = [float(step(number)) for number in range(5)]
    report = failed(run)
    shown = report.cause.split("went ")[1].split(" in ")[0].split(" → ")
    assert [float(each) for each in shown] == pytest.approx(losses, rel=0.1)
    assert "in 4 steps" in report.cause
    assert all(len(line) <= 110 for line in report.cause.splitlines())
    assert str(report).startswith(report.cause) and report.to_dict()["cause"] == report.cause
    html = report._repr_html_()
    assert html.index("The training diverged") < html.index("clip_grad_norm_") < html.index("born in")


def test_the_loss_before_it_was_scaled():
    """A scaler multiplies the loss; the report shows the loss."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=100.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10**6)

    @explain.on_failure
    def step():
        optimizer.zero_grad()
        loss = weight.square().sum() * (1.0 if weight.abs() < 1e15 else float("nan"))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def until_it_fails():
        for _ in range(50):
            step()

    report = failure(until_it_fails)
    assert said(report) == "diverges" and "the loss went 1 → " in report.cause


def test_a_step_that_changes_its_parameters_itself_leaves_no_trace_from_the_second_call_on():
    w = torch.ones(2, requires_grad=True)

    @explain.on_failure
    def step(x):
        loss = (w * x).log().sum()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.1)
        w.grad = None
        return loss.detach()

    bad = torch.tensor([0.0, 1.0])
    assert "changed its parameters before the failure was seen" in str(failure(step, bad))
    with torch.no_grad():
        w.fill_(1.0)
    step(torch.ones(2))
    before = copy.deepcopy(w)
    report = failure(step, bad)
    assert torch.equal(w, before) and not report.notes
    assert [origin.operator for origin in report] == ["log"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_the_largest_of_parameters(dtype):
    one, other = torch.tensor([[1.0, -3.0]]).to(dtype), torch.tensor(2.0).to(dtype)
    assert largest([one, other, torch.arange(5), torch.empty(0)]) == 3
    assert largest([one, other.clone().fill_(float("nan"))]) is None
    assert largest([torch.arange(5)]) is None


def course(losses, sizes, start=1.0):
    followed = Course()
    followed.begin([torch.tensor([start])])
    for loss, size in zip(losses, sizes, strict=True):
        followed.add(loss, lambda size=size: size)
    return followed


def word(followed, now, is_overflow=True):
    cause = followed.cause(float("inf"), now, is_overflow)
    return WORDS[cause.partition(":")[0]] if cause else "no"


def test_where_the_line_is_drawn():
    """Both have to grow, and the loss may not have gone back."""
    far = 2 * GROWN
    assert word(course([1, far], [1, far]), far) == word(course([-1, -far], [1, far]), far) == "diverges"
    assert word(course([1, GROWN / 2], [1, far]), far) == "no"
    assert word(course([1, far, 1], [1, far, far]), far) == "no"
    assert word(course([1, far], [1, 1]), far) == "jumped"
    assert word(course([1, 100, far], [1, 1, 1]), far) == "diverges", "it did not grow in a single step"
    assert word(course([1], [1]), 2 * EXPLODED) == "diverges"
    assert word(course([1], [1]), 2 * EXPLODED, is_overflow=False) == "no"
    assert word(course([1, far], [1e-4, 1], start=1e-4), 1.0) == "no", "weights of size 1 make nothing overflow"
    assert word(course([1, far, far * far], [1, 1, 1]), 1.0) == "no", "the data grew, and the weights did not"
    assert word(Course(), far) == "no"
