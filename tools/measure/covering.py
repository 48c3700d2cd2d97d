"""Runs the tests of a line in a copy of the checkout. One run of all fast tests under coverage says which these are."""

from __future__ import annotations

import ast
import compileall
import os
import py_compile
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

from coverage import CoverageData

from ..project import Problem, Project
from ..steps.git import git

FOUND = Path("_build", "coverage")
"""The folder of a copy in which `coverage` writes its data, as `pyproject.toml` says."""
UNKNOWN_TEST = 4
"""The exit status of pytest if a test that it was asked to run does not exist."""
START, SLOWER = 60, 3
"""The time limit of a run: the seconds in which pytest starts, and how many times their usual time the tests get."""


class Covering:
    """The tests that run each line of a commit. What was found out is kept in `_build/mutants`.

    Args:
        project: the checkout.
        commit: its last commit.
        copy: a new folder, for a copy of this commit.

    Raises:
        Problem: if git can't make the copy, or if the tests can't run.
    """

    def __init__(self, project: Project, commit: str, copy: Path) -> None:
        self.copy = copy
        if git(project, "clone", "--quiet", "--shared", str(project.root), str(copy)) is None:
            raise Problem(f"git can't clone {project.root} to {copy}: free some space there, or check the permissions")
        # Two versions of a file may have the same length and the same second of writing: only a hash tells them apart.
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(copy, quiet=2, invalidation_mode=checked)
        kept = project.build / "mutants" / commit
        if not kept.is_dir():
            print("running the fast tests once, to find out which lines each of them runs", flush=True)
            coverage = ["--cov", "--cov-context=test", "--cov-report="]
            times = ["-o", "junit_family=xunit1", f"--junitxml={FOUND / 'tests.xml'}"]
            # A test has code in a file whose name is not UTF-8. There coverage fails, and pytest can show only a native
            # traceback. xdist can't send this traceback to another process, so the tests run in one process.
            if run(copy, [*coverage, *times, "--tb=native"]) not in (0, 1):
                raise Problem("the tests can't run, and the output of pytest above says why: make test-fast must pass")
            shutil.rmtree(kept.parent, ignore_errors=True)  # what was found for other commits
            shutil.copytree(copy / FOUND, part := kept.with_suffix(".part"))
            part.rename(kept)
        self._data = CoverageData(str(kept / "data"))
        self._data.read()
        self.seconds: dict[str, float] = {}
        """The usual seconds of each test that passed."""
        for case in ElementTree.parse(kept / "tests.xml").iter("testcase"):
            name = f"{case.get('file')}::{case.get('name')}"
            if case.find("failure") is case.find("error") is None:
                self.seconds[name] = float(case.get("time", 0))
            else:
                print(f"this test is left out, because it fails without a mutation: {name}", flush=True)

    def tests(self, file: str, line: int) -> list[str]:
        """The passing tests that run a line, the fastest first.

        What runs when a file is imported, as a table that other files read, may matter to every test. Then the tests
        that run anything of the file come first.
        """
        found = self._data.contexts_by_lineno(file)
        runs = {number: {each.rpartition("|")[0] for each in contexts} - {""} for number, contexts in found.items()}
        lines = statement((self.copy / file).read_text(encoding="utf-8"), line)
        chosen = runs if lines is None else [line] if runs.get(line) else lines
        first = set().union(*(runs.get(number, ()) for number in chosen))
        tests = self.seconds.keys() if lines is None else first & self.seconds.keys()
        return sorted(tests, key=lambda test: (test not in first, self.seconds[test]))

    def passes(self, tests: Sequence[str]) -> bool | None:
        """Whether these tests pass in the copy as it is now; None if they take several times as long as usual."""
        chosen = self.copy.with_name("tests.txt")
        seconds = START + SLOWER * sum(self.seconds[test] for test in tests)
        for names in (tests, {test.partition("[")[0]: None for test in tests}):
            chosen.write_text("\n".join(names), encoding="utf-8")
            status = run(self.copy, ["-x", f"@{chosen}"], seconds)
            if status != UNKNOWN_TEST:  # a change of the code may change the cases of a test
                break
        return None if status is None else status == 0


def statement(code: str, line: int) -> range | None:
    """The lines of the statement at a line, without the statements inside; None if it runs when the file is imported.

    >>> statement("x = 1\\ndef f():\\n    return (\\n        x\\n    )\\n", 4)
    range(3, 6)
    >>> statement("x = 1\\ndef f():\\n    return x", 2)
    """
    tree = ast.parse(code)
    at = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= _end(node)]
    if not any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.body[0].lineno <= line for node in at):
        return None
    innermost = at[-1]  # ast.walk gives the outer statements first
    inside = [node.lineno for node in ast.walk(innermost) if isinstance(node, ast.stmt) and node is not innermost]
    return range(innermost.lineno, min(inside, default=_end(innermost) + 1))


def run(copy: Path, options: Sequence[str], seconds: float | None = None) -> int | None:
    """Run fast tests in a copy of the checkout.

    Args:
        copy: the top folder of the copy.
        options: what pytest gets in addition.
        seconds: the most seconds that the tests may take; without limit by default. With a limit, nothing is printed.

    Returns:
        The exit status of pytest; None if the time is over.
    """
    paths = [str(copy / "src"), str(copy), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = None if seconds is None else subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", *options],
        cwd=copy, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, stdout=quiet, stderr=quiet,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what the tests started ends too
        process.wait()


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
