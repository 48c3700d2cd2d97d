"""Runs the tests of the library on the installed PyTorch, and counts them: the second part of the matrix."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ..measure.setups import Rows
from ..project import Project, write

PLACES = ("tests/zero_or_nan", "src/zero_or_nan")


class Outcomes:
    """A pytest plugin that keeps what pytest counts, by outcome: reports of tests, and of files that it can't read."""

    def __init__(self) -> None:
        self.reports: dict[str, list[Any]] = {}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Take pytest's own counts at the end of the run."""
        self.reports = terminalreporter.stats


def library_tests(project: Project) -> int:
    """Run the tests, and write their outcomes and those of the training setups to `_build/library-tests.json`."""
    outcomes, rows = Outcomes(), Rows(project.root)
    places = [str(project.root / place) for place in PLACES]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(project.root)]
    status = pytest.main([*places, *options], plugins=[outcomes, rows])
    found: dict[str, Any] = {
        "passed": len(outcomes.reports.get("passed", [])),
        "skipped": len(outcomes.reports.get("skipped", [])),
        "failed": sorted({each.nodeid for kind in ("failed", "error") for each in outcomes.reports.get(kind, [])}),
        "setups": [{key: row[key] for key in ("setup", "code", "holds_on")} for row in rows.rows.values()],
    }
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        found["failed"].append(f"pytest ended with {pytest.ExitCode(status).name}")
    write(project.build / "library-tests.json", json.dumps(found, indent=1) + "\n")
    return int(status)
