"""Sphinx extension: tables of all claims and of all recorded releases, generated when the site is rendered.

The directives `{claims-overview}`, `{methods}` and `{sources}` read the executed notebooks. The directives
`{releases}`, `{releases-changed}` and `{releases-tested}` read `results/`.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective

from ..project import MAIN, Problem
from ..steps.collect import checked, statements
from . import checkout, executed
from .methods import methods
from .releases import changed, releases, tested
from .sources import sources

NOT_COMPARED = '<span class="zn-note">not compared</span>'


class Pending(nodes.Element):
    """A placeholder for a table. The table is drawn when every page has been read."""


class Drawn(SphinxDirective):
    """A table that needs all pages. The name of the directive says which."""

    def run(self) -> list[nodes.Node]:
        """Insert the placeholder for the table."""
        return [Pending(make=self.name)]


class Sources(Drawn):
    """The rows of a source thread, one on each line of the directive's content. The argument is the caption."""

    required_arguments, final_argument_whitespace, has_content = 1, True, True

    def run(self) -> list[nodes.Node]:
        """Insert the placeholder for the table, with the rows."""
        (place,) = super().run()
        place["caption"], place["rows"] = self.arguments[0], list(filter(None, self.content))
        return [place]


DIRECTIVES = {
    **dict.fromkeys(("claims-overview", "methods", "releases", "releases-changed", "releases-tested"), Drawn),
    "sources": Sources,
}


def overview(facts: list[dict[str, Any]], link: Callable[[str], str], title: Callable[[str], str]) -> str:
    """The table of verdicts, case by method, with the number of claims behind each page.

    Args:
        facts: from `collect.statements`.
        link: gives the address of a page by its name.
        title: gives the title of a page by its name.
    """
    from helpers import METHODS, show  # here, because they import PyTorch, and most builds need no table

    verdicts = [fact for fact in facts if fact["type"] == "verdict"]
    claims = [fact for fact in facts if fact["type"] == "claim"]
    used = [name for name in MAIN if any(name in verdict["observed"] for verdict in verdicts)]
    rows = []
    for verdict in verdicts:
        words = verdict["observed"]
        count = sum((claim["case"], claim["page"]) == (verdict["case"], verdict["page"]) for claim in claims)
        name = f'<a href="{link(verdict["page"])}">{html.escape(title(verdict["page"]))}</a>'
        what = f"<code>{html.escape(verdict['quantity'])}</code>"
        others = [
            f"{html.escape(METHODS[method].title)} {_word(word)}"
            for method, word in words.items()
            if method not in used
        ]
        rows.append(
            [
                f'{name}<br>{what}<br><span class="zn-note">{count} claims on the page</span>',
                *(_word(words[method]) if method in words else NOT_COMPARED for method in used),
                "<br>".join(others) or NOT_COMPARED,
            ]
        )
    held = sum(fact["holds"] for fact in checked(facts))
    versions = sorted({fact["torch"] for fact in checked(facts)})
    caption = f"{held} of {len(checked(facts))} claims and verdicts hold on torch {', '.join(versions)}"
    head = ["case", *(METHODS[method].title for method in used), "other methods"]
    return show.page(show.prose(show.table(caption, head, rows)))


def _word(word: str) -> str:
    from helpers.verdict import marked

    return f'<span class="zn-word">{html.escape(marked(word))}</span>'


def _fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    project = checkout(app)

    def link(page: str) -> str:
        name = f"chapters/{page}"
        return app.builder.get_relative_uri(docname, name) if name in app.env.found_docs else ""

    def title(page: str) -> str:
        return app.env.titles[f"chapters/{page}"].astext().partition(" · ")[0]

    def facts() -> list[dict[str, Any]]:
        return [fact for path, notebook in executed(app).items() for fact in statements(notebook, path.stem)]

    make: dict[str, Callable[[Pending], str]] = {
        "claims-overview": lambda place: overview(facts(), link, title),
        "methods": lambda place: methods(facts(), link),
        "sources": lambda place: sources(place["caption"], place["rows"], facts(), link),
        "releases": lambda place: releases(project.results, link),
        "releases-changed": lambda place: changed(project.results, link),
        "releases-tested": lambda place: tested(project.results),
    }
    for place in list(doctree.findall(Pending)):
        try:
            drawn = make[place["make"]](place)
        except Problem as problem:
            raise SphinxError(f"{docname}: {problem}") from problem
        place.replace_self(nodes.raw("", drawn, format="html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_node(Pending)
    for name, directive in DIRECTIVES.items():
        app.add_directive(name, directive)
    app.connect("doctree-resolved", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
