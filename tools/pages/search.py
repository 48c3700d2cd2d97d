"""Sphinx extension: what the search page searches, a record for each section of each page.

The search itself is MiniSearch, in the browser. Sphinx's own demands that a page has every word of a query, and knows
no numbers: a pasted error message or an issue's number found nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment

from ..project import Project, write
from . import checkout
from .theme import metadata

_OUTPUT = "cell_output"


def records(env: BuildEnvironment, project: Project) -> list[dict[str, str]]:
    """The sections of all pages, in order: address, page, heading, text; the first of a page has its keywords too."""
    found = []
    for page in project.names:
        doctree = env.get_doctree(page)
        title = env.titles[page].astext()
        meta = metadata(doctree)
        for number, section in enumerate(doctree.findall(nodes.section)):
            record = {
                "address": project.path(page) + (f"#{section['ids'][0]}" if number else ""),
                "page": title,
                "heading": section[section.first_child_matching_class(nodes.title)].astext(),
                "text": " ".join(" ".join(_texts(section)).split()),
            }
            if number == 0:
                record["keywords"] = " ".join(meta.get(key, "") for key in ("title", "description", "keywords"))
            found.append(record)
    return found


def _texts(section: nodes.Element) -> Iterator[str]:
    """The words of a section itself: not its title, the sections in it, nor the outputs of its cells."""
    for child in section.children:
        if isinstance(child, nodes.Text):
            yield child.astext()
        elif isinstance(child, (nodes.section, nodes.title, nodes.raw, nodes.comment, nodes.Invisible)):
            continue
        elif isinstance(child, nodes.Element) and _OUTPUT not in child.get("classes", []):
            yield from _texts(child) if child.children else ()


def _page(app: Sphinx) -> list[tuple[str, dict[str, Any], str]]:
    return [("search", {"title": "Search"}, "search.html")]


def _write(app: Sphinx, failure: Exception | None) -> None:
    if failure is None and app.builder.name == "html":
        found = records(app.env, checkout(app))
        write(Path(app.outdir) / "search.json", json.dumps(found, ensure_ascii=False, indent=0) + "\n")


def _instead(app: Sphinx) -> None:
    if isinstance(app.builder, StandaloneHTMLBuilder):
        app.builder.search = False  # Sphinx's own index and page


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("builder-inited", _instead)
    app.connect("html-collect-pages", _page)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
