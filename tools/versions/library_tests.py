"""Runs the tests of the library on the installed PyTorch, and counts them: the second part of the matrix."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from ..measure.setups import Rows
from ..project import Project, write

PLACES = ("tests/zero_or_nan", "src/zero_or_nan")


class Outcomes:
    """A pytest plugin that counts the outcomes of the tests, and names the tests that failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(passed=0, skipped=0)
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test. It passed if its call passed, and it failed if any part of it failed."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            self.counts["skipped"] += 1
        elif report.when == "call":
            self.counts["passed"] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that can't be read as a failure. Without this, its tests would be missing without a message."""
        if report.failed:
            self.failed.append(report.nodeid)


def library_tests(project: Project) -> int:
    """Run the tests, and write their outcomes and those of the training setups to `_build/library-tests.json`."""
    outcomes, rows = Outcomes(), Rows(project.root)
    places = [str(project.root / place) for place in PLACES]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(project.root)]
    status = pytest.main([*places, *options], plugins=[outcomes, rows])
    found: dict[str, Any] = {
        "passed": outcomes.counts["passed"],
        "skipped": outcomes.counts["skipped"],
        "failed": sorted(set(outcomes.failed)),
        "setups": [{key: row[key] for key in ("setup", "code", "holds_on")} for row in rows.rows.values()],
    }
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        found["failed"].append(f"pytest ended with {pytest.ExitCode(status).name}")
    write(project.build / "library-tests.json", json.dumps(found, indent=1) + "\n")
    return int(status)
