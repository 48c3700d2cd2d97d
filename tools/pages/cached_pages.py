"""Sphinx extension: the renderer takes outputs only from the cache of this environment.

A plain `jupyter-book build .` therefore shares the cache with `make book`, and never shows outdated outputs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from myst_nb.core import render
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from ..steps import session
from ..steps.environment import cache_folder
from ..steps.execute import cached
from ..steps.made import digest
from ..steps.run import into_cache, whole
from . import checkout


def _at_once() -> str:
    return "go"


ready: Callable[[], str] = _at_once
"""Called before the first page is read.

In `make book`, it waits until the outputs are ready. It returns `go`, `all` if every page must be written, or an empty
text if no page must be written.
"""


def _use_cache(app: Sphinx, config: Config) -> None:
    # A new path counts as a changed setting. Sphinx then reads every page again, which is needed if a helper has
    # changed.
    project = checkout(app)
    config["nb_execution_cache_path"] = str(cache_folder(project))
    # The same is needed if the code that draws pages, or a measurement that pages show, has changed.
    drawn = [*Path(__file__).parents[1].rglob("*.py"), *(project.results / "measured").glob("*.json")]
    config["zero_or_nan_drawn_from"] = digest(*(path.read_bytes() for path in sorted(drawn)))
    session.begin(project)
    # A plain `jupyter-book build .` does not collect claims, so it must stop at the first claim that does not hold.
    os.environ["ZERO_OR_NAN_CLAIMS"] = "raise"


def _edited(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """The pages whose text has changed since they were read, even if the times of their files did not change."""
    project = checkout(app)
    before: dict[str, str] = getattr(env, "zero_or_nan_texts", {})
    now = {project.name(page): digest(page.read_bytes()) for page in project.pages}
    env.zero_or_nan_texts = now  # type: ignore[attr-defined]
    return [name for name, text in now.items() if before.get(name) != text]


def _wait(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    answer = ready().strip()
    if not answer:
        sys.exit("the build has ended before this renderer was needed")
    env.zero_or_nan_everything = answer == "all"  # type: ignore[attr-defined]
    project = checkout(app)
    into_cache(project, cached(project))


def _hand_on(app: Sphinx, env: BuildEnvironment) -> list[str]:
    # The outputs for pages and downloads. MyST-NB's own copy lacks the outputs that came from the cache.
    cached(checkout(app))
    return sorted(env.found_docs) if env.zero_or_nan_everything else []  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_config_value("zero_or_nan_drawn_from", "", "env", [str])
    # A line that a kernel sends in two pieces would be two lines, but only in a plain `jupyter-book build .`.
    merged = render.coalesce_streams
    render.coalesce_streams = lambda outputs: merged(whole(outputs))
    app.connect("config-inited", _use_cache)
    app.connect("env-get-outdated", _edited)
    app.connect("env-before-read-docs", _wait)
    app.connect("env-updated", _hand_on)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
