"""The measurement of `explain.probe`: losses are read from their document, and answers are judged."""

import re
from dataclasses import asdict

import pytest
from scratch import ROOT

from tools.measure import probe
from tools.measure.probe import Answer, Loss, answer, answer_of_torch, losses, shown, summed
from tools.measure.torchs_losses import LOSSES, TRACKER, inputs

HEAD = "import torch\n\ndef inputs():\n    return (torch.rand(4, requires_grad=True),)\n\ndef loss_fn(p):\n"


def told(line, *lines):
    return answer(Loss("name", "work", lines, f"{HEAD}    {line}\n"))


def test_each_loss_has_a_line_or_is_healthy():
    found = losses(ROOT)
    assert len({each.name for each in found}) == len(found) > 40
    for each in found:
        assert re.search(r"(?m)^(def loss_fn\(|loss_fn = )", each.source) and "def inputs(" in each.source
        assert set(map(probe.plain, each.lines)) <= set(map(probe.plain, each.source.splitlines())), each.name


def test_an_answer_is_judged():
    right = told("return p.log().mean()", "return p.log().mean()")
    assert (right.is_found, right.others, right.works, right.has_test) == (True, (), True, True)
    wrong = told("return p.log().mean()", "return p.mean()")
    assert (wrong.is_found, wrong.others) == (False, ("return p.log().mean()",))
    blamed, quiet = told("return p.log().mean()"), told("return p.mean()")
    assert [blamed.is_healthy, bool(blamed.others), quiet.is_healthy, bool(quiet.others)] == [True, True, True, False]


def test_the_held_answers_stay_as_they_were(monkeypatch):
    kept, first = {}, asdict(Answer("old", "held", False))
    parts = [Loss(part, part, ("x",), "") for part in ("own", "work", "held")]
    monkeypatch.setattr(probe, "all_apart", lambda items, work, *_: [_answered(each) for each in items])
    monkeypatch.setattr(probe, "losses", lambda root: parts)
    monkeypatch.setattr(probe, "keep", lambda project, name, content: kept.update(content))
    for recorded in ({}, {"held": [first]}):
        monkeypatch.setattr(probe, "read", lambda *_, recorded=recorded: recorded)
        probe.probe(type("Project", (), {"root": ROOT}))
        assert [each["name"] for each in kept["held"]] == ["old" if recorded else "held"]
    assert summed(kept["work"])["the line is found"] == 1
    assert "held back" in shown(kept) and "no report found" in shown(kept)


def _answered(each):
    if isinstance(each, Loss):
        return Answer(each.name, each.part, False, True, works=True, has_test=True)
    finding = {"function": "log", "kind": "overflow", "distance": "x is 0"}
    return {"name": each, "code": LOSSES[each], "findings": [finding]}


@pytest.mark.parametrize("name", ["soft_margin_loss(x, sign)", "mse_loss(x, y)"])
def test_a_loss_of_pytorchs(name):
    found = answer_of_torch(name)["findings"]
    assert [each["function"] for each in found] == ["soft_margin_loss"] * ("soft" in name)


def test_each_note_of_the_tracker_is_about_a_loss():
    assert all(any(name.startswith(start) for name in LOSSES) for start in TRACKER)
    assert {name for name, value in inputs().items() if value.requires_grad} >= {"x", "a", "p", "s"}
