"""Step 4, on request: write down what this PyTorch gave, one file per version and device."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..project import Project, write
from .collect import checked


def record_file(project: Project, torch: str, device: str = "cpu") -> Path:
    """Where the outcomes of a PyTorch version on a device are recorded."""
    return project.results / f"torch-{torch}-{device}.json"


def outcome(fact: dict[str, Any]) -> dict[str, Any]:
    """What of a claim or verdict is worth comparing between versions: what was asserted, what was seen."""
    kept = ("page", "type", "case", "way", "quantity", "expected", "observed", "tolerance", "holds")
    return {key: fact[key] for key in kept if key in fact}


def record(project: Project, facts: Iterable[dict[str, Any]]) -> Path:
    """Write the outcomes of all claims and verdicts to `results/`, and return the file."""
    outcomes = checked(facts)
    torch = version("torch").split("+")[0]
    path = record_file(project, torch)
    content = {
        "torch": torch,
        "device": "cpu",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "outcomes": [outcome(fact) for fact in outcomes],
    }
    write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path
