"""The tables of releases: one cell for all that gave the same, a new one where something changed, and a way there."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup

from tools.pages.releases import _alike, changed, changes, columns, releases
from tools.pages.releases import tested as what_ran
from tools.project import write_record
from tools.steps.record import add


def entries(*texts, shape=None):
    return {"dtype": "float32", "shape": shape or [len(texts)], "entries": list(texts)}


def claim(observed, method="vanilla", quantity="x.grad", holds=True, **more):
    return {"page": "where-over-exp", "type": "claim", "case": "10729", "method": method, "quantity": quantity,
            "expected": observed if holds else {"absent": True}, "observed": observed, "tolerance": "exactly",
            "holds": holds, **more}  # fmt: skip


def verdict(**words):
    return {"page": "where-over-exp", "type": "verdict", "case": "10729", "quantity": "x.grad", "expected": words,
            "observed": words, "holds": True}  # fmt: skip


def put(folder: Path, version: str, *facts, device="cpu") -> None:
    run = {"torch": version, "device": device, "python": "3", "machine": "m", "outcomes": list(facts)}
    add(SimpleNamespace(claims=folder / "claims.json"), run, complete=False)


def link(page: str) -> str:
    return f"../{page}.html"


def rows(text):
    """Each row of a way: its head, and for each cell its span, words, classes and links."""
    soup = BeautifulSoup(text, "html.parser")
    return {
        row.th.get_text(): [
            (int(cell["colspan"]), " ".join(cell.get_text(" ").split()), set(cell.get("class", [])) - {""},
             [a["href"] for a in cell("a")])
            for cell in row("td")
        ]
        for row in soup.select("tbody tr") if row.td
    }  # fmt: skip


def test_releases_that_gave_the_same_share_a_cell(tmp_path):
    for version in ("2.9.0", "2.10.0", "2.6.0", "2.12.0", "2.11.0"):
        put(tmp_path, version, claim(entries("1", "NaN")), verdict(vanilla="contaminated"))
    assert [column.version for column in columns(tmp_path)] == ["2.6.0", "2.9.0", "2.10.0", "2.11.0", "2.12.0"]
    assert rows(releases(tmp_path, link)) == {"vanilla": [(5, "✗ contaminated", set(), [])]}
    assert list(changes(columns(tmp_path))) == []


def test_a_claim_that_changed_has_a_row_that_leads_to_it(tmp_path):
    history = [{"since": "", "expected": {}, "pull": None}, {"since": "2.14", "expected": {}, "pull": 191142}]
    put(tmp_path, "2.12.0", claim(entries("1", "5"), history=history), claim(entries("2"), quantity="y"))
    put(tmp_path, "2.13.0", claim(entries("1", "5"), history=history), claim(entries("2"), quantity="y"))
    put(tmp_path, "2.14.0", claim(entries("0", "5"), history=history), claim(entries("2"), quantity="y"))
    where = "../where-over-exp.html#claim-10729-vanilla-x-grad"
    (change,) = changes(columns(tmp_path))
    assert (change.version, change.pull, change.place.quantity) == ("2.14.0", 191142, "x.grad")
    table = BeautifulSoup(changed(tmp_path, link), "html.parser")
    (row,) = table.select("tbody tr")
    assert [cell.get_text() for cell in row("td")] == ["[0] 1", "2.14: [0] 0", "pytorch#191142"]
    assert [a["href"] for a in row("a")] == [where, "https://github.com/pytorch/pytorch/pull/191142"]
    caption = BeautifulSoup(releases(tmp_path, link), "html.parser").caption.get_text()
    assert "a release changed 1 of these claims" in caption


def test_a_claim_that_does_not_hold_is_told_before_any_word(tmp_path):
    put(tmp_path, "2.13.0", claim(entries("1")), verdict(vanilla="right"))
    put(tmp_path, "2.14.0", claim(entries("1"), holds=False), verdict(vanilla="right"))
    assert rows(releases(tmp_path, link))["vanilla"] == [
        (1, "✓ right", set(), []),
        (1, "✗ does not hold", {"zn-changed"}, []),
    ]


def test_a_way_that_a_release_did_not_run_is_no_success(tmp_path):
    put(tmp_path, "2.13.0", claim(entries("1")), claim(entries("1"), method="masked"))
    put(tmp_path, "2.14.0", claim(entries("1")))
    assert [cell[1] for cell in rows(releases(tmp_path, link))["masked"]] == ["✓ as claimed", "– not run"]


def test_each_device_is_columns_of_its_own_and_its_first_is_no_change(tmp_path):
    put(tmp_path, "2.13.0", claim(entries("1")))
    put(tmp_path, "2.13.0", claim(entries("2")), device="cuda")
    text = releases(tmp_path, link)
    assert [cell[:3] for cell in rows(text)["vanilla"]] == [(1, "✓ as claimed", set())] * 2
    heads = [head.get_text() for head in BeautifulSoup(text, "html.parser").select('th[scope="colgroup"]')]
    assert heads == ["PyTorch, CPU", "PyTorch, CUDA"]


def test_of_several_verdicts_the_worst_counts(tmp_path):
    worst = {**verdict(vanilla="raises TypeError"), "quantity": "y"}
    put(tmp_path, "2.13.0", claim(entries("1")), verdict(vanilla="right"), worst)
    assert rows(releases(tmp_path, link))["vanilla"][0][1] == "! raises TypeError"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (entries("1", "NaN", "--", "inf"), entries("1", "NaN", "--", "inf"), True),
        (entries("0.33333334"), entries("0.3333333"), True),  # rounding
        (entries("1"), entries("NaN"), False),
        (entries("0"), entries("1e-30"), False),
        (entries("inf"), entries("-inf"), False),
        (entries("1"), entries("1", shape=[1, 1]), False),
        (entries("1"), {"absent": True}, False),
        ({"absent": True}, {"absent": True}, True),
        ({"raised": "TypeError", "message": "a"}, {"raised": "TypeError", "message": "b"}, True),
        ({"raised": "TypeError", "message": "a"}, {"raised": "ValueError", "message": "a"}, False),
    ],
)
def test_what_counts_as_the_same(one, other, alike):
    assert _alike(one, other) is alike and _alike(other, one) is alike


def test_what_ran_is_told_with_what_failed_and_with_the_claims_that_are_recorded_now(tmp_path):
    held = {"x": True, "y": False, "z": True}
    put(tmp_path, "2.6.0", *(claim(entries("1"), quantity=name, holds=holds) for name, holds in held.items()))
    row = {"torch": "2.6.0", "claims": {"held": 1, "of": 1}, "tests": {"passed": 5, "skipped": 0, "failed": ["a"]},
           "fixed": {"error": "<it died>"}}  # fmt: skip
    rows = [row, {"torch": "2.7.0", "error": "no such version"}]
    write_record(tmp_path / "measured" / "matrix.json", {"rows": rows})
    text = [cell.get_text() for cell in BeautifulSoup(what_ran(tmp_path), "html.parser").select("tbody td")]
    assert text == ["2 of 3", "5 passed, 1 failed", "<it died>"] + 3 * ["no such version"]
