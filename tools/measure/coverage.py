"""Which statements and branches of the code its tests run, by coverage.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

from ..project import Problem, Project, write
from .parts import PARTS, Part, chosen, files
from .reached import DATA, FILES, Reached, digest


def folder_of(project: Project, part: Part) -> Path:
    """What a part's run leaves, for this command and for `mutants`."""
    return project.build / "coverage" / part.name


def coverage(project: Project, *names: str) -> None:
    """Run the tests of some parts, or of all; then print and record each part by its last run.

    Writes `results/measured/coverage.json`.

    Tests that fail are recorded beside what they reached: under coverage.py some are too slow for their own limits.

    Raises:
        Problem: when the tests of a part can't be run, or there is no such part.
    """
    for part in chosen(names):
        _run(project, part)
    content = report(project)
    for name, total in content["totals"].items():
        print(
            f"{name:10} {total['statements']:6} statements, {total['missing_statements']:4} of them not run; "
            f"{total['branches']:5} branches, {total['missing_branches']:4} of them not taken: {total['covered']} %"
        )
    missing = [part.name for part in PARTS if part.name not in content["totals"]]
    if missing:
        print(f"not recorded, because their tests have not been run: {', '.join(missing)}; run make coverage")
    path = project.results / "measured" / "coverage.json"
    write(path, json.dumps(content, indent=1) + "\n")
    print(f"written: {path.relative_to(project.root)}")


def _run(project: Project, part: Part) -> None:
    folder = folder_of(project, part)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    contents = {path: digest(project.root / path) for path in files(project, "src", "tools", "tests")}
    environment = {**os.environ, "COVERAGE_FILE": str(folder / DATA)}
    measure = [sys.executable, "-m", "coverage"]
    tests = ["-m", "pytest", "-p", "tools.measure.reached", "-p", "no:cacheprovider", *part.tests]
    print(f"{part.name}: running the tests of {part.source}", flush=True)
    done = subprocess.run([*measure, "run", *tests], cwd=project.root, env=environment)
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise Problem(
            f"pytest could not run the tests of {part.name}, so nothing is recorded for {part.name}; its output is "
            "above"
        )
    subprocess.run([*measure, "combine", "--quiet"], cwd=project.root, env=environment, check=True)
    write(folder / FILES, json.dumps(contents))  # last: without it the run does not count


def report(project: Project) -> dict[str, Any]:
    """What is recorded: for each part that was run its totals, and its files.

    A file counts by the tests of its own part alone.
    """
    totals, by_file = {}, {}
    failed: list[str] = []
    for part in PARTS:
        folder = folder_of(project, part)
        if not (folder / FILES).is_file():
            continue
        rows = _files(project, part, folder)
        totals[part.name] = _total(rows.values())
        by_file.update(rows)
        failed += Reached(project, folder).failed
    return {"totals": totals, "failed": failed, "files": by_file}


def _files(project: Project, part: Part, folder: Path) -> dict[str, Any]:
    path = folder / "report.json"
    with chdir(project.root):  # from where the paths in the data lead
        measured = Coverage(data_file=str(folder / DATA), config_file="pyproject.toml")
        measured.load()
        measured.json_report(
            morfs=[name for name in files(project, part.source) if name.endswith(".py")], outfile=str(path)
        )
    found = json.loads(path.read_text(encoding="utf-8"))["files"]
    return {Path(name).as_posix(): _row(row) for name, row in found.items()}


def _row(found: dict[str, Any]) -> dict[str, Any]:
    summary = found["summary"]
    counts = {
        "statements": summary["num_statements"],
        "missing_statements": summary["missing_lines"],
        "branches": summary["num_branches"],
        "missing_branches": summary["missing_branches"],
    }
    branches = [f"{start}->{end if end > 0 else 'exit'}" for start, end in found["missing_branches"]]
    return {**counts, "covered": _percent(counts), "missing_lines": found["missing_lines"], "not_taken": branches}


def _total(rows: Any) -> dict[str, Any]:
    names = ("statements", "missing_statements", "branches", "missing_branches")
    counts = {name: sum(row[name] for row in rows) for name in names}
    return {**counts, "covered": _percent(counts)}


def _percent(counts: dict[str, int]) -> float:
    """Of statements and branches together."""
    there = counts["statements"] + counts["branches"]
    missing = counts["missing_statements"] + counts["missing_branches"]
    return round(100 * (there - missing) / there, 1) if there else 100.0
