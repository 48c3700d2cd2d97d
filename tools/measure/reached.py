"""Which test reached which line: coverage.py's contexts, one for each test, in the processes that it starts too.

As a plugin of pytest (`-p tools.measure.reached`) it names the contexts while coverage.py watches. What a fixture of
many tests did is every one's of them, whichever asked first: it has a context of its own.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage, CoverageData

from ..project import Project, write

DATA, TESTS, FILES = "data", "tests.json", "files.json"
"""Beside each other: what coverage.py found, what each fixture's tests are and which fail, and the files' digests."""

_OF_A_FIXTURE = "fixture "


def pytest_configure(config: pytest.Config) -> None:
    """Watch, where coverage.py does."""
    coverage = Coverage.current()
    if coverage is not None:
        config.pluginmanager.register(Contexts(coverage, Path(coverage.config.data_file).parent))


class Contexts:
    """Names the contexts, and notes which tests share what a fixture does."""

    def __init__(self, coverage: Coverage, folder: Path) -> None:
        self.coverage = coverage
        self.folder = folder
        self._name = ""
        self._users: dict[str, list[str]] = {}
        self._failed: list[str] = []

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        before = self._name
        self._enter(name)
        try:
            yield
        finally:
            self._enter(before)

    def _enter(self, name: str) -> None:
        self._name = name
        self.coverage.switch_context(name)
        self.coverage.config.context = name or None  # what a process that is started now calls all that it runs
        os.environ["COVERAGE_PROCESS_CONFIG"] = self.coverage.config.serialize()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        with self._named(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        with self._named(_OF_A_FIXTURE + fixturedef.argname):
            return (yield)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for name in getattr(item, "fixturenames", ()):
                self._users.setdefault(name, []).append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        write(self.folder / TESTS, json.dumps({"users": self._users, "failed": self._failed}))


def digest(path: Path) -> str:
    """What tells one content of a file from another; nothing for a file that is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


class Reached:
    """What a run of a part's tests under coverage.py found.

    Args:
        project: the checkout, as it is now.
        folder: where the run left its three files; nothing is known when there are none.
    """

    def __init__(self, project: Project, folder: Path) -> None:
        self.project = project
        self.known = all((folder / name).is_file() for name in (DATA, TESTS, FILES))
        self._files: dict[str, str] = json.loads((folder / FILES).read_text()) if self.known else {}
        tests = json.loads((folder / TESTS).read_text()) if self.known else {"users": {}, "failed": []}
        self.failed: list[str] = tests["failed"]
        """Tests that failed then: what they would have reached after that is not known."""
        self._users: dict[str, list[str]] = tests["users"]
        self._folder = folder
        self._by_file: dict[str, dict[int, list[str]]] = {}

    def is_as_it_was(self, path: str) -> bool:
        """Whether a file has not changed since."""
        return path in self._files and self._files[path] == digest(self.project.root / path)

    def tests(self, path: str, first: int, last: int) -> set[str] | None:
        """The tests that ran a statement of these lines, by their pytest ids.

        Returns:
            None when it can't be told: the file has changed since, or the lines are run as it is imported.
        """
        if not self.is_as_it_was(path):
            return None
        lines = _statement((self.project.root / path).read_text(encoding="utf-8"), first, last)
        contexts = self._lines(path)
        found: set[str] = set()
        for line in lines:
            for context in contexts.get(line, ()):
                if not context:
                    return None
                found.update(self._of(context))
        return found

    def _of(self, context: str) -> list[str]:
        """A process may have its own name for what it does beside the one that it was started under."""
        names = [name for name in context.split("|") if name]
        fixtures = [name.removeprefix(_OF_A_FIXTURE) for name in names if name.startswith(_OF_A_FIXTURE)]
        return [user for name in fixtures for user in self._users.get(name, [])] or names

    @cached_property
    def _data(self) -> CoverageData:
        data = CoverageData(str(self._folder / DATA))
        data.read()
        return data

    def _lines(self, path: str) -> dict[int, list[str]]:
        if path not in self._by_file:
            self._by_file[path] = self._data.contexts_by_lineno(path)
        return self._by_file[path]


def _statement(text: str, first: int, last: int) -> range:
    """The lines of the innermost statement around these lines; of one with a body, those before it."""
    found = range(first, last + 1)
    size = len(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
            lines = range(start, max(end, node.lineno) + 1)
            if lines[0] <= first and last <= lines[-1] and len(lines) < size:
                found, size = lines, len(lines)
    return found
