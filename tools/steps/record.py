"""Step 4, on request: write down what this PyTorch gave, one file per version and device.

`results/schema.json` describes the file. It holds no times and no paths, in the order of the pages: the same run again
gives the same bytes.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..project import Problem, Project, read_record, write
from .collect import checked

_KEPT = ("page", "type", "case", "way", "quantity", "expected", "observed", "tolerance", "holds", "history")


def record_file(project: Project, torch: str, device: str = "cpu") -> Path:
    """Where the outcomes of a PyTorch version on a device are recorded."""
    return project.results / f"torch-{torch}-{device}.json"


def check_records(project: Project) -> None:
    """Check that the outcomes of every release in the matrix, and the outputs of cells, are there and can be read.

    Pages show a release only if it is recorded. Without this check, a deleted record would make a release disappear
    from the site, or leave the outputs of cells unchecked, and the build would succeed.

    Raises:
        Problem: when a record is missing or is not JSON; with the path of the file.
    """
    if not project.matrix.is_file():
        return
    releases = [record_file(project, row["torch"]) for row in read_record(project.matrix)["rows"]]
    for path in sorted({*project.results.glob("torch-*.json"), *releases, project.outputs}, reverse=True):
        read_record(path)


def outcome(fact: dict[str, Any]) -> dict[str, Any]:
    """What of a claim or verdict is worth comparing between versions: what was asserted, what was seen."""
    kept = {key: fact[key] for key in _KEPT if fact.get(key) not in (None, [])}
    if "raised" in fact["observed"]:
        # The rest of a message is help, which changes with each release and may name files of the machine.
        message = str(fact["observed"].get("message", "")).strip().partition("\n")[0]
        kept["observed"] = {**fact["observed"], "message": message}
    return kept


def record(project: Project, facts: Iterable[dict[str, Any]]) -> Path:
    """Write the outcomes of all claims and verdicts to `results/`, and return the file.

    Raises:
        Problem: when there are none, or when they are not all of one version and device.
    """
    outcomes = checked(facts)
    runs = {(fact["torch"].partition("+")[0], fact["device"]) for fact in outcomes}
    if len(runs) != 1:
        found = ", ".join(" on ".join(run) for run in sorted(runs)) or "none"
        raise Problem(
            f"a record needs claims that all ran on one version of PyTorch and one device; these ran on: {found}"
        )
    torch, device = runs.pop()
    path = record_file(project, torch, device)
    content = {
        "torch": torch,
        "device": device,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "outcomes": [outcome(fact) for fact in outcomes],
    }
    write(path, json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    return path
