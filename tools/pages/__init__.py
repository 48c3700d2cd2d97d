"""The modules that draw pages: the theme, and Sphinx extensions for tables, pictures and indexes."""

from __future__ import annotations

import functools
from pathlib import Path

from sphinx.application import Sphinx

from ..project import Project


@functools.cache
def checkout(app: Sphinx) -> Project:
    """The checkout that is rendered. Its configuration is read once."""
    return Project(Path(app.confdir))
