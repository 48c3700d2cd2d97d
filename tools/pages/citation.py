"""Sphinx extension: the directive `{citation}` shows the BibTeX entry of the book, made from `CITATION.cff`."""

from __future__ import annotations

from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..project import Project
from . import checkout
from .theme import versions


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
    return {"parallel_read_safe": True, "parallel_write_safe": True}
