"""Which tests run a line of the code, and how long they take. One run of the fast tests under coverage finds it out."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

from coverage import CoverageData

from ..project import Problem

FOUND = Path("_build", "coverage")
"""The folder of a copy in which `coverage` writes its data, as `pyproject.toml` says."""
UNKNOWN_TEST = 4
"""The exit status of pytest if a test that it was asked to run does not exist."""


class Covering:
    """The tests that run each line.

    Args:
        kept: the folder that holds what was found. If it is missing, the tests run, and it is written.
        copy: a copy of the checkout, in which the tests run.

    Raises:
        Problem: if the tests can't run.
    """

    def __init__(self, kept: Path, copy: Path) -> None:
        self.copy = copy
        if not kept.is_dir():
            print("running the fast tests once, to find out which lines each of them runs", flush=True)
            coverage = ["--cov", "--cov-context=test", "--cov-report=", "-n", "2", "--dist", "worksteal"]
            times = ["-o", "junit_family=xunit1", f"--junitxml={FOUND / 'tests.xml'}"]
            if run(copy, [*coverage, *times]) not in (0, 1):
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

        Whatever runs when a file is imported matters to every test that runs anything of the file.
        """
        found = self._data.contexts_by_lineno(file)
        runs = {number: {each.rpartition("|")[0] for each in contexts} - {""} for number, contexts in found.items()}
        lines = statement((self.copy / file).read_text(encoding="utf-8"), line)
        chosen = runs if lines is None else [line] if runs.get(line) else lines
        tests = set().union(*(runs.get(number, ()) for number in chosen))
        return sorted(tests & self.seconds.keys(), key=lambda test: self.seconds[test])


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
