"""Remedies for a NaN gradient: each program is run, and a word is decided by the reference, never written down."""

import math

import pytest
import torch
from bs4 import BeautifulSoup
from scratch import ROOT

from helpers import remedies, remedy_tables
from helpers.recipes import IGNORED, USED, Situation
from helpers.remedies import COLUMNS, REWRITES, WORDS, changed, compare, program

ALL = [*IGNORED, *USED]
every = pytest.mark.parametrize("situation", ALL, ids=[f"{s.name}{'' if s.ignores else ', used'}" for s in ALL])


def situation(**changes):
    given = dict(
        name="log <0>",
        page="undefined",
        given="ok = x > 0",
        x=[0.0, 2.0],
        plain="y = x.log()\nloss = torch.where(ok, y, 0).sum()",
        alone="x.log().sum()",
        used="x > 0",
        instead={"select first": "loss = x[ok].log().sum()"},
    )
    return Situation(**{**given, **changes})


def cell(remedy="select first", **changes):
    (row,) = compare([situation(**changes)])
    return row.cells[remedy]


def rewritten(code, **changes):
    return cell(instead={"select first": code}, **changes)


def test_the_word_is_decided_by_the_reference():
    assert cell().word == "right"
    assert cell("vanilla").word == "NaN or inf"
    assert rewritten("loss = 3 * x[ok].log().sum()").word == "wrong number"
    assert rewritten("loss = x[ok].log().sum() + x[0]").word == "wrong number"  # an ignored element that gets a number
    assert rewritten("loss = x[ok].log() / 'a'").word == "error"
    assert rewritten("loss = torch.ones((), requires_grad=True)").word == "error"  # no gradient at all
    assert cell("epsilon").word == "no place"


def test_an_element_without_a_slope_is_undefined_and_every_number_there_is_chosen():
    used = dict(ignores=False, used="", alone="x.log()", plain="y = x.log()\nloss = y.sum()")
    (row,) = compare([situation(**used)])
    assert row.reference.texts() == ["NaN", "0.5"]
    assert row.cells["vanilla"].word == "undefined"
    assert row.cells["select first"].word == "chosen"
    assert rewritten("loss = (x[1] * 3).sum()", **used).word == "wrong number"  # chosen at 0, and wrong at 2
    assert rewritten("loss = x[0].log() + 3 * x[1]", **used).word == "NaN or inf"  # undefined at 0, and wrong at 2
    assert rewritten("loss = as_masked_tensor(x, ok).log().sum()", **used).word == "undefined"


def test_a_number_by_pytorchs_convention_is_not_the_slope():
    used = dict(ignores=False, used="", alone="x.abs()", plain="y = x.abs()\nloss = y.sum()")
    (row,) = compare([situation(**used)])
    assert row.reference.texts() == ["NaN", "1"] and row.cells["vanilla"].word == "chosen"


def test_a_row_is_said_by_its_marks_and_its_loss_is_compared_bit_by_bit():
    (row,) = compare([situation()])
    assert row.marks[:2] == WORDS["NaN or inf"] + WORDS["right"] and len(row.marks) == len(COLUMNS)
    assert row.same_loss("select first") and row.same_loss("scrub") and not row.same_loss("epsilon")
    (row,) = compare([situation(instead={"select first": "loss = x[ok].log().sum() + 1e-6"})])
    assert not row.same_loss("select first")
    plain = "y = x.log()\nloss = (y - y).sum()"
    (row,) = compare([situation(plain=plain, instead={"select first": "loss = x.sum() * nan"})])
    assert row.same_loss("select first")  # NaN is NaN


def test_the_optimizers_step_and_the_leaf_is_as_before():
    assert cell().steps == ("ok", "ok")
    assert cell("vanilla").steps == ("NaN weights", "NaN weights")
    masked = rewritten("loss = as_masked_tensor(x, ok).log().sum()")
    assert masked.word == "right" and "ok" not in masked.steps and "NaN weights" not in masked.steps
    assert remedies._step(torch.optim.SGD, leaf := torch.ones(1, requires_grad=True)) == "ok" and leaf.item() == 1


@pytest.mark.parametrize(
    ("remedy", "at", "line"),
    [
        ("nan_to_num", 1, "y = y.nan_to_num()"),
        ("hook", 0, "x.register_hook(torch.nan_to_num)"),
        ("hook on result", 1, "y.register_hook(torch.nan_to_num)"),
        ("scrub", -1, "x.grad.nan_to_num_(nan=0, posinf=1e5, neginf=-1e5)"),
        ("ignoring", -1, "ignoring.backward(loss)"),
        ("clip or stop", -1, "torch.nn.utils.clip_grad_norm_([x], max_norm=100, error_if_nonfinite=True)"),
    ],
)
def test_a_remedy_without_new_forward_code_changes_one_line(remedy, at, line):
    assert changed(program(situation(), "vanilla"), program(situation(), remedy)) == 1
    assert program(situation(), remedy).splitlines()[at] == line


def test_a_module_takes_the_leaf_as_its_input_or_has_it_as_a_parameter():
    as_input, as_parameter = program(situation(), "module hook"), program(situation(data="a"), "module hook")
    assert "loss = model(x)" in as_input and "Parameter" not in as_input
    assert "loss = model(a)" in as_parameter and "x = model.x = torch.nn.Parameter(x)" in as_parameter
    assert cell("module hook").lines == 3


@every
def test_a_row_says_which_page_is_about_it_and_has_a_dangerous_line(situation):
    page = situation.page.partition("#")[0]
    assert (ROOT / "chapters" / f"{page}.md").is_file()
    assert [line for line in situation.plain.splitlines() if line.startswith("y =")]
    assert set(situation.instead) <= set(REWRITES) and set(REWRITES) - set(situation.instead) <= {"epsilon"}
    assert all("loss = " in code for code in situation.instead.values())


@pytest.mark.parametrize("situation", IGNORED, ids=[s.name for s in IGNORED])
def test_the_loss_of_an_ignored_row_is_finite_and_the_same_with_the_used_elements_alone(situation):
    names = remedies.namespace(situation)
    exec(situation.plain, names)
    used = eval(situation.used, names) if situation.used else ...
    alone = eval(situation.alone, {**names, "x": names["x"][used]}).sum()
    assert names["loss"].isfinite()
    constant = {"where over exp": 1, "an infinite input, clamped later": 3}.get(situation.name, 0)
    torch.testing.assert_close(alone + constant, names["loss"])


@pytest.mark.parametrize("situation", USED, ids=[s.name for s in USED])
def test_a_used_row_has_an_element_without_a_gradient(situation):
    (row,) = compare([situation])
    assert any(math.isnan(number) for number in row.reference.data.flatten().tolist())


def shown(capture, monkeypatch, *arguments):
    kept = []
    monkeypatch.setattr(remedy_tables.show, "show", kept.append)
    capture(*arguments)
    (item,) = kept
    assert item.json() is None and item.text()
    return item, BeautifulSoup(item.html(), "html.parser")


def test_the_table_has_a_mark_and_a_word_in_every_cell_and_links_to_the_pages(monkeypatch):
    rows = compare([situation()])
    item, soup = shown(remedy_tables.marks_table, monkeypatch, rows, "A <caption>")
    cells = soup.select("tbody td")
    assert [c.find("span", attrs={"aria-hidden": "true"}).get_text() for c in cells] == list(rows[0].marks)
    assert [c.select_one(".zn-said-only").get_text() for c in cells] == [c.word for c in rows[0].cells.values()]
    link = soup.select_one("tbody a")
    assert link["href"].endswith("/undefined.html") and link.get_text() == "log <0>"
    assert item.text().splitlines() == ["A <caption>", f"log <0>  {rows[0].marks}"]
