"""The training setups in which `ignoring` works. Each row of the table is the marker `setup` of some tests.

To add a release of PyTorch, run the same command in an environment with this release. The results of other releases are
kept.
"""

from __future__ import annotations

import html
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers import show
from helpers.recorded import spans

from ..project import Problem, Project, named
from .costs_shown import cost
from .records import RELEASE as VERSION
from .records import keep, prose, read

if TYPE_CHECKING:
    import pytest

FILES = (
    "in_training/test_core.py",
    "ignoring/test_distributed.py",
    "in_training/test_frameworks.py",
    "in_training/test_limits.py",
    "ignoring/test_authoring.py",
    "in_training/test_on_devices.py",
)
"""The test files in `tests/zero_or_nan` that have rows, in the order of the table."""

FACTS: dict[str, Any] = {"fixes": True, "holds_on": [], "not_run": ""}
"""For each row: whether the gradient is right, on which releases this was tested, and if on none, why."""


class Rows:
    """A pytest plugin that collects the rows of the tests, and their outcomes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows: dict[str, dict[str, Any]] = {}
        """The rows by the name of the setup."""
        self.wrong: list[str] = []
        self._row_of: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Make a row of each marker. Tests with the same marker share a row."""
        for item in items:
            marker = item.get_closest_marker("setup")
            if marker is None:
                continue
            name, code, remark = marker.args
            test = f"{item.path.relative_to(self.root).as_posix()}::{getattr(item, 'originalname', item.name)}"
            row = self.rows.setdefault(
                name, {"setup": name, "code": code, "remark": remark, **FACTS, **marker.kwargs, "tests": []}
            )
            if (row["code"], row["remark"]) != (code, remark):
                self.wrong.append(
                    f"{test} and an earlier test describe the setup {name!r} differently; give both the same code "
                    "and remark"
                )
            if test not in row["tests"]:
                row["tests"].append(test)
            self._row_of[item.nodeid] = row

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test. A row holds if at least one of its tests ran and none failed."""
        row = self._row_of.get(report.nodeid)
        if row is None:
            return
        if report.failed:
            self.wrong.append(f"{report.nodeid} fails:\n{report.longreprtext}")
        elif report.skipped and not row["holds_on"]:
            row["not_run"] = str(report.longrepr[2]).removeprefix("Skipped: ")  # type: ignore[index]
        elif report.when == "call" and report.passed:
            row["holds_on"], row["not_run"] = [VERSION], ""


def declared(project: Project, *options: str) -> Rows:
    """The rows of the tests, after running the tests. With the option `--collect-only`, no test runs.

    Raises:
        Problem: if a test fails, or if two tests describe one setup differently.
    """
    import pytest  # here, because a build of the site must not need it

    rows = Rows(project.root)
    tests = project.root / "tests" / "zero_or_nan"
    files = [str(tests / name) for name in FILES]
    status = pytest.main([*files, "-m", "setup", "-q", "-p", "no:cacheprovider", *options], plugins=[rows])
    if rows.wrong or status != pytest.ExitCode.OK:
        raise Problem("\n".join(rows.wrong) or f"pytest ended with {status!r}; its output is above")
    return rows


def setups(project: Project, *names: str) -> int:
    """Run the tests, and write `results/measured/setups.json`. If setups are named, run only their tests."""
    tests = {row["setup"]: row["tests"] for row in read(project, "setups").get("rows", [])}
    if chosen := named(names, tests, "setup"):
        import pytest  # here, because a build of the site must not need it

        return int(pytest.main(["-q", *(test for name in chosen for test in tests[name])]))
    held = {(row["setup"], row["code"]): row["holds_on"] for row in read(project, "setups").get("rows", [])}
    rows = list(declared(project).rows.values())
    for row in rows:
        row["holds_on"] = _with(held.get((row["setup"], row["code"]), []), VERSION, row["holds_on"])
        row["not_run"] = "" if row["holds_on"] else row["not_run"]
    keep(project, "setups", {"rows": rows})
    return 0


def add(project: Project, version: str, found: list[dict[str, Any]]) -> None:
    """Put the results of a run on another version into the recorded rows.

    Args:
        project: the checkout.
        version: the version of PyTorch.
        found: for each setup its name, its code, and `holds_on`, which is empty if its tests did not run or failed.
    """
    rows = read(project, "setups").get("rows", [])
    holds_on = {(row["setup"], row["code"]): row["holds_on"] for row in found}
    for row in rows:
        if (name := (row["setup"], row["code"])) in holds_on:
            row["holds_on"] = _with(row["holds_on"], version, holds_on[name])
            row["not_run"] = "" if row["holds_on"] else row["not_run"]
    keep(project, "setups", {"rows": rows})


def _with(known: list[str], version: str, found: list[str]) -> list[str]:
    """The versions of a row, after a run on one of them."""
    others = [each for each in known if each != version]
    return sorted(others + found, key=lambda each: [int(n) for n in each.split(".")[:2]])


# On the page.


DECISIONS = tomllib.loads(Path(__file__).with_name("decisions.toml").read_text(encoding="utf-8"))
"""The settings that most people have, the most frequent first: the recorded setup whose code is the line to write, and
what to know of its limits and its cost, if this is more than the remark of the setup."""


def decided(content: dict[str, Any], costs: dict[str, Any]) -> str:
    """The table that says which line to write in which training setting.

    The lines are those of the recorded setups, so a test has run each of them.

    Raises:
        Problem: if a row's setup is not in the record, or if no release gets it right.
    """
    held = {row["setup"]: row for row in content["rows"] if row["fixes"] and row["holds_on"]}
    if lost := [each["setup"] for each in DECISIONS.values() if each["setup"] not in held]:
        raise Problem(f"tools/measure/setups.py advises setups that no recorded test holds: {', '.join(lost)}")
    rows = [{**held[each["setup"]], **each, "setup": setting} for setting, each in DECISIONS.items()]
    for row in rows:
        if "cost" in row:
            row["remark"] = f"{row['remark']} {cost(costs, row['cost'])}"
    return _table("The line to write, by setting", rows)


def shown(content: dict[str, Any]) -> str:
    """The table of all other setups with a remark, and a sentence that names those whose code says all."""
    decided = {each["setup"] for each in DECISIONS.values()}
    others = [row for row in content["rows"] if row["setup"] not in decided and row["holds_on"]]
    names = "; ".join(show.with_code(row["setup"]) for row in others if not row["remark"])
    table = _table("The line to write in other settings", [row for row in others if row["remark"]])
    return table + prose(f"<p>These were tested too, and need no other change: {names}.</p>")


def _table(caption: str, setups: list[dict[str, Any]]) -> str:
    rows = [
        [
            show.with_code(row["setup"]),
            f'<pre>{html.escape(row["code"])}</pre><div class="zn-note">{show.with_code(row["remark"])}</div>',
            f'<span class="zn-word">{spans(row["holds_on"])}</span>' if row["fixes"] else "<strong>no</strong>",
        ]
        for row in setups
    ]
    head = ["your setting", "write", "right on PyTorch"]
    return prose(show.table(caption, head, rows, stack=True), kind="zn-setups zn-searched")
