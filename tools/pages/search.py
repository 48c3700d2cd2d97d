"""Sphinx extension: the data of the search page, with a record for each section of each page.

The search itself is MiniSearch, in the browser. Sphinx's own search requires that a page contains every word of a
query, and it ignores numbers. It found nothing for a pasted error message or the number of an issue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment

from ..project import Project, write
from . import checkout
from .messages import MESSAGES, messages
from .theme import metadata

MARK = "zn-searched"
"""The class of HTML elements that are searched.

With an `id`, such an element has its own record. Without an `id`, its text belongs to its section.
"""
KEYWORDS = {"In JAX": "JAX jnp.where jax.grad jax_debug_nans"}
"""The keywords of sections that many pages have, by their heading."""
FALLBACK = "data-fallback"
"""The attribute of a marked element that only its heading can find, and only if no page is about that name."""

_UNREAD = re.compile(r"<(script|style|svg)\b.*?</\1>", re.DOTALL)
"""What is no text. It is most of the HTML, and slow to parse."""
_PASSED_OVER = (nodes.section, nodes.title, nodes.comment, nodes.Invisible)
_APART = ("desc_name", "desc_parameter", "desc_parameterlist", "desc_returns", "desc_signature")
"""The parts of a function's signature. Between them the page shows punctuation that is not in its text."""


def records(env: BuildEnvironment, project: Project) -> list[dict[str, Any]]:
    """The sections of all pages, in order: address, page, heading, text, and the rows of tables and drawings.

    The first section of a page has the page's keywords too, and a section in `KEYWORDS` has those. A marked element of
    an output has a record after its section. Its heading is its `data-heading`, or else its first line. Its first line
    is its `own` text.
    """
    found = []
    for name in project.names:
        doctree = env.get_doctree(name)
        page, path = env.titles[name].astext(), project.path(name)
        meta = metadata(doctree)
        for number, section in enumerate(doctree.findall(nodes.section)):
            words, drawn = Words(), Drawn()
            words.read(section, drawn)
            record = {
                "address": path + (f"#{section['ids'][0]}" if number else ""),
                "page": page,
                "heading": section[section.first_child_matching_class(nodes.title)].astext(),
                "text": " ".join("".join(words.found).split()),
                "rows": " ".join("".join(drawn.words).split()),
            }
            if number == 0:
                record["keywords"] = " ".join(meta.get(key, "") for key in ("title", "description", "keywords"))
            elif record["heading"] in KEYWORDS:
                record["keywords"] = KEYWORDS[record["heading"]]
            found.append(record)
            for anchor, heading, lines, fallback in drawn.marked():
                marked = {"address": f"{path}#{anchor}", "page": page, "heading": heading}
                # The search finds a fallback by its heading alone, and does not use its words.
                more = {"fallback": True} if fallback else {"own": lines[0], "rows": ""}
                found.append({**marked, "text": " · ".join(lines[1:]), **more})
    return found


class Words:
    """The words of one section: without its title, its subsections, and folded code.

    A folded solution is included, because it is written for readers.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    def read(self, node: nodes.Element, drawn: Drawn) -> None:
        """Read the text below a node. HTML goes to `drawn`."""
        tags = {name.removeprefix("tag_") for name in node.get("classes", []) if name.startswith("tag_")}
        if "hide-cell" in tags and "solution" not in tags:
            return
        for child in node.children:
            if isinstance(child, nodes.Text):
                self.found.append(child.astext())
            elif isinstance(child, nodes.raw):
                drawn.read(child)
            elif isinstance(child, nodes.Element) and not isinstance(child, _PASSED_OVER) and not _is_session(child):
                classes = child.get("classes", [])
                if "cell_output" in classes:
                    for raw in child.findall(nodes.raw):
                        drawn.read(raw, output=True)
                elif not ("cell_input" in classes and "hide-input" in tags):
                    self.read(child, drawn)
                if not isinstance(child, nodes.Inline) or child.tagname in _APART:
                    self.found.append(" ")


def _is_session(node: nodes.Element) -> bool:
    """Whether a node shows commands at a prompt. Excerpts show what a page says, not how to install it."""
    return isinstance(node, nodes.literal_block) and node.get("language") == "console"


class Drawn:
    """The searched parts of HTML: the whole text of marked elements.

    From a cell's output, also captions and row headings, because these are words and the other cells are numbers.
    """

    _INLINE = frozenset(
        {"a", "abbr", "b", "code", "dt", "em", "i", "kbd", "mark", "small", "span", "strong", "sub", "sup"}
    )
    """The elements that do not end a line of text."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._marked: list[tuple[Tag, list[str]]] = []

    def read(self, raw: nodes.raw, output: bool = False) -> None:
        """Read the searched text of one piece of HTML: a cell's output, or one of our drawings."""
        if raw.get("format") == "html":
            self.words.append("\n")
            self._read(BeautifulSoup(_UNREAD.sub("", raw.astext()), "html.parser"), None, output)

    def marked(self) -> Iterator[tuple[str, str, list[str], bool]]:
        """The `id`, the heading, the lines, and whether it is a fallback, for each marked element."""
        for element, parts in self._marked:
            lines = [" ".join(line.split()) for line in "".join(parts).split("\n")]
            if lines := [line for line in lines if line.strip("–")]:
                heading = str(element.get("data-heading") or lines[0])
                yield str(element["id"]), heading, lines, element.has_attr(FALLBACK)

    def _read(self, element: Tag, into: list[str] | None, output: bool) -> None:
        """Put the text of an element into a list, or where a part of the element belongs."""
        for part in element.children:
            if isinstance(part, Tag):
                inside = self._place(part, into, output)
                self._read(part, inside, output)
                if inside is not None and part.name not in self._INLINE:
                    inside.append(" " if part.name == "br" else "\n")
            elif type(part) is NavigableString and into is not None:
                into.append(part.replace("\n", " "))

    def _place(self, element: Tag, into: list[str] | None, output: bool) -> list[str] | None:
        """Where the text of an element goes. By default it goes where the text of the enclosing element goes."""
        if MARK in element.get_attribute_list("class"):
            if not element.has_attr("id"):
                return self.words
            self._marked.append((element, []))
            return self._marked[-1][1]
        is_searched = element.name in ("caption", "figcaption") or element.get("scope") == "row"
        return self.words if into is None and output and is_searched else into


def _page(app: Sphinx) -> list[tuple[str, dict[str, Any], str]]:
    return [("search", {"title": "Search"}, "search.html")] if app.builder.name == "html" else []


def _write(app: Sphinx, failure: Exception | None) -> None:
    if failure is None and app.builder.name == "html":
        project = checkout(app)
        found = records(app.env, project)
        write(Path(app.outdir) / "search.json", json.dumps(found, ensure_ascii=False, indent=0) + "\n")
        if (project.root / MESSAGES).is_file():
            known = messages(project, found)
            write(Path(app.outdir) / "messages.json", json.dumps(known, ensure_ascii=False, indent=0) + "\n")


def _instead(app: Sphinx) -> None:
    if isinstance(app.builder, StandaloneHTMLBuilder):
        app.builder.search = False  # Sphinx's own index and page


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("builder-inited", _instead)
    app.connect("html-collect-pages", _page)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
