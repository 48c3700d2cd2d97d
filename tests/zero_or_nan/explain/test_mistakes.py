"""A mistake in the watch is not the user's: all goes on as without it, and one warning says so."""

import warnings

import pytest
import torch

from zero_or_nan import explain
from zero_or_nan.explain.births import attribution, calls, findings
from zero_or_nan.explain.births import nodes as node_births
from zero_or_nan.explain.program import code as places
from zero_or_nan.explain.report import narration as names
from zero_or_nan.explain.watch import backward, forward, shadow, watch
from zero_or_nan.explain.watch import shadow as sandbox


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
        (sandbox.Sandbox, "retains"),
        (sandbox.Sandbox, "silenced"),
        (places, "place_here"),
        (forward, "is_finite"),
        (forward.Forward, "_check"),
        (forward.Forward, "_attribute"),
        (watch.Watch, "_end_pass"),
        (attribution, "come_in"),
        (calls.Call, "results"),
        (calls, "first_born_in"),
        (backward.Backward, "begin"),
        (backward.Backward, "end"),
        (backward.Backward, "_cast_shadow"),
        (backward.Backward, "_not_finite"),
        (node_births.NodeBirths, "of"),
        (watch, "diagnose"),
        (backward, "numbers_of"),
        (backward, "is_finite"),
        (shadow.Shadow, "handed_on"),
        (names.Names, "of_module"),
        (names.Names, "of_tensor"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.filterwarnings("ignore:explain failed")
def test_it_goes_on(monkeypatch, where, name, passes):
    monkeypatch.setattr(findings.Mistakes, "are_raised", False)
    expected = work()
    monkeypatch.setattr(where, name, wrong)
    with explain() as report:
        found = work() if passes else torch.tensor([0.0]).log()
    if passes:
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert str(report)
    engine = torch.autograd._engine_run_backward
    assert engine.__module__ == "torch.autograd.graph"


def test_one_warning(monkeypatch):
    monkeypatch.setattr(findings.Mistakes, "are_raised", False)
    monkeypatch.setattr(forward.Forward, "_attribute", wrong)
    with pytest.warns(UserWarning, match=r"explain failed at .*Wrong: by us.*a bug in zero_or_nan") as told, explain():
        work()
    assert len(told) == 1 and told[0].filename == __file__


def test_too_deep_a_stack_is_no_bug(monkeypatch):
    """The user's code is about to end with a RecursionError, and so is ours."""
    monkeypatch.setattr(findings.Mistakes, "are_raised", False)

    def endless(x):
        return endless(x + 1)

    x = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as told, pytest.raises(RecursionError), explain() as report:
        warnings.simplefilter("always")
        endless(x)
    assert report.ok
    messages = [str(each.message) for each in told]
    assert all("room on the stack" in each and "bug" not in each for each in messages) and len(messages) <= 1


@pytest.mark.parametrize("error", [RecursionError, MemoryError])
def test_too_little_room_is_no_bug(monkeypatch, error):
    def full(*args, **kwargs):
        raise error

    monkeypatch.setattr(findings.Mistakes, "are_raised", False)
    monkeypatch.setattr(forward.Forward, "_attribute", full)
    with (
        pytest.warns(
            UserWarning, match=rf"explain failed at log \({error.__name__}: \). It needs .*incomplete"
        ) as told,
        explain(),
    ):
        work()
    assert len(told) == 1 and "bug" not in str(told[0].message)
