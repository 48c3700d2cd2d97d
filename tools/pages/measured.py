"""Sphinx extension: what is drawn from a file when the site is rendered.

A directive such as `{measured-costs}` shows a record of `results/measured/`, and the module that measured it draws it.
The directive `{citation}` shows the BibTeX entry of the book, made from `CITATION.cff`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..project import Problem, Project, read_record
from . import checkout
from .theme import versions

DRAWN = {
    **{
        name: (name, f"measure.{name}", "shown")
        for name in (
            "attention compiled explained first_look fixed honesty masked penguins probe remedies setups"
        ).split()
    },
    "costs": ("costs", "measure.costs_shown", "shown"),
    "costs-in-short": ("costs on_gpu", "measure.costs_shown", "in_short"),
    "functions": ("costs", "measure.costs_shown", "by_function"),
    "watching": ("costs", "measure.costs_shown", "watching"),
    "decisions": ("setups costs", "measure.setups", "decided"),
    "empty-rows": ("empty_rows", "measure.on_gpu", "rows_shown"),
    "on-gpu": ("on_gpu", "measure.on_gpu", "shown"),
}
"""By the last part of a directive's name: the records, and the module and function that draw them."""


class Measured(SphinxDirective):
    """A figure or table of one record, or of several. The part of the directive's name after `measured-` says which.

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
    """The figure or table of some records, as HTML.

    Raises:
        Problem: if a record is missing, or can't be read.
    """
    records, module, function = DRAWN[name]
    contents = [read_record(project.results / "measured" / f"{record}.json") for record in records.split()]
    draw = getattr(import_module(f"tools.{module}"), function)  # imported here, because few pages show a record
    return str(draw(*contents))


class Citation(SphinxDirective):
    """The BibTeX entry, as text to copy."""

    def run(self) -> list[nodes.Node]:
        """Read `CITATION.cff`, and write the entry."""
        project = checkout(self.env.app)
        self.env.note_dependency(str(project.root / "CITATION.cff"))
        text = bibtex(project)
        return [nodes.literal_block(text, text, language="bibtex")]


def bibtex(project: Project) -> str:
    """The entry, with the versions that the results of this build are verified with."""
    cited = yaml.safe_load((project.root / "CITATION.cff").read_text(encoding="utf-8"))
    fields = {
        "title": f"{{{cited['title']}}}",  # the second braces keep the capitals
        "author": " and ".join(f"{{{author['name']}}}" for author in cited["authors"]),
        "year": cited["date-released"].year,
        "version": cited["version"],
        "url": cited["url"],
        "note": f"Results verified with {versions()}",
    }
    lines = [f"  {name:7} = {{{value}}}" for name, value in fields.items()]
    return "@software{zero_or_nan,\n" + ",\n".join(lines) + "\n}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_directive("citation", Citation)
    for name in DRAWN:
        app.add_directive(f"measured-{name}", Measured)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
