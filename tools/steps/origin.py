"""From which commit a page is made, as far as git knows."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

from ..project import Project

_SOURCES = ("_config.yml", "_toc.yml", "chapters", "results", "src", "theme", "tools")
"""What pages are made from: of other files, a change says nothing."""


class Origin(NamedTuple):
    """A commit, and whether anything that pages are made from was changed since."""

    commit: str
    changed: bool


def origin(project: Project) -> Origin | None:
    """The commit that the checkout is at; None where git is missing, or the folder is no checkout of its own."""
    top, commit = _git(project, "rev-parse", "--show-toplevel"), _git(project, "rev-parse", "--verify", "HEAD")
    if top is None or commit is None or not project.root.samefile(top):
        return None
    return Origin(commit, bool(_git(project, "status", "--porcelain", "--", *_SOURCES)))


def _git(project: Project, *arguments: str) -> str | None:
    # Without locks: a build beside a `git commit` must not be in its way.
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
