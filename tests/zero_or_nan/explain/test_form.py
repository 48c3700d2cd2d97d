"""What is promised to be stable: names, arguments, kinds, and the form of a report."""

import inspect
import json
import sys

import pytest
import torch

from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError, Origin, Report
from zero_or_nan.explain.report.report import MEANS

TEXTS = "phase operator filename source module dtype device operands kind remedy chapter tie".split()
NUMBERS = "line count times".split()
LISTS = "entries shape reached path".split()


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
        "NotFiniteError",
        "Origin",
        "Report",
        "explain",
    ]
    (on_nan,) = inspect.signature(explain).parameters.values()
    assert (on_nan.name, on_nan.default) == ("on_nan", "report")
    assert list(inspect.signature(explain.on_failure).parameters) == ["step", "model"]
    assert issubclass(NotFiniteError, FloatingPointError)
    assert list(inspect.signature(Report).parameters) == ["origins", "passes", "notes", "cause"]
    assert set(inspect.signature(Origin).parameters) == {*TEXTS, *NUMBERS, *LISTS, "fixed", "rank", "is_sure"}


def test_on_failure_needs_no_object():
    assert explain.on_failure is explain().on_failure


def test_four_kinds_and_two_phases(report):
    assert set(MEANS) == {"contaminated", "undefined", "overflow", "bad input"}
    assert [(origin.kind, origin.phase) for origin in report] == [
        ("contaminated", "forward"),
        ("undefined", "backward"),
    ]


def test_a_report_as_json_is_that_report(report):
    told = report.to_dict()
    assert told == json.loads(report.to_json())
    assert {name: told[name] for name in ("ok", "passes", "notes")} == {"ok": False, "passes": 2, "notes": ["one"]}
    assert set(told) == {"ok", "passes", "notes", "origins", "cause"} and told["cause"] == ""
    for origin, each in zip(report, told["origins"], strict=True):
        assert set(each) == {*TEXTS, *NUMBERS, *LISTS, "fixed", "rank", "is_sure"}
        assert all(type(each[name]) is str and each[name] == getattr(origin, name) for name in TEXTS)
        assert all(type(each[name]) is int and each[name] == getattr(origin, name) for name in NUMBERS)
        assert all(type(each[name]) is list for name in LISTS)
        assert each["fixed"] in (True, False, None) and each["rank"] is None and each["is_sure"] is True
    assert told["origins"][0]["entries"] == [[0, 1]] and told["origins"][0]["shape"] == [1, 2]


def test_where_all_is_well_the_form_is_the_same():
    with explain() as report:
        torch.ones(1, requires_grad=True).sum().backward()
    assert report.to_dict() == {"ok": True, "passes": 1, "origins": [], "notes": [], "cause": ""}


def test_the_error_has_the_report():
    x = torch.zeros(1, requires_grad=True)
    with pytest.raises(NotFiniteError) as caught, explain(on_nan="raise"):
        x.sqrt().sum().backward()
    assert isinstance(caught.value.report, Report) and str(caught.value) == str(caught.value.report)


def test_other_arguments_are_refused():
    with pytest.raises(ValueError, match="is not known"):
        explain(on_nan="ignore")
