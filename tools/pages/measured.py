"""Sphinx extension: figures and tables of what was measured, made from the records when the site is rendered.

A directive such as `{measured-costs}` shows a record of `results/measured/`, and the module that measured it draws it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..project import Problem, Project, read_record
from . import checkout

DRAWN = {
    **{
        name: (name, f"measure.{name}", "shown")
        for name in (
            "attention compiled explained first_look fixed honesty masked penguins probe remedies setups"
        ).split()
    },
    "costs": ("costs", "measure.costs_shown", "shown"),
    "costs-in-short": ("costs", "measure.costs_shown", "in_short"),
    "functions": ("costs", "measure.costs_shown", "by_function"),
    "watching": ("costs", "measure.costs_shown", "watching"),
    "decisions": ("setups", "measure.setups", "decided"),
    "empty-rows": ("empty_rows", "measure.empty_rows", "shown"),
    "on-gpu": ("on_gpu", "measure.on_gpu", "shown"),
    "peers": ("peers", "versions.peers", "shown"),
}
"""By the last part of a directive's name: the record, and the module and function that draw it."""


class Measured(SphinxDirective):
    """A figure or table of one record. The part of the directive's name after `measured-` says which.

    `cached_pages` reads every page again if a record or the code that draws it has changed.
    """

    def run(self) -> list[nodes.Node]:
        """Read the record, and draw it."""
        try:
            text = drawn(checkout(self.env.app), self.name.removeprefix("measured-"))
        except Problem as problem:
            raise self.error(str(problem)) from problem
        return [nodes.raw("", text, format="html")]


def drawn(project: Project, name: str) -> str:
    """The figure or table of a record, as HTML.

    Raises:
        Problem: if the record is missing, or can't be read.
    """
    record, module, function = DRAWN[name]
    content = read_record(project.results / "measured" / f"{record}.json")
    draw = getattr(import_module(f"tools.{module}"), function)  # imported here, because few pages show a record
    return str(draw(content))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    for name in DRAWN:
        app.add_directive(f"measured-{name}", Measured)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
