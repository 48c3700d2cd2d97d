"""The modules that draw pages: the theme, and Sphinx extensions for tables, pictures and indexes."""

from __future__ import annotations

import functools
from pathlib import Path

from nbformat import NotebookNode
from sphinx.application import Sphinx

from ..project import Project
from ..steps.execute import cached
from ..steps.git import Repository, origin


@functools.cache
def checkout(app: Sphinx) -> Project:
    """The checkout that is rendered. Its configuration is read once."""
    return Project(Path(app.confdir))


@functools.cache
def executed(app: Sphinx) -> dict[Path, NotebookNode]:
    """The chapters with their outputs. Call it when every page has been read."""
    return cached(checkout(app))


@functools.cache
def commit(app: Sphinx) -> Repository | None:
    """The commit that is rendered; None without git."""
    return origin(checkout(app))
