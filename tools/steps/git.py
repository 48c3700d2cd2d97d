"""Asks git about the checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from ..project import Project

_SOURCES = ("_config.yml", "_toc.yml", "chapters", "results", "src", "theme", "tools")
"""The files and folders that pages are made from. A change to any other file does not change a page."""


class Repository(NamedTuple):
    """A commit, its date, and whether any file that pages are made from was changed since."""

    commit: str
    date: str
    changed: bool


def git(project: Project, *arguments: str) -> str | None:
    """What a git command prints, run in the top folder; None if it fails, or if git is missing."""
    # Without locks, so that this command never blocks a `git commit` that runs at the same time.
    command = ["git", "--no-optional-locks", "--literal-pathspecs", *arguments]
    try:
        done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def holds(project: Project, path: Path) -> bool:
    """Whether git can restore a file as it is now: the last commit has this content, or it is staged.

    The contents are compared, not the times or marks by which git finds changes quickly. Without git, no file is held.
    """
    name = path.relative_to(project.root).as_posix()
    content = git(project, "hash-object", "--", name)
    kept = [git(project, *command, "--", name) for command in (("ls-files", "--stage"), ("ls-tree", "HEAD"))]
    return content in " ".join(filter(None, kept)).split()


def origin(project: Project) -> Repository | None:
    """The commit of the checkout; None if git is missing, or the folder is not the top of a checkout."""
    top, commit = git(project, "rev-parse", "--show-toplevel"), git(project, "rev-parse", "--verify", "HEAD")
    if top is None or commit is None or not project.root.samefile(top):
        return None
    date = git(project, "show", "--no-patch", "--format=%cs", commit) or ""
    return Repository(commit, date, bool(git(project, "status", "--porcelain", "--", *_SOURCES)))
