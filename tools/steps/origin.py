"""The commit that a page is made from, if git knows it."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

from ..project import Project

_SOURCES = ("_config.yml", "_toc.yml", "chapters", "results", "src", "theme", "tools")
"""The files and folders that pages are made from. A change to any other file does not change a page."""


class Repository(NamedTuple):
    """A commit, and whether any file that pages are made from was changed since."""

    commit: str
    changed: bool


def origin(project: Project) -> Repository | None:
    """The commit of the checkout; None if git is missing, or the folder is not the top of a checkout."""
    top, commit = _git(project, "rev-parse", "--show-toplevel"), _git(project, "rev-parse", "--verify", "HEAD")
    if top is None or commit is None or not project.root.samefile(top):
        return None
    return Repository(commit, bool(_git(project, "status", "--porcelain", "--", *_SOURCES)))


def _git(project: Project, *arguments: str) -> str | None:
    # Without locks, so that this command never blocks a `git commit` that runs at the same time.
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
