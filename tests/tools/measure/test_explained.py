"""The measurement of `explain`: it counts what a tool said, and what is recorded is good enough."""

import json
from types import SimpleNamespace

import torch
from scratch import ROOT

from tools.measure import explained

CONTENT = json.loads((ROOT / "results" / "measured" / "explained.json").read_text(encoding="utf-8"))


def program(*wants, name="one", line=7, run=lambda: None, is_report=False):
    expected = tuple(SimpleNamespace(kind=kind, phase=phase, operator=operator) for kind, phase, operator in wants)
    facts = {"is_report": is_report, "has_cause_to_name": False, "cause": None, "remedy": None, "fails": None}
    return SimpleNamespace(name=name, run=run, expected=expected, lines=(line,) * len(expected), **facts)


def test_what_is_recorded_is_good_enough():
    (clean,) = (row for row in CONTENT["rows"] if row["kind"] == "clean")
    wrong = [row for row in CONTENT["rows"] if row["kind"] != "clean"]
    assert sum(row["explain"]["all"] for row in wrong) == sum(row["programs"] for row in wrong) >= 150
    assert clean["explain"] == {"said": 0, "line": 0, "all": clean["programs"]} and clean["programs"] >= 20
    assert list(CONTENT["first"]) == list(CONTENT["now"]) and len(CONTENT["now"]) >= 60
    for tool in CONTENT["tools"][1:]:
        rows = [*CONTENT["rows"], *CONTENT["reports"]]
        assert all(row[tool]["line"] <= row[tool]["said"] <= row["programs"] for row in rows)
        assert CONTENT["versions"][tool]


def zero_log():
    torch.zeros(1, requires_grad=True).log().sum().backward()


def test_first_answers_and_columns_of_tools_that_are_not_installed_stay(monkeypatch):
    kept, line = {}, zero_log.__code__.co_firstlineno + 1
    undefined = "undefined", "forward", "log"
    every = [program(undefined, line=line, run=zero_log), program(name="two")]
    every.append(program(undefined, name="three", line=line, run=zero_log, is_report=True))
    old = {"kind": "undefined", "programs": 9, "explain": None, "torchlens": {"said": 1, "line": 1, "all": 0}}
    recorded = {"first": {"zero_log": "-kind"}, "rows": [old], "versions": {"torchlens": "torchlens 1"}}
    explained._programs(ROOT)
    baselines = explained.importlib.import_module("corpus.baselines")
    monkeypatch.setattr(baselines, "versions", lambda: {"anomaly mode": "torch 2"})
    monkeypatch.setattr(explained, "_programs", lambda root: every)
    monkeypatch.setattr(explained, "read", lambda *_: recorded)
    monkeypatch.setattr(explained, "keep", lambda project, name, content: kept.update(content))
    explained.explained(SimpleNamespace(root=ROOT))
    assert kept["first"] == {"zero_log": "-kind"} and kept["now"] == {"zero_log": "+kind +line +all +remedy"}
    assert explained.summed(kept["now"])["all"] == "1 of 1" and explained.summed(kept["first"])["kind"] == "0 of 1"
    undefined, clean = kept["rows"]
    assert (undefined["programs"], clean["programs"]) == (1, 1) and undefined["torchlens"] == old["torchlens"]
    assert undefined["explain"] == {"said": 1, "line": 1, "all": 1} and clean["explain"]["all"] == 1
    assert kept["tools"] == ["explain", "anomaly mode", "torchlens"]


def test_a_crash_and_a_wrong_kind_are_failures():
    def crash(*_):
        raise RuntimeError

    assert explained._told(crash, program()) == explained._explained(program(run=crash)) == (False, False, False)
    wrong = program(("overflow", "forward", "log"), line=zero_log.__code__.co_firstlineno + 1, run=zero_log)
    assert explained._explained(wrong) == (True, True, False)
    two = program(("undefined", "forward", "log"), ("overflow", "forward", "exp"))
    assert [explained._group(each) for each in (program(), wrong, two)] == ["clean", "overflow", "several origins"]
