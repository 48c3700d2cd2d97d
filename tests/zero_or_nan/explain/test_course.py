"""A training that diverges is called so, with its numbers; one that fails for another reason is not.

Runs end in a NaN or an infinity. The expectations were written before the tool saw a run:

- "diverges": the weights and the loss grew from step to step, and a smaller learning rate cures it.
- "jumped": the loss jumped in one step while the weights had not grown, and the weights followed.
- "no": the last step fails for another reason.
"""

import copy
import functools
from math import inf, nan
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from origins import failure
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zero_or_nan import explain
from zero_or_nan.explain.report.course import EXPLODED, GROWN, Course

WORDS = {"the training diverged": "diverges", "perhaps the training diverges": "diverges", "the loss jumped": "jumped"}
MOST = 80


def training(optimizer, loss_of):
    """A step that computes a loss from its number, and lets the optimizer move."""

    def step(number):
        optimizer.zero_grad()
        loss = loss_of(number)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def features_that_were_not_scaled(lr):
    """Square metres and years go in unscaled: the curvature is some 10⁶, and a rate of 0.01 is far too large."""
    model = nn.Linear(2, 1)
    x = torch.rand(32, 2) * torch.tensor([200.0, 2000.0])
    y = x @ torch.tensor([[3.0], [0.1]])
    return training(torch.optim.SGD(model.parameters(), lr), lambda _: F.mse_loss(model(x), y))


def adam_at_a_large_rate(lr):
    """Adam moves each weight by its rate; ten layers multiply the weights."""
    model = nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.ReLU())), nn.Linear(16, 1))
    x = torch.randn(32, 16)
    return training(torch.optim.Adam(model.parameters(), lr), lambda _: F.mse_loss(model(x), x[:, :1]))


def updates_by_hand(lr):
    """A recurrent net without an optimizer: the first update ends it, and relu hides some of what is too large."""
    net, head = nn.RNN(4, 8, nonlinearity="relu", batch_first=True), nn.Linear(8, 1)
    parameters = [*net.parameters(), *head.parameters()]
    x = torch.randn(16, 10, 4)

    def step(_):
        loss = F.mse_loss(head(net(x)[0][:, -1]), x.sum((1, 2))[:, None])
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=lr)
                parameter.grad = None
        return loss.item()

    return step


def bad_batch_that_moves_the_weights(lr):
    """One element of batch 4 is 10¹²: the step is finite, the weights follow, and a later step overflows."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(8, 4)
    large = x.clone()
    large[:, 0] = 1e12
    optimizer = torch.optim.SGD(model.parameters(), lr)
    return training(optimizer, lambda n: F.mse_loss(model(large if n == 4 else x), x[:, :1]))


def huge_reward_in_the_second_step(lr):
    """The loss of the second step overflows, its gradient doesn't, and the optimizer has used it when that is seen."""
    model = nn.Linear(4, 1)
    x = torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    return training(optimizer, lambda n: (model(x) - (1e25 if n == 1 else 1.0)).square().mean())


def weights_that_grow_while_the_loss_falls(lr):
    """Separable classes: the weights grow a thousandfold, the loss falls, and then 1 − p is 0 and its log −inf."""
    w = torch.full((2,), 0.01, requires_grad=True)
    x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [-1.0, -2.0], [-2.0, -1.0]])
    y = torch.tensor([1.0, 1.0, 0.0, 0.0])

    def loss_of(_):
        p = (x @ w).sigmoid()
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    return training(torch.optim.Adam([w], lr), loss_of)


RUNS = {  # what is expected, the learning rate, and one with which the run stays finite
    features_that_were_not_scaled: ("diverges", 0.01, 1e-7),
    adam_at_a_large_rate: ("diverges", 30.0, 1e-3),
    updates_by_hand: ("diverges", 1e6, 1e-4),
    bad_batch_that_moves_the_weights: ("jumped", 0.01, None),
    huge_reward_in_the_second_step: ("no", 0.01, None),
    weights_that_grow_while_the_loss_falls: ("no", 3.0, None),
}


def said(report):
    """What a report says of the steps before, in one word."""
    return WORDS[report.cause.partition(":")[0]] if report.cause else "no"


@functools.cache
def failed(run, lr):
    """The report of the step that fails, or None if none does."""
    torch.manual_seed(0)
    step = explain.on_failure(run(lr))
    for number in range(MOST):
        try:
            step(number)
        except FloatingPointError as error:
            return error.report
    return None


@pytest.mark.parametrize("run", RUNS)
def test_what_diverges_is_called_so_and_nothing_else(run):
    """By the decorator, and by a block around the whole training, which sees the backward passes alone."""
    expected, lr, _ = RUNS[run]
    torch.manual_seed(0)
    step = run(lr)
    with explain() as report:
        for number in range(MOST):
            step(number)
            if not report.ok:
                break
    for each in (report, failed(run, lr)):
        assert said(each) == expected
        if each.cause:
            (origin,) = each
            assert "written above" in origin.remedy and each.cause.endswith("divergence.html#what-to-do")
            assert origin.chapter in each._repr_html_().partition("born in")[0].partition("to do")[0]
            assert each.to_dict()["cause"] == each.cause


@pytest.mark.parametrize("run", [run for run, (expected, _, _) in RUNS.items() if expected != "no"])
def test_what_the_cause_names_is_a_remedy(run):
    """A smaller rate, and clipping: the printed line runs before each step. Adam rescales, and is the exception."""
    _, lr, cured_by = RUNS[run]
    assert cured_by is None or failed(run, cured_by) is None
    cause = failed(run, lr).cause
    line = dedent("\n".join(each for each in cause.splitlines() if each.startswith("    ")))
    assert ("clip" in line) != cause.startswith("perhaps")
    if "clip" not in line:
        return

    def clip(optimizer, *_):
        model = SimpleNamespace(parameters=lambda: optimizer.param_groups[0]["params"])
        exec(line, {"torch": torch, "model": model})

    hook = register_optimizer_step_pre_hook(clip)
    try:
        assert failed.__wrapped__(run, lr) is None
    finally:
        hook.remove()


def test_the_loss_before_it_was_scaled():
    """A scaler multiplies the loss; the report shows the loss."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=100.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10**6)

    def step():
        optimizer.zero_grad()
        loss = weight.square().sum() * (1.0 if weight.abs() < 1e15 else nan)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    watched = explain.on_failure(step)
    report = failure(lambda: [watched() for _ in range(50)])
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


FAR = 2 * GROWN
LINES = [  # the losses, the largest parameter before each step and now, and the first one
    ("diverges", [1, FAR], [1, FAR], FAR, 1.0),
    ("diverges", [-1, -FAR], [1, FAR], FAR, 1.0),
    ("diverges", [1, FAR], [0, FAR], FAR, 0.0),  # there is no first size to compare with
    ("diverges", [1, 100, FAR], [1, 1, 1], FAR, 1.0),  # it did not grow in a single step
    ("diverges", [1], [1], 2 * EXPLODED, 1.0),
    ("jumped", [1, FAR], [1, 1], FAR, 1.0),
    ("no", [1, GROWN / 2], [1, FAR], FAR, 1.0),
    ("no", [1, FAR, 1], [1, FAR, FAR], FAR, 1.0),  # it went back
    ("no", [1, FAR], [1e-4, 1], 1.0, 1e-4),  # weights of size 1 make nothing overflow
    ("no", [1, FAR, FAR**2], [1, 1, 1], 1.0, 1.0),  # the data grew, and the weights did not
    ("no", [], [], FAR, 1.0),
]


@pytest.mark.parametrize(("expected", "losses", "sizes", "now", "start"), LINES)
def test_where_the_line_is_drawn(expected, losses, sizes, now, start):
    """Both have to grow, and the loss may not have gone back. A single step counts if the failure is an overflow."""
    course = Course()
    course.begin([torch.tensor([start])])
    for loss, size in zip(losses, sizes, strict=True):
        course.add(loss, lambda size=size: size)
    cause = course.cause(inf, now, is_overflow=True)
    assert (WORDS[cause.partition(":")[0]] if cause else "no") == expected
    assert len(losses) > 1 or not course.cause(inf, now, is_overflow=False)
