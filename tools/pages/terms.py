"""Sphinx extension: the words of the glossary carry their definitions on every page that uses them.

A link to a word of the glossary gets the first sentence of the word's definition as its title. If a page uses a word
and has no link to it, the first use becomes one. `theme/static/terms.js` shows the title to fingers and keyboards too.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

GLOSSARY = "chapters/glossary"
ORDINARY = {"claim", "graph", "leaf", "mask", "method", "nan", "origin", "undefined", "verdict"}
"""The terms that are ordinary words too. Only links that authors wrote mark such a term."""

_APART = (nodes.title, nodes.reference, nodes.literal, nodes.raw, nodes.FixedTextElement, addnodes.desc_signature)
"""What is no running text, and what has a link already."""


def definitions(glossary: nodes.document) -> dict[str, tuple[str, str]]:
    """The word and the first sentence of each definition, by the anchor of its section, which is of the third level."""
    found = {}
    for section in glossary.findall(nodes.section):
        if isinstance(section.parent.parent, nodes.section):
            text = " ".join(section[1].astext().split())
            found[section["ids"][0]] = section[0].astext(), re.split(r"(?<=\.) ", text)[0]
    return found


def mark(page: nodes.document, glossary: nodes.document, address: str) -> None:
    """Give each link to a definition the definition, and make a link of the first use of a word that has none.

    Args:
        page: the page, with all of its references resolved.
        glossary: the page of the glossary.
        address: the address of the glossary, as seen from the page.
    """
    for anchor, (word, sentence) in definitions(glossary).items():
        there = f"{address}#{anchor}"
        links = [link for link in page.findall(nodes.reference) if link.get("refuri") == there]
        if not links and anchor not in ORDINARY:
            links = _first_use(page, word, there)
        for link in links:
            link["reftitle"] = sentence
            link["classes"].insert(0, "term")


def _first_use(page: nodes.document, word: str, there: str) -> list[nodes.reference]:
    pattern = re.compile(rf"\b{word}s?\b".replace(" ", r"\s+"), re.IGNORECASE)
    for text in page.findall(nodes.Text):
        found = pattern.search(text)
        if found and not _within(text):
            link = nodes.reference("", found[0], refuri=there, internal=True)
            parts = [nodes.Text(text[: found.start()]), link, nodes.Text(text[found.end() :])]
            text.parent.replace(text, parts)
            return [link]
    return []


def _within(node: nodes.Node) -> bool:
    """Whether a text is in something that is no running text, such as a cell."""
    while (node := node.parent) is not None:
        if isinstance(node, _APART) or "cell" in node.get("classes", []):
            return True
    return False


def _show(app: Sphinx, page: nodes.document, name: str) -> None:
    if app.builder.name == "html" and name != GLOSSARY and GLOSSARY in app.env.all_docs:
        mark(page, app.env.get_doctree(GLOSSARY), app.builder.get_relative_uri(name, GLOSSARY))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("doctree-resolved", _show)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
