"""The table of setups is what its tests say, and what became of them."""

import json
import sys

import pytest
from bs4 import BeautifulSoup
from scratch import ROOT

from tools.measure import costs_shown, setups
from tools.measure.records import read
from tools.project import Problem, Project

SHOWN = ("setup", "code", "remark", "fixes", "tests")
CONFIGURATION = "[tool.pytest.ini_options]\nmarkers = ['setup(name): a row']\n"


def recorded():
    return json.loads((ROOT / "results" / "measured" / "setups.json").read_text(encoding="utf-8"))["rows"]


def facts(rows):
    return [{name: row[name] for name in SHOWN} for row in rows]


def test_the_recorded_rows_are_those_of_the_tests(capsys):
    declared = setups.declared(Project(ROOT), "--collect-only", "-qq")
    assert facts(declared.rows.values()) == facts(recorded()), "run `make setups`"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout with one file of tests, to be written."""
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION)
    monkeypatch.setattr(setups, "FILES", ("test_one.py",))

    class Checkout:
        root, results, tests = tmp_path, tmp_path / "results", tmp_path / "tests" / "zero_or_nan"

        def write(self, text):
            self.tests.mkdir(parents=True, exist_ok=True)
            (self.tests / "test_one.py").write_text("import pytest\n" + text)
            for name in [name for name in sys.modules if name.startswith("test_one")]:
                del sys.modules[name]

        def rows(self):
            return json.loads((self.results / "measured" / "setups.json").read_text())["rows"]

    return Checkout()


GOOD = "@pytest.mark.setup('a', 'code', 'remark')\ndef test_{}(): {}\n"


def test_tests_of_one_row_share_it_and_one_that_was_run_is_enough(project, capsys):
    skipped = GOOD.format("two", "pytest.skip('not here')")
    project.write(GOOD.format("one", "pass") + skipped + "def test_other(): 1 / 0\n")
    setups.setups(project)
    (row,) = project.rows()
    assert row["tests"] == ["tests/zero_or_nan/test_one.py::test_one", "tests/zero_or_nan/test_one.py::test_two"]
    assert (row["holds_on"], row["not_run"]) == ([setups.VERSION], "")


def test_a_test_that_fails_leaves_the_table_as_it_was(project, capsys):
    project.write(GOOD.format("one", "pass"))
    setups.setups(project)
    before = project.rows()
    project.write(GOOD.format("one", "assert 1 == 2"))
    with pytest.raises(Problem, match="test_one fails"):
        setups.setups(project)
    assert project.rows() == before


def test_two_that_disagree_of_a_setup_are_refused(project, capsys):
    project.write(GOOD.format("one", "pass") + GOOD.format("two", "pass").replace("remark", "another"))
    with pytest.raises(Problem, match="test_two and an earlier test describe the setup 'a' differently"):
        setups.setups(project)
    assert not project.results.exists()


def test_another_release_is_added_and_a_changed_row_begins_anew(project, capsys, monkeypatch):
    project.write(GOOD.format("one", "pass"))
    for version in ("2.13.0", "2.6.0", "2.13.0", "2.15.0"):
        monkeypatch.setattr(setups, "VERSION", version)
        setups.setups(project)
    assert project.rows()[0]["holds_on"] == ["2.6.0", "2.13.0", "2.15.0"]
    project.write(GOOD.format("one", "pass").replace("'code'", "'other code'"))
    setups.setups(project)
    assert project.rows()[0]["holds_on"] == ["2.15.0"]


def test_the_table_tells_right_from_not_right_and_leaves_out_what_was_not_tested():
    facts = {"code": "a < b", "remark": "", "fixes": True, "holds_on": ["2.6.0", "2.13.1"], "not_run": ""}
    rows = [
        facts | {"setup": "A `x`", "remark": "r `y`"},
        facts | {"setup": "B", "code": "b", "remark": "r", "fixes": False},
        facts | {"setup": "C", "holds_on": [], "not_run": "not yet tested"},
        facts | {"setup": "D"},
        facts | {"setup": "E"},
    ]
    page = BeautifulSoup(setups.shown({"rows": rows}), "html.parser")
    cells = [[cell.get_text() for cell in row.select("th, td")] for row in page.select("tbody tr")]
    assert cells == [["A x", "a < br y", "2.6, 2.13"], ["B", "br", "no"]]
    assert [code.get_text() for code in page.select("tbody code")] == ["x", "y"]
    assert page.get_text().endswith("no other change: D; E.")


def test_each_setup_is_in_one_table():
    costs = read(Project(ROOT), "costs")
    first, second = setups.decided({"rows": recorded()}, costs), setups.shown({"rows": recorded()})
    assert first.count("<pre>") == len(setups.DECISIONS)
    with_remark = [row for row in recorded() if row["holds_on"] and row["remark"]]
    assert first.count("<pre>") + second.count("<pre>") == len(with_remark)
    assert "<pre>ignoring.backward(scaler.scale(loss))</pre>" in first
    compiled = costs_shown.cost(costs, "compiled")
    assert first.count(compiled) == 2 and costs_shown.cost(costs, "penalty") in first


@pytest.mark.parametrize("change", [{"fixes": False}, {"holds_on": []}, {"setup": "renamed"}])
def test_a_line_that_no_test_holds_is_not_advised(change):
    rows = [row | change if row["setup"] == "FSDP2" else row for row in recorded()]
    with pytest.raises(Problem, match="no recorded test holds: FSDP2$"):
        setups.decided({"rows": rows}, {})
