"""Sphinx extension: the pages show the outputs of the build.

A plain `jupyter-book build .` therefore shares the outputs with `make book`, and never shows outdated ones.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from myst_nb.core import execute as myst_nb
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from ..project import digest
from ..steps.collect import is_good
from ..steps.execute import execute, fingerprint
from ..steps.read import code_of
from . import checkout


class Outputs(myst_nb.NotebookClientBase):
    """Gives MyST-NB the outputs of a page. In a plain `jupyter-book build .`, runs the page if they are missing."""

    app: Sphinx

    def start_client(self) -> None:
        """Fill in the outputs.

        Raises:
            ExecutionError: if a cell fails, also because a claim does not hold.
        """
        (run,) = execute(checkout(self.app), [Path(self.path)], lambda run: None, self.nb_config.execution_timeout)
        if not is_good(run):
            raise myst_nb.ExecutionError(f"{self.path}: {run.troubles[0].line} {run.troubles[0].what}")
        self.notebook.metadata["language_info"] = run.notebook["metadata"]["language_info"]
        for cell, executed in zip(code_of(self.notebook), code_of(run.notebook), strict=True):
            cell.update(execution_count=executed["execution_count"], outputs=executed["outputs"])


def _use_outputs(app: Sphinx, config: Config) -> None:
    # If this setting changes, Sphinx reads every page again. This is needed if the outputs may have changed, the code
    # that draws pages, or a measurement that pages show.
    project = checkout(app)
    tools = Path(__file__).parents[1]
    drawn = [*tools.rglob("*.py"), *tools.rglob("*.toml"), *(project.results / "measured").glob("*.json")]
    config["zero_or_nan_drawn_from"] = digest(fingerprint(project), *(path.read_bytes() for path in sorted(drawn)))
    # A plain `jupyter-book build .` does not collect claims, so it must stop at the first claim that does not hold.
    os.environ["ZERO_OR_NAN_CLAIMS"] = "raise"
    Outputs.app = app
    myst_nb.NotebookClientCache = Outputs


def _edited(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """The pages whose text has changed since they were read, even if the times of their files did not change."""
    project = checkout(app)
    before: dict[str, str] = getattr(env, "zero_or_nan_texts", {})
    now = {project.name(page): digest(page.read_bytes()) for page in project.pages}
    env.zero_or_nan_texts = now  # type: ignore[attr-defined]
    return [name for name, text in now.items() if before.get(name) != text]


def _every_page(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """The pages to write. All, because a change of one page or of the theme can change what the others show."""
    return sorted(env.found_docs)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_config_value("zero_or_nan_drawn_from", "", "env", [str])
    app.connect("config-inited", _use_outputs)
    app.connect("env-get-outdated", _edited)
    app.connect("env-updated", _every_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
