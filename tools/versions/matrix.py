"""Runs every claim, the tests of the library and a sample of the operator database on several versions of PyTorch.

Each version gets a copy of the checkout and an environment, which are removed when the version is done. The results of
a version are kept in `_build/matrix` until all versions are done. If you interrupt the command, run it again, and it
continues.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

from ..project import Problem, Project, write
from ..steps.made import digest
from .isolated import DISK, Isolated, files, give_up_or_clean, open_room, results

RELEASES = tuple(f"2.{minor}.0" for minor in range(6, 16))
"""The first release of every minor version that the library supports."""
PARTS = {
    "claims": ("-m", "tools", "record"),
    "tests": ("-m", "tools", "library-tests"),
    "fixed": ("-m", "tools", "fixed-sample"),
    "masked": ("-m", "tools", "masked"),
}
"""The parts that run on each version, as arguments of its Python."""
WRONG = ("error", "failed", "broken", "other_bits", "crashed")
"""The counts that must be zero, or missing, in the result of a part."""

_COPIED = ("_config.yml", "_toc.yml", "pyproject.toml", "chapters", "notebooks", "src", "tests", "theme", "tools")


def matrix(project: Project, *names: str) -> int:
    """Run the matrix, print a line for each step, write `results/`, and return the exit status.

    Args:
        project: the checkout.
        names: releases of PyTorch, such as `2.9.1`. Without names, all of `RELEASES`.

    Raises:
        Problem: before any work, if a name is not a version, or if the disk has no room for one environment.
    """
    versions = list(dict.fromkeys(names or RELEASES))
    if strange := [version for version in versions if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version)]:
        raise Problem(f"not a version of PyTorch: {', '.join(strange)}; write versions like 2.9.1 2.15.0")
    room = open_room(project, "matrix")
    source = _digest(project)
    runs = [ReleaseRun(project, version, room, source) for version in versions]
    at_once = max(1, min(os.cpu_count() or 1, shutil.disk_usage(room).free // DISK))
    rows = results(runs, "versions", at_once)
    _record(project, rows)
    bad = [row["torch"] for row in rows if not _good(row)]
    print(f"{len(rows) - len(bad)} of {len(rows)} versions: no failure")
    return give_up_or_clean(room, bad)


class ReleaseRun(Isolated):
    """One version of PyTorch."""

    def __init__(self, project: Project, version: str, room: Path, source: str) -> None:
        super().__init__(project, version, room, source, f"torch-{version}")
        self.version = version

    def is_good(self, row: dict[str, Any]) -> bool:
        return _good(row)

    def _row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"torch": self.version}
        book, python = self.folder / "book", self.folder / "environment" / "bin" / "python"
        if error := self._install(python):
            return {**row, "error": error}
        self._copy(book)
        for name, arguments in PARTS.items():
            started = time.monotonic()
            status = self._run([str(python), *arguments], book)
            row[name] = getattr(self, f"_{name}")(book, status)
            self._say(f"{name}: {_told(name, row[name])}, {time.monotonic() - started:.0f} s")
        return row

    def _install(self, python: Path) -> str:
        """Make the environment. Return an error message, or the empty text."""
        pins = write_pins(self.project, self.folder / "pins.txt")
        return self._environment(python, [f"torch=={self.version}", "-r", str(pins)])

    def _copy(self, book: Path) -> None:
        for name in files(self.project, *_COPIED):
            (book / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.project.root / name, book / name)

    def _claims(self, book: Path, status: int) -> dict[str, Any]:
        """How many claims hold. Their outcomes go to the record of `make record`."""
        from helpers.recorded import runs

        found = self._written(book / "results" / "claims.json")
        if "error" in found:
            return found
        (run,) = runs(found)
        held = [fact["holds"] for fact in run["outcomes"]]
        found = {"held": sum(held), "of": len(held), "run": run}
        return found if all(held) and status == 0 else {**found, "error": self._last()}

    def _written(self, path: Path) -> dict[str, Any]:
        """What a part wrote, or its last words as an error."""
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {"error": self._last()}

    def _tests(self, book: Path, status: int) -> dict[str, Any]:
        return self._written(book / "_build" / "library-tests.json")

    def _fixed(self, book: Path, status: int) -> dict[str, Any]:
        return self._written(book / "_build" / "fixed.json")

    def _masked(self, book: Path, status: int) -> dict[str, Any]:
        """How many operators of masked tensors work. Their outcomes go to the record of `make masked`."""
        from ..measure import masked

        found = self._written(book / "results" / "measured" / "masked.json")
        if "error" in found:
            return found
        (outcomes,) = masked.recorded(found).values()
        return {"works": masked.working(outcomes), "of": len(outcomes), "outcomes": outcomes}


def write_pins(project: Project, path: Path) -> Path:
    """The pins without PyTorch and the packages that it pins itself, because other versions pin other packages.

    Returns:
        The path of the written file.
    """
    blocks = re.findall(r"^\S[^\n]*(?:\n +#[^\n]*)*", (project.root / "requirements.txt").read_text(), re.MULTILINE)
    own = re.compile(r"^torch==|^setuptools==|# +via torch$", re.MULTILINE)
    write(path, "\n".join(block.partition("\n")[0] for block in blocks if not own.search(block)) + "\n")
    return path


def _digest(project: Project) -> str:
    """A digest of everything that is copied, and of the pins."""
    names = files(project, *_COPIED, "requirements.txt")
    return digest(*(part for name in names for part in (name, (project.root / name).read_bytes())))


def _record(project: Project, rows: list[dict[str, Any]]) -> None:
    """Put the rows into `results/measured/matrix.json`, and claims, setups and masked tensors into their records."""
    from helpers.releases import number

    from ..measure import masked, setups
    from ..measure.records import keep, read
    from ..steps import record

    found = {row["torch"]: row for row in read(project, "matrix").get("rows", [])}
    for row in rows:
        if run := row.get("claims", {}).pop("run", None):
            record.add(project, run, complete="error" not in row["claims"])
        told = row.get("tests", {}).pop("setups", [])
        setups.add(project, row["torch"], told)
        if outcomes := row.get("masked", {}).pop("outcomes", {}):
            masked.add(project, row["torch"], outcomes)
        found[row["torch"]] = row
    ordered = sorted(found.values(), key=lambda row: number(row["torch"]))
    keep(project, "matrix", {"rows": ordered})


def _good(row: dict[str, Any]) -> bool:
    parts = [row.get(name, {"error": "missing"}) for name in PARTS]
    return "error" not in row and not any(part.get(wrong) for part in parts for wrong in WRONG)


def _told(name: str, found: dict[str, Any]) -> str:
    """The figures of a part in one line."""
    if name == "claims" and "held" in found:
        return f"{found['held']} of {found['of']} hold"
    if name == "tests" and "passed" in found:
        return f"{found['passed']} passed, {found['skipped']} skipped, {len(found['failed'])} failed"
    if name == "masked" and "works" in found:
        return f"{found['works']} of {found['of']} operators of masked tensors work"
    if name == "fixed" and "fixed" in found:
        figures = f"{found['fixed']} of {found['contaminated']} contaminated samples fixed"
        return f"{figures}, {found['broken']} broken, {found['other_bits']} with other bits"
    return f"failed: {found['error']}"
