"""Remedies for a NaN gradient: each program is run, and a word is decided by the reference, never written down."""

from math import nan

import pytest
import torch
from bs4 import BeautifulSoup

from helpers import MASKED, remedies, remedy_tables
from helpers.entries import outcome
from helpers.recipes import IGNORED, USED, Situation
from helpers.remedies import compare
from zero_or_nan import ignoring


def situation(**changes):
    given = {"name": "log <0>", "page": "undefined", "given": "ok = x > 0", "x": [0.0, 2.0], "y": "x.log()",
             "loss": "torch.where(ok, y, 0).sum()", "alone": "x.log().sum()", "select": "x[ok].log()",
             "safe": "torch.where(ok, x, 1).log()", "masked": "as_masked_tensor(x, ok).log()", 
             "used": "x > 0"}  # fmt: skip
    return Situation(**{**given, **changes})


def cell(remedy="select first", **changes):
    (row,) = compare([situation(**changes)])
    return row.cells[remedy]


def test_the_word_is_decided_by_the_reference():
    assert cell().word == "right"
    assert cell("vanilla").word == "NaN or inf"
    assert cell(select="3 * x[ok].log()").word == "wrong number"
    assert cell(select="x[ok].log() + x[0]").word == "wrong number"  # an ignored element that gets a number
    assert cell(select="x[ok].log() / 'a'").word == "error"
    assert cell(select="torch.ones((), requires_grad=True)").word == "error"  # no gradient at all
    assert cell("epsilon").word == "no place"


@pytest.mark.parametrize(
    ("wanted", "found", "word"),
    [([nan, 1], [MASKED, 1], "undefined"), ([nan, 1], [0, 1], "chosen"), ([nan, 1], [nan, 2], "NaN or inf"),
     ([2, 1], [MASKED, 1], "wrong number"), ([MASKED, 1], [MASKED, 1], "right")],
)  # fmt: skip
def test_a_masked_element_is_no_number(wanted, found, word):
    assert remedies._word(outcome(wanted), outcome(found)) == word


def test_an_element_without_a_slope_is_undefined_and_every_number_there_is_chosen():
    used = {"ignores": False, "used": "", "alone": "x.log()", "loss": "y.sum()"}
    (row,) = compare([situation(**used)])
    assert row.reference.texts() == ["NaN", "0.5"]
    assert row.cells["vanilla"].word == "undefined"
    assert row.cells["select first"].word == "chosen"
    assert row.cells["masked"].word == "undefined"
    assert cell(select="x[1] * 3", **used).word == "wrong number"  # chosen at 0, and wrong at 2
    assert cell(select="x[0].log() + 3 * x[1]", **used).word == "NaN or inf"  # undefined at 0, and wrong at 2
    (row,) = compare([situation(**used | {"alone": "x.abs()", "y": "x.abs()"})])  # PyTorch's 0 is a convention
    assert row.reference.texts() == ["NaN", "1"] and row.cells["vanilla"].word == "chosen"


@pytest.mark.parametrize("situation", IGNORED, ids=[s.name for s in IGNORED])
def test_the_loss_of_an_ignored_row_is_finite_and_the_same_with_the_used_elements_alone(situation):
    names = remedies.namespace(situation)
    exec(situation.plain, names)
    used = eval(situation.used, names) if situation.used else ...
    alone = eval(situation.terms, {**names, "x": names["x"][used]}).sum()
    assert names["loss"].isfinite()
    constant = {"where over exp": 1, "an infinite input, clamped later": 3}.get(situation.name, 0)
    torch.testing.assert_close(alone + constant, names["loss"])


def test_the_tables_and_the_definition_agree_on_which_rows_have_an_ignored_element():
    for situation in (*IGNORED, *USED):
        exec(situation.plain, names := remedies.namespace(situation))
        (of_y,) = ignoring.grad(names["loss"], names["y"], ignored="masked")
        assert of_y.get_mask().all() != situation.ignores, situation.name


def test_the_table_has_a_mark_and_a_word_in_every_cell_and_links_to_the_pages(shown):
    rows = compare([situation()])
    remedy_tables.marks_table(rows, "A <caption>")
    (item,) = shown
    soup = BeautifulSoup(item.html(), "html.parser")
    cells = soup.select("tbody td")
    assert [c.find("span", attrs={"aria-hidden": "true"}).get_text() for c in cells] == list(rows[0].marks)
    assert [c.select_one(".zn-said-only").get_text() for c in cells] == [c.word for c in rows[0].cells.values()]
    link = soup.select_one("tbody a")
    assert link["href"].endswith("/undefined.html") and link.get_text() == "log <0>"
    assert item.text().splitlines() == ["A <caption>", f"log <0>  {rows[0].marks}"]
