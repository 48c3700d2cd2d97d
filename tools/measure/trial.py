"""The tests of one mutant, in a fork of a process that has imported PyTorch already, on a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ..project import Project
from .apart import apart
from .parts import files

OURS = ("helpers", "tools", "zero_or_nan")
"""Packages that a trial imports anew, from its copy."""


@dataclass
class Found:
    """What became of the tests: those that fail, and how many seconds each took that was run."""

    failed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


class Copy:
    """A copy of the checkout's files, to be mutated in place of it. What was built there is kept."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.project = project
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for there in folder.iterdir():
            if there.name != "_build":
                shutil.rmtree(there) if there.is_dir() else there.unlink()
        for path in files(project):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project.root / path, folder / path)

    def run(
        self, tests: Collection[str], seconds: float, only: Sequence[str] | None = None, first: bool = True
    ) -> Found | str:
        """Run tests on the copy as it is.

        Args:
            tests: files and folders of the checkout.
            seconds: how long they may take together.
            only: the ids of those that are wanted, in their order; None for all.
            first: stop at the first that fails.

        Returns:
            What was found; as text, why the run came to no end.
        """
        given = apart(partial(_run, self.folder, sorted(tests), only, first), seconds)
        return given if isinstance(given, str) else Found(*given)

    def mutated(self, path: str, code: str, number: int) -> None:
        """Write a mutant over its file.

        Its time is like no other's: bytecode of one mutant would pass for that of another with the same time and size.
        """
        (self.folder / path).write_text(code, encoding="utf-8")
        os.utime(self.folder / path, (number + 1, number + 1))

    def mended(self, path: str) -> None:
        shutil.copy2(self.project.root / path, self.folder / path)


def _run(folder: Path, tests: list[str], only: Sequence[str] | None, first: bool) -> tuple[list[str], dict[str, float]]:
    """What makes a `Found`, which this process would take for the copy's."""
    import torch

    torch.set_num_threads(1)
    os.environ |= {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    os.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.path[:0] = [str(folder), str(folder / "src")]
    shutil.rmtree(folder / ".hypothesis", ignore_errors=True)  # what it found for one mutant would help with the next
    watch = _Watch(only)
    options = ["-p", "no:cacheprovider", "--hypothesis-seed=0", *(["-x"] if first else [])]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins that are imported already
    status = pytest.main([*tests, *options], plugins=[watch])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not watch.found.failed:
        watch.found.failed.append(f"pytest ended with {status!r}")
    return watch.found.failed, watch.found.seconds


class _Watch:
    """A plugin of pytest that picks the tests, puts them in order, and notes what becomes of them."""

    def __init__(self, only: Sequence[str] | None) -> None:
        self.only = only
        self.found = Found()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.only is not None:
            place = {test: number for number, test in enumerate(self.only)}
            items[:] = sorted((i for i in items if i.nodeid in place), key=lambda item: place[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found.failed.append(report.nodeid or "conftest.py")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.found.seconds[report.nodeid] = self.found.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and report.nodeid not in self.found.failed:
            self.found.failed.append(report.nodeid)
