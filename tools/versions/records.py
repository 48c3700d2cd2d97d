"""Takes reports of `python -m zero_or_nan.selfcheck --json` as the record of their releases of PyTorch.

    python -m tools.versions.records REPORT.json …

Run the self-check on each release, check the differences, and pass the reports to this command. It writes the
`recorded.json` that the library contains. A report replaces everything that was recorded for its release.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from zero_or_nan.selfcheck.records import Records, Words, release_of

from ..project import Problem, Project, write


def record(project: Project, reports: list[Path]) -> None:
    """Replace the recorded words of each report's release by the words of the report.

    Raises:
        Problem: if no report is given, if a file is not such a report, or if it can't be recorded: it comes from a
            nightly build or from another device than a CPU, or it lacks operators.
    """
    if not reports:
        raise Problem("no report is named: run python -m tools.versions.records REPORT.json …")
    path = project.source / "zero_or_nan" / "selfcheck" / "recorded.json"
    tables = dict(Records.from_json(path.read_text(encoding="utf-8")).tables)
    for report in reports:
        release, words = _read(report)
        tables[release] = words
    write(path, Records(tables).json())
    print(f"written: {path.relative_to(project.root)}, with torch {', '.join(Records(tables).releases)}")


def _read(report: Path) -> tuple[str, dict[str, Words]]:
    try:
        content: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        version, device, left_out = (
            content["versions"]["torch"],
            content["device"]["type"],
            content["operators_left_out"],
        )
        words = {row["name"]: (row["plain"], row["ignoring"]) for row in content["cases"] + content["operators"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{report} is not what python -m zero_or_nan.selfcheck --json prints: {error}") from error
    if "dev" in version:
        raise Problem(
            f"{report} was made with torch {version}, a nightly build, which changes every day: use a release"
        )
    if device != "cpu":
        raise Problem(
            f"{report} was made on a {device} device, but records are made on CPUs: run it again with --device cpu"
        )
    if left_out:
        raise Problem(f"{report} left out the operators: {left_out}. Install what is missing, and run it again")
    return release_of(version), words


if __name__ == "__main__":
    try:
        record(Project(Path.cwd()), list(map(Path, sys.argv[1:])))
    except Problem as problem:
        sys.exit(f"error: {problem}")
