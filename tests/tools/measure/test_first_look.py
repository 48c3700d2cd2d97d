"""The first look: programs are read from their document, and a remedy that is pasted is judged by the right numbers."""

import pytest
from scratch import ROOT

from tools.measure import first_look
from tools.measure.first_look import Program, answer, programs, shown, summed

HEAD = "import torch\n\ndef program():\n    x = torch.tensor([0.0, 4.0], requires_grad=True)\n"
END = "    loss.backward()\n    return {'x': x.grad}\n\ndef right():\n    return "
ROOTS = f"{HEAD}    loss = x.sqrt().sum()\n{END}"


def told(source, *lines, kind="undefined"):
    return answer(Program("name", "work", (kind,), lines, source))


def test_each_program_has_its_facts():
    found = programs(ROOT)
    assert len(found) > 100 and {each.half for each in found} == {"work", "held"}
    for each in found:
        assert each.kinds and (each.lines or each.kinds == ("healthy",))
        assert "def program():" in each.source and "def right():" in each.source
    assert len({each.name for each in found}) == len(found)


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        (f"{ROOTS}None", "works by a choice"),
        (f"{ROOTS}{{'x': torch.tensor([0.0, 0.25])}}", "works"),
        (f"{ROOTS}{{'x': torch.tensor([0.0, 0.5])}}", "wrong"),
        (f"{HEAD}    loss = torch.where(x > 0, x.log(), 0).sum()\n{END}{{'x': torch.tensor([0.0, 0.25])}}", "works"),
        (f"{HEAD}    loss = (x - 1).sqrt().sum()\n{END}None", "advice"),
        (f"{HEAD}    loss = x.sum()\n{END}None", "nothing"),
    ],
)
def test_an_answer_is_judged(source, remedy):
    assert told(source).remedy == remedy


def test_the_line_and_the_kind_are_compared():
    right, wrong = told(f"{ROOTS}None", "loss=x.sqrt().sum()"), told(f"{ROOTS}None", "x = 1", kind="overflow")
    assert (right.is_line_right, right.is_kind_right) == (True, True)
    assert (wrong.is_line_right, wrong.is_kind_right) == (False, False)
    healthy = told(f"{HEAD}    loss = x.sum()\n{END}None", kind="healthy")
    assert healthy.is_line_right and healthy.remedy == ""


def row(half, remedy, is_right=True):
    return {"name": "a", "half": half, "is_line_right": is_right, "is_kind_right": is_right, "remedy": remedy}


def test_what_crashes_counts_as_nothing_and_the_held_half_stays_as_it_was(tmp_path, monkeypatch):
    def one(program):
        return first_look.Answer(program.name, program.half, True, True, "works")

    def apart(items, *_):
        return [first_look._lost(items[0], "no end"), *map(one, items[1:])]

    kept = {}
    monkeypatch.setattr(first_look, "all_apart", apart)
    monkeypatch.setattr(first_look, "programs", lambda root: [Program(h, h, (), (), "") for h in ("work", "held")])
    monkeypatch.setattr(first_look, "keep", lambda project, name, content: kept.update(content))
    for recorded in ({}, {"first": [row("held", "wrong", False)]}):
        monkeypatch.setattr(first_look, "read", lambda *_, recorded=recorded: recorded)
        first_look.first_look(type("Project", (), {"root": tmp_path}))
        assert summed(kept["work"])["nothing"] == 1
        assert [each["remedy"] for each in kept["first"]] == ["wrong" if recorded else "works"]
    assert "held back" in shown(kept)
