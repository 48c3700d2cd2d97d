"""Sphinx extension: the renderer takes outputs from the cache of this environment, and from no other.

A plain `jupyter-book build .` thereby shares the cache with `make book`, and is as safe from stale outputs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from ..steps import session
from ..steps.environment import cache_folder
from ..steps.execute import cached
from ..steps.made import digest
from . import checkout


def _at_once() -> str:
    return "go"


ready: Callable[[], str] = _at_once
"""Called before the first page is read. `make book` has it wait for its turn, and answer `go`; or `all`, when every
page is to be written; or nothing, when none is."""


def _use_cache(app: Sphinx, config: Config) -> None:
    # A new path is a changed setting: Sphinx then reads every page anew, as it must when a helper has changed.
    project = checkout(app)
    config["nb_execution_cache_path"] = str(cache_folder(project))
    # So it must when what draws pages, or what is drawn from measurements, has.
    drawn = [*Path(__file__).parents[1].rglob("*.py"), *(project.results / "measured").glob("*.json")]
    config["zero_or_nan_drawn_from"] = digest(*(path.read_bytes() for path in sorted(drawn)))
    session.begin(project)
    # A plain `jupyter-book build .` reads no claims: it has to stop at the first that does not hold.
    os.environ["ZERO_OR_NAN_CLAIMS"] = "raise"


def _edited(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """The pages with another text than the one that was read, whatever the times of their files say."""
    project = checkout(app)
    before: dict[str, str] = getattr(env, "zero_or_nan_texts", {})
    now = {project.name(page): digest(page.read_bytes()) for page in project.pages}
    env.zero_or_nan_texts = now  # type: ignore[attr-defined]
    return [name for name, text in now.items() if before.get(name) != text]


def _wait(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    answer = ready().strip()
    if not answer:
        sys.exit("told to go away")
    env.zero_or_nan_everything = answer == "all"  # type: ignore[attr-defined]


def _hand_on(app: Sphinx, env: BuildEnvironment) -> list[str]:
    # For pages that are drawn from outputs, and for download: MyST-NB's own copy forgets what came from a cache.
    cached(checkout(app))
    return sorted(env.found_docs) if env.zero_or_nan_everything else []  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_config_value("zero_or_nan_drawn_from", "", "env", [str])
    app.connect("config-inited", _use_cache)
    app.connect("env-get-outdated", _edited)
    app.connect("env-before-read-docs", _wait)
    app.connect("env-updated", _hand_on)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
