"""What draws pages: the theme, and Sphinx extensions that put tables, pictures and indexes into them."""

from __future__ import annotations

import functools
from pathlib import Path

from sphinx.application import Sphinx

from ..project import Project


@functools.cache
def checkout(app: Sphinx) -> Project:
    """The checkout that is rendered, its configuration read once."""
    return Project(Path(app.confdir))
