"""Sphinx extension: the renderer takes outputs from the cache of this environment, and from no other.

A plain `jupyter-book build .` thereby shares the cache with `make book`, and is as safe from stale outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

from .environment import cache_folder
from .project import Project


def _use_cache(app: Sphinx, config: Config) -> None:
    # A new path is a changed setting: Sphinx then reads every page anew, as it must when a helper has changed.
    config["nb_execution_cache_path"] = str(cache_folder(Project(Path(app.confdir))))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("config-inited", _use_cache)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
