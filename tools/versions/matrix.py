"""Runs every claim, the tests of the library and a sample of the operator database on several versions of PyTorch.

Each version gets a copy of the checkout and an environment, which are removed when the version is done.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from ..project import Problem, Project, write
from .isolated import Isolated, Row, clean, files, results

RELEASES = tuple(f"2.{minor}.0" for minor in range(6, 16))
"""The first release of every minor version that the library supports."""
PARTS = {
    "claims": (("-m", "tools", "record"), "results/claims.json"),
    "tests": (("-m", "tools", "library-tests"), "_build/library-tests.json"),
    "fixed": (("-m", "tools", "fixed-sample"), "_build/fixed.json"),
    "masked": (("-m", "tools", "masked"), "results/measured/masked.json"),
}
"""The parts that run on each version: the arguments of its Python, and the file that it writes."""
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
    works = {version: partial(run, project, version) for version in versions}
    found = results(project, "matrix", works, (*_COPIED, "requirements.txt"))
    rows = {version: {"torch": version, **row} for version, row in found.items()}
    bad = [version for version, row in rows.items() if not _good(row)]
    _record(project, list(rows.values()))
    print(f"{len(rows) - len(bad)} of {len(rows)} versions: no failure")
    return clean(project, "matrix", bad)


def run(project: Project, version: str, environment: Isolated) -> Row:
    """The result of every part on one version."""
    pins = write_pins(project, environment.folder / "pins.txt")
    environment.install(f"torch=={version}", "-r", str(pins))
    book = environment.folder / "book"
    for name in files(project, *_COPIED):
        (book / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project.root / name, book / name)
    row: Row = {}
    for part, (arguments, written) in PARTS.items():
        started = time.monotonic()
        status = environment.run([str(environment.python), *arguments], book)
        path = book / written
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"error": environment.last_words()}
        if "error" not in found and part in _SUMMED:
            found = _SUMMED[part](found)
        if part == "claims" and status and "error" not in found:
            found["error"] = environment.last_words()
        row[part] = found
        environment.say(f"{part}: {_told(part, found)}, {time.monotonic() - started:.0f} s")
    return row


def _claims(found: Row) -> Row:
    """How many claims hold. Their outcomes go to the record of `make record`."""
    from helpers.recorded import runs

    (of_this,) = runs(found)
    held = [fact["holds"] for fact in of_this["outcomes"]]
    return {"held": sum(held), "of": len(held), "run": of_this}


def _masked(found: Row) -> Row:
    """How many operators of masked tensors work. Their outcomes go to the record of `make masked`."""
    from ..measure import masked

    (outcomes,) = masked.recorded(found).values()
    return {"works": masked.working(outcomes), "of": len(outcomes), "outcomes": outcomes}


_SUMMED = {"claims": _claims, "masked": _masked}


def write_pins(project: Project, path: Path) -> Path:
    """The pins without PyTorch and the packages that it pins itself, because other versions pin other packages.

    Returns:
        The path of the written file.
    """
    blocks = re.findall(r"^\S[^\n]*(?:\n +#[^\n]*)*", (project.root / "requirements.txt").read_text(), re.MULTILINE)
    own = re.compile(r"^torch==|^setuptools==|# +via torch$", re.MULTILINE)
    write(path, "\n".join(block.partition("\n")[0] for block in blocks if not own.search(block)) + "\n")
    return path


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


def _good(row: Row) -> bool:
    parts = [row.get(name, {"error": "missing"}) for name in PARTS]
    return "error" not in row and not any(part.get(wrong) for part in parts for wrong in WRONG)


def _told(part: str, found: Row) -> str:
    """The figures of a part in one line."""
    if "error" in found and "held" not in found:
        return f"failed: {found['error']}"
    return {
        "claims": "{held} of {of} hold",
        "tests": "{passed} passed, {skipped} skipped, failed: {failed}",
        "fixed": "{fixed} of {contaminated} contaminated samples fixed, {broken} broken, {other_bits} with other bits",
        "masked": "{works} of {of} operators of masked tensors work",
    }[part].format(**found)
