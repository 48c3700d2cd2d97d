"""The search for what is hidden: it can tell a lie when there is one, and finds none in a sample of the operators."""

import os
import signal

import pytest
import torch
from sample import sample
from scratch import ROOT

from tools.measure import honesty
from tools.project import read_record
from zero_or_nan import ignoring
from zero_or_nan.ignoring import FUNCTIONS, Function


@pytest.fixture(scope="module")
def operators():
    """By their names. Not at import: the database takes seconds, also in a process that runs none of these tests."""
    return {honesty.name_of(op): op for op in honesty.operators()}


@pytest.mark.parametrize(
    "name", sample("amax ceil cumprod exp gather logsumexp mm maximum nn.functional.relu norm std sort".split(), 4)
)
@pytest.mark.slow
def test_nothing_is_hidden(operators, name):
    tally = honesty.measure(operators[name], samples=2)
    assert tally.undefined > 0
    assert tally.is_honest, tally.notes


def test_a_step_that_is_taken_for_a_selection_is_found(operators, monkeypatch):
    monkeypatch.setattr(honesty, "NOTES", 1000)
    monkeypatch.setitem(FUNCTIONS, "Ceil", Function(selects=True))
    tally = honesty.measure(operators["ceil"], samples=1)
    assert tally.hidden > 0
    for form in ("out of place", "in place", "in place on a slice"):
        start = f"hidden: sample 0, {form}, as it is, all of the outputs, gradient by z of input 0, entry "
        assert any(note.startswith(start) for note in tally.notes), form


def changed(change):
    def gradients(*args, **kwargs):
        return tuple(change(gradient) for gradient in torch.autograd.grad(*args, **kwargs))

    return gradients


def one_row(g):
    """The gradient with other strides, if it is a vector: not each sample is one."""
    return torch.cat([g, g])[::2] if g.dim() == 1 else g


class Marked(torch.Tensor):
    """Not a plain tensor."""


@pytest.mark.parametrize(
    "change, what",
    [
        (lambda g: g.nan_to_num(), "hidden"),
        (lambda g: g * (1 + 1e-6), "other_bits"),
        (lambda g: g + 0.0, "other_bits"),
        (one_row, "other_strides"),
        (lambda g: g.as_subclass(Marked), "other_strides"),
    ],
    ids=["scrubbed", "rounded", "minus zero", "strides", "type"],
)
def test_each_kind_of_violation_is_told(operators, monkeypatch, change, what):
    monkeypatch.setattr(ignoring, "grad", changed(change))
    monkeypatch.setattr(honesty, "NOTES", 1000)
    tally = honesty.measure(operators["neg" if what == "other_bits" else "exp"], samples=3 if change is one_row else 1)
    assert getattr(tally, what) > 0
    assert any(note.startswith(what.replace("_", " ")) for note in tally.notes)


@pytest.mark.usefixtures("by_rules_alone")
def test_an_error_of_ours_is_told(operators, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("a planted one")

    monkeypatch.setitem(ignoring.RULES, torch.ops.aten.mm, broken)
    tally = honesty.measure(operators["mm"], samples=1)
    assert tally.exceptions > 0
    assert "ZeroDivisionError: a planted one" in tally.notes[0]


def test_a_crash_is_a_row_and_the_rest_goes_on(operators, monkeypatch, capsys):
    def crash(op):
        return os.kill(os.getpid(), signal.SIGKILL) if op.name == "mm" else real(op, samples=1)

    real = honesty.measure
    monkeypatch.setattr(honesty, "measure", crash)
    crashed, other = honesty.measure_all([operators["mm"], operators["neg"]])
    assert (crashed.failed, crashed.notes) == (1, ["the process died: SIGKILL"])
    assert other.is_honest and other.cases > 0
    assert "all operators" in capsys.readouterr().out


@pytest.mark.parametrize("violation", honesty.VIOLATIONS)
def test_an_operator_with_a_violation_has_a_row_and_the_others_are_counted(violation):
    wrong = honesty.Tally("wrong", cases=2, undefined=5, **{violation: 1})
    found = honesty.totals_and_rows([honesty.Tally("fine", cases=3, undefined=7), wrong])
    assert [row["operator"] for row in found["rows"]] == ["wrong"]
    assert found["operators"] == 2 and found["totals"]["cases"] == 5 and found["totals"]["undefined"] == 12
    assert found["totals"][violation] == 1


def test_each_operator_of_the_table_has_a_reason():
    row = dict.fromkeys(("undefined", "hidden"), 1) | {"operator": "nanmean"}
    content = {"torch": "2", "operators": 2, "totals": dict.fromkeys(honesty.COUNTS, 1234), "rows": [row]}
    content["totals"] |= dict.fromkeys(honesty.VIOLATIONS[1:], 0)
    drawn = honesty.shown(content)
    assert "<code>nanmean</code> drops them" in drawn and "1,234 such elements" in drawn and "exceptions" not in drawn
    assert "Not known yet" in honesty.shown({**content, "rows": [row | {"operator": "sin"}]})
    assert "Not known yet" not in honesty.shown(read_record(ROOT / "results" / "measured" / "honesty.json"))
