"""Sphinx extension: the line that represents a folded cell says what is in the cell.

A chapter shows the code that a reader would write. The page's checks of this code are in a separate cell, tagged
`hide-cell`. The line of this cell counts the results. It says that they are as stated, not that they are right, because
a page may assert a NaN.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def prompt(tags: set[str], stated: int) -> str:
    """The line over a folded cell, from the cell's tags and the number of its claims."""
    if "solution" in tags:
        return "A solution"
    if "explain" in tags:
        return "What explain says"
    if not stated:
        return "Checked by the page"
    return "Checked: 1 result is as stated" if stated == 1 else f"Checked: {stated} results are as stated"


def _name(app: Sphinx, doctree: nodes.document) -> None:
    for cell in doctree.findall(nodes.container):
        if cell.get("hide_mode") == "all":
            tags = {name.removeprefix("tag_") for name in cell["classes"]}
            stated = sum(raw.astext().count('id="claim-') for raw in cell.findall(nodes.raw))
            cell["prompt_show"] = cell["prompt_hide"] = prompt(tags, stated)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("doctree-read", _name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
