"""The commit that a page is made from, if git knows it."""

from __future__ import annotations

from typing import NamedTuple

from ..project import Project
from .git import git

_SOURCES = ("_config.yml", "_toc.yml", "chapters", "results", "src", "theme", "tools")
"""The files and folders that pages are made from. A change to any other file does not change a page."""


class Repository(NamedTuple):
    """A commit, and whether any file that pages are made from was changed since."""

    commit: str
    changed: bool


def origin(project: Project) -> Repository | None:
    """The commit of the checkout; None if git is missing, or the folder is not the top of a checkout."""
    top, commit = git(project, "rev-parse", "--show-toplevel"), git(project, "rev-parse", "--verify", "HEAD")
    if top is None or commit is None or not project.root.samefile(top):
        return None
    return Repository(commit, bool(git(project, "status", "--porcelain", "--", *_SOURCES)))
