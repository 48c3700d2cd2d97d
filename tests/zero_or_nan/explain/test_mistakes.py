"""A mistake in the watch is not the user's: all goes on as without it, and one warning says so."""

import gc
import warnings

import pytest
import torch

from zero_or_nan import explain
from zero_or_nan.explain.births import call, findings
from zero_or_nan.explain.report import narration
from zero_or_nan.explain.watch import backward, forward, shadow, watch


class Wrong(Exception):
    pass


def wrong(*args, **kwargs):
    raise Wrong("by us")


def work():
    x = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
    y = x * 1
    y.retain_grad()
    y.register_hook(lambda gradient: gradient * 2)
    y2 = y + 0
    y2 += 1
    torch.where(x > 0, (y2 - 1).log(), x * 0).sum().backward()
    return x.grad


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (forward.Forward, "before"),
        (forward.Forward, "after"),
        (shadow.Sandbox, "retains"),
        (watch.Watch, "_end_pass"),
        (call.Call, "results"),
        (backward.Backward, "begin"),
        (backward.Backward, "end"),
        (backward.Backward, "_not_finite"),
        (backward, "diagnose"),
        (shadow.Shadow, "handed_on"),
        (narration.Names, "of_module"),
        (narration.Names, "of_tensor"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.filterwarnings("ignore:explain failed")
def test_it_goes_on(monkeypatch, where, name):
    monkeypatch.setattr(findings.Mistakes, "are_raised", False)
    expected = work()
    monkeypatch.setattr(where, name, wrong)
    for passes in (True, False):
        with explain() as report:
            found = work() if passes else torch.tensor([0.0]).log()
        if passes:
            assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert str(report)
    engine = torch.autograd._engine_run_backward
    assert engine.__module__ == "torch.autograd.graph"


def test_too_deep_a_stack_is_no_bug(monkeypatch):
    """The user's code is about to end with a RecursionError, and so is ours."""
    monkeypatch.setattr(findings.Mistakes, "are_raised", False)

    def endless(x):
        return endless(x + 1)

    x = torch.ones(1, requires_grad=True)
    gc.disable()  # a callback of the collector would have no room on the stack either, and Python says so
    try:
        with warnings.catch_warnings(record=True) as told, pytest.raises(RecursionError), explain() as report:
            warnings.simplefilter("always")
            endless(x)
    finally:
        gc.enable()
    assert report.ok
    messages = [str(each.message) for each in told]
    assert all("space on the stack" in each and "bug" not in each for each in messages) and len(messages) <= 1


@pytest.mark.parametrize(("error", "why"), [(Wrong, "This is a bug in zero_or_nan"), (MemoryError, "It needs some")])
def test_one_warning(monkeypatch, error, why):
    """Too little memory is no bug."""

    def failing(*args, **kwargs):
        raise error

    monkeypatch.setattr(findings.Mistakes, "are_raised", False)
    monkeypatch.setattr(forward.Forward, "_attribute", failing)
    match = rf"explain failed at log \({error.__name__}: \). {why}.*incomplete"
    with pytest.warns(UserWarning, match=match) as told, explain():
        work()
    assert len(told) == 1 and told[0].filename == __file__
