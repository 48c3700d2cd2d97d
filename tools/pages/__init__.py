"""The modules that draw pages: the theme, and Sphinx extensions for tables, pictures and indexes."""

from __future__ import annotations

import functools
from pathlib import Path

from nbformat import NotebookNode
from sphinx.application import Sphinx

from ..project import Project
from ..steps.execute import cached


@functools.cache
def checkout(app: Sphinx) -> Project:
    """The checkout that is rendered. Its configuration is read once."""
    return Project(Path(app.confdir))


@functools.cache
def executed(app: Sphinx) -> dict[Path, NotebookNode]:
    """The chapters with their outputs. Call it when every page has been read."""
    return cached(checkout(app))
