"""The measurement of `explain`: it counts what a tool said, and what is recorded is good enough."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tools.measure import explained
from tools.project import Project

CONTENT = json.loads((Project(Path.cwd()).results / "measured" / "explained.json").read_text(encoding="utf-8"))
WRONG = [row for row in CONTENT["rows"] if row["kind"] != "clean"]
(CLEAN,) = [row for row in CONTENT["rows"] if row["kind"] == "clean"]


def program(*wants, line=7, run=lambda: None):
    expected = tuple(SimpleNamespace(kind=kind, phase=phase, operator=operator) for kind, phase, operator in wants)
    return SimpleNamespace(run=run, expected=expected, lines=(line,) * len(expected))


def test_what_is_recorded_is_good_enough():
    programs = sum(row["programs"] for row in WRONG)
    assert programs >= 150
    assert sum(row["explain"]["all"] for row in WRONG) == programs
    assert CLEAN["explain"] == {"said": 0, "line": 0, "all": CLEAN["programs"]}
    assert CLEAN["programs"] >= 20


def test_others_are_not_made_worse_than_they_are():
    """Each tool is counted by its best: any line of a program's is right, and a kind is asked of none."""
    for tool in CONTENT["tools"][1:]:
        rows = [*CONTENT["rows"], *CONTENT["reports"]]
        assert all(row[tool]["line"] <= row[tool]["said"] <= row["programs"] for row in rows)
        assert CONTENT["versions"][tool]


def test_the_first_answer_to_a_report_stays():
    first, now = CONTENT["first"], CONTENT["now"]
    assert list(first) == list(now) and len(now) >= 60
    assert explained.summed({"a": "+kind -line", "b": "+kind +cause"}) == {
        "kind": "2 of 2", "line": "0 of 1", "all": "0 of 0", "cause": "1 of 1", "remedy": "0 of 0",
    }  # fmt: skip


def test_a_tool_that_is_not_installed_keeps_its_column():
    one = program(("undefined", "forward", "log"))
    one.name = "one"
    recorded = [{"kind": "undefined", "programs": 1, "other": {"said": 1, "line": 1, "all": 0}, "explain": None}]
    told = {"one": {"explain": (True, True, True)}}
    (row,) = explained._rows([one], told, ["other", "not measured yet"], recorded)
    assert row["explain"] == {"said": 1, "line": 1, "all": 1} and row["other"] == recorded[0]["other"]
    assert set(row) == {"kind", "programs", "explain", "other"}


@pytest.mark.parametrize(
    ("told", "counts"),
    [((False, None), (0, 0)), ((True, None), (1, 0)), ((True, 3), (1, 0)), ((True, 7), (1, 1))],
)
def test_what_another_tool_told_is_counted(told, counts):
    wrong = program(("undefined", "forward", "log"))
    said, line, everything = explained._told(lambda _: SimpleNamespace(anything=told[0], line=told[1]), wrong)
    assert (said, line) == counts
    assert not everything  # no other tool tells a kind


@pytest.mark.parametrize("anything", [True, False])
def test_silence_is_right_of_a_clean_program(anything):
    told = explained._told(lambda _: SimpleNamespace(anything=anything, line=None), program())
    assert told == (anything, False, not anything)


def test_a_tool_that_crashes_has_failed():
    def crash(*_):
        raise RuntimeError

    assert explained._told(crash, program()) == (False, False, False)
    assert explained._explained(program(run=crash)) == (False, False, False)


def test_the_corpus_is_grouped_by_the_kind_that_is_expected():
    two = program(("undefined", "forward", "log"), ("overflow", "forward", "exp"))
    groups = [explained._group(each) for each in (program(), program(("overflow", "forward", "exp")), two)]
    assert groups == ["clean", "overflow", "several origins"]


def test_a_wrong_kind_is_not_all():
    def run():
        torch.zeros(1, requires_grad=True).log().sum().backward()

    line = run.__code__.co_firstlineno + 1
    right = program(("undefined", "forward", "log"), line=line, run=run)
    wrong = program(("overflow", "forward", "log"), line=line, run=run)
    assert explained._explained(right) == (True, True, True)
    assert explained._explained(wrong) == (True, True, False)
