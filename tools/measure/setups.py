"""In which setups `ignoring` works, told by the tests: each row of the table is the marker `setup` of its tests.

A release of PyTorch is added by running the same command in an environment that has it; what others gave stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ..project import Problem, Project, read_record, write_record

FILES = (
    "in_training/test_core.py",
    "ignoring/test_distributed.py",
    "ignoring/test_sharded.py",
    "in_training/test_frameworks.py",
    "in_training/test_limits.py",
    "ignoring/test_authoring.py",
    "in_training/test_on_devices.py",
)
"""The tests of `tests/zero_or_nan` that have rows, in the order of the table."""

FACTS: dict[str, Any] = {"fixes": True, "holds_on": [], "not_run": ""}
"""Of a row: whether the gradient is right there, on which releases that was tested, and else why not."""

VERSION = torch.__version__.partition("+")[0]


class Rows:
    """A plugin of pytest that collects the rows of the tests, and what became of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows: dict[str, dict[str, Any]] = {}
        """By the name of the setup."""
        self.wrong: list[str] = []
        self._row_of: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Make a row of each marker; tests that have the same one share it."""
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
        """Note what became of a test: a row holds where one of its tests was run and none failed."""
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
    """The rows of the tests, after running them; with `--collect-only` without.

    Raises:
        Problem: when a test fails, or two tell different things of one setup.
    """
    rows = Rows(project.root)
    tests = project.root / "tests" / "zero_or_nan"
    files = [str(tests / name) for name in FILES]
    status = pytest.main([*files, "-m", "setup", "-q", "-p", "no:cacheprovider", *options], plugins=[rows])
    if rows.wrong or status != pytest.ExitCode.OK:
        raise Problem("\n".join(rows.wrong) or f"pytest ended with {status!r}; its output is above")
    return rows


def setups(project: Project) -> None:
    """Run the tests, and write `results/measured/setups.json`."""
    held = {(row["setup"], row["code"]): row["holds_on"] for row in _recorded(project)}
    rows = list(declared(project).rows.values())
    for row in rows:
        row["holds_on"] = _with(held.get((row["setup"], row["code"]), []), VERSION, row["holds_on"])
        row["not_run"] = "" if row["holds_on"] else row["not_run"]
    _write(project, rows)
    print(f"written: {_path(project).relative_to(project.root)}, with {len(rows)} setups")


def add(project: Project, version: str, found: list[dict[str, Any]]) -> None:
    """Put what a run on another version gave into the recorded rows.

    Args:
        project: the checkout.
        version: of PyTorch.
        found: for each setup its name, its code, and `holds_on`, empty where it was not run or failed.
    """
    rows = _recorded(project)
    holds_on = {(row["setup"], row["code"]): row["holds_on"] for row in found}
    for row in rows:
        if (name := (row["setup"], row["code"])) in holds_on:
            row["holds_on"] = _with(row["holds_on"], version, holds_on[name])
            row["not_run"] = "" if row["holds_on"] else row["not_run"]
    _write(project, rows)


def _with(known: list[str], version: str, found: list[str]) -> list[str]:
    """The versions of a row after a run on one of them."""
    others = [each for each in known if each != version]
    return sorted(others + found, key=lambda each: [int(n) for n in each.split(".")[:2]])


def _path(project: Project) -> Path:
    return project.results / "measured" / "setups.json"


def _recorded(project: Project) -> list[dict[str, Any]]:
    path = _path(project)
    return list(read_record(path)["rows"]) if path.is_file() else []


def _write(project: Project, rows: list[dict[str, Any]]) -> None:
    write_record(_path(project), {"rows": rows})
