"""What is promised to be stable: names, arguments, kinds, and the form of a report."""

import inspect
import sys

import pytest
import torch
from origins import report_of

from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError, Origin, Report

TEXTS = "phase operator filename source module dtype device operands kind remedy exact chapter tie".split()
NUMBERS = "line count times".split()
LISTS = "entries shape reached path".split()
OTHERS = "fixed rank is_sure replaces".split()


@pytest.fixture
def report():
    x = torch.tensor([[1.0, 100.0]], requires_grad=True)
    with explain() as report:
        torch.where(x < 50, x.exp(), 0).sum().backward()
        (x - 1).sqrt().sum().backward()
    report.note("one")
    return report


def test_names_and_arguments():
    assert sys.modules["zero_or_nan.explain"].__all__ == [
        "Finding",
        "NotFiniteError",
        "Origin",
        "ProbeReport",
        "Report",
        "explain",
    ]
    (on_nan,) = inspect.signature(explain).parameters.values()
    assert (on_nan.name, on_nan.default) == ("on_nan", "report")
    assert list(inspect.signature(explain.on_failure).parameters) == ["step", "model"]
    assert issubclass(NotFiniteError, FloatingPointError)
    assert list(inspect.signature(Report).parameters) == ["origins", "passes", "notes", "cause"]
    assert set(inspect.signature(Origin).parameters) == {
        *TEXTS,
        *NUMBERS,
        *LISTS,
        "fixed",
        "rank",
        "is_sure",
        "replaces",
    }


def test_on_failure_needs_no_object():
    assert explain.on_failure is explain().on_failure


def test_where_all_is_well_the_form_is_the_same():
    report = report_of(lambda: torch.ones(1, requires_grad=True).sum().backward())
    assert report.to_dict() == {"ok": True, "passes": 1, "origins": [], "notes": [], "cause": ""}


def test_the_error_has_the_report():
    x = torch.zeros(1, requires_grad=True)
    with pytest.raises(NotFiniteError) as caught, explain(on_nan="raise"):
        x.sqrt().sum().backward()
    assert isinstance(caught.value.report, Report) and str(caught.value) == str(caught.value.report)


def test_a_block_without_a_backward_pass_raises_at_its_end():
    with pytest.raises(NotFiniteError, match="log"), explain(on_nan="raise"):
        torch.zeros(1).log()


def test_other_arguments_are_refused():
    with pytest.raises(ValueError, match="is not known"):
        explain(on_nan="ignore")
