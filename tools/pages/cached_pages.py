"""Sphinx extension: the renderer takes outputs from the cache of this environment, and from no other.

A plain `jupyter-book build .` thereby shares the cache with `make book`, and is as safe from stale outputs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from ..project import Project, write
from ..steps import session
from ..steps.environment import cache_folder
from ..steps.execute import cached


def _use_cache(app: Sphinx, config: Config) -> None:
    # A new path is a changed setting: Sphinx then reads every page anew, as it must when a helper has changed.
    project = Project(Path(app.confdir))
    config["nb_execution_cache_path"] = str(cache_folder(project))
    session.begin(project)
    # A plain `jupyter-book build .` reads no claims: it has to stop at the first that does not hold.
    os.environ["ZERO_OR_NAN_CLAIMS"] = "raise"


def _write_executed(app: Sphinx, env: BuildEnvironment) -> list[str]:
    # MyST-NB offers the executed notebooks for download, but forgets the outputs of those that come from a cache.
    project = Project(Path(app.confdir))
    for chapter, notebook in cached(project).items():
        write(project.executed / f"{project.name(chapter)}.ipynb", nbformat.writes(notebook) + "\n")
    return []


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("config-inited", _use_cache)
    app.connect("env-updated", _write_executed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
