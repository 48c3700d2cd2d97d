"""npm's information about the packages of the site: those of its tests, and the copied script of its search."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from ..project import Problem, Project

FOLDER = Path("tests") / "site"
"""The folder of the checkout with `package.json` and its lock file."""


def npm(project: Project, command: str) -> dict[str, Any]:
    """The output of `npm COMMAND --json`. npm exits with 1 even if it has only news, so the status is not checked.

    Raises:
        Problem: if npm is missing, or could not reach its registry.
    """
    try:
        done = subprocess.run(
            ["npm", command, "--json", "--prefix", str(FOLDER)], cwd=project.root, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise Problem("npm is not installed: `make browser` installs it") from error
    try:
        said = dict(json.loads(done.stdout or "{}"))
    except (ValueError, TypeError) as error:
        raise Problem(
            f"npm {command} gave no JSON, but this:\n{(done.stdout + done.stderr).strip()[-1000:]}"
        ) from error
    if "error" in said:
        why = said.get("message") or said["error"].get("summary") or done.stderr.strip()
        raise Problem(f"npm {command} got no answer from its registry: {why}")
    return said


def outdated(project: Project) -> list[str]:
    """A line for every package of the site that is outdated."""
    return [f"{name} {each['wanted']} -> {each['latest']}" for name, each in sorted(npm(project, "outdated").items())]
