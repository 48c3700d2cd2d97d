"""The addresses at which a reader edits a page, or reports an error in an issue with the known facts filled in."""

from __future__ import annotations

import platform
from importlib.metadata import version
from urllib.parse import urlencode

from ..project import Project
from ..steps.origin import Repository


def edit(project: Project, name: str) -> str:
    """The address that opens the source of a page in the repository's editor."""
    return f"{project.repository}/edit/{project.branch}/{name}.md"


def report(project: Project, name: str, heading: str, made: Repository | None) -> str:
    """The address of a new issue that already contains the page and the versions that it was built with.

    If the reader's address names a place on the page, site.js adds this place after the line with the page's address.
    """
    commit = f", commit {made.commit}{' with changes since' * made.changed}" if made else ""
    made_of = f"{project.address(name)}\nBuilt with {versions()}{commit}\n"
    body = f"What is wrong, and what should the page say instead?\n\n\n\n---\n{made_of}"
    return f"{project.repository}/issues/new?{urlencode({'title': f'{heading}: ', 'body': body})}"


def versions() -> str:
    """The versions that the pages are built with."""
    return f"torch {version('torch')}, Python {platform.python_version()}"
