"""What the box for pasted messages knows, checked, as the data that `message.js` reads.

These are the rules of `chapters/messages.toml`, and what is learned from the texts of `chapters/pasted.json`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..project import Problem, Project
from .learned import learned

MESSAGES = Path("chapters") / "messages.toml"
TEXTS = Path("chapters") / "pasted.json"
KINDS = ("message", "node", "grows", "hint", "other")
FLAGS = ("opens", "symptom", "nan")
_NODE = r"(?:Function '?(?=\w+'? returned nan)|Error detected in )"
"""What comes before a node's name in a message of anomaly mode."""


def messages(project: Project, records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sentences with their places, the rules in their order, and what is learned from texts.

    `records` are the addresses, the pages and the headings of all sections, from `search.records`.

    Raises:
        Problem: if a rule is not as the file says, or if a rule or a text names a page, a section or a node that does
            not exist.
    """
    table = tomllib.loads((project.root / MESSAGES).read_text(encoding="utf-8"))
    places = {record["address"]: record for record in records}
    nodes = [record["heading"] for record in places.values() if record.get("fallback")]
    pages = {}
    for name, sentence in table["sentences"].items():
        page, _, anchor = name.partition("#")
        address = project.path(f"chapters/{page}") + (f"#{anchor}" if anchor else "")
        place = places.get(address.replace("{node}", next(iter(nodes), "")))
        if place is None:
            raise Problem(f"{MESSAGES} has a sentence for {name}, but no such page or section")
        heading = "{node}" if "{node}" in anchor else place["heading"]
        pages[name] = {"address": address, "page": place["page"], "heading": heading, "if": sentence}
    rules = []
    for number, rule in enumerate(table["rule"], 1):
        where, kinds = f"rule {number} of {MESSAGES}", [key for key in rule if key in KINDS]
        if len(kinds) != 1 or not set(rule) <= {*kinds, *FLAGS, "pages"}:
            raise Problem(f"{where} has {', '.join(rule)}; it needs pages and one of {', '.join(KINDS)}")
        if unknown := [name for name in rule["pages"] if name not in pages]:
            raise Problem(f"{where} names {', '.join(unknown)}: add a sentence that says when this is the right page")
        texts = rule[kinds[0]] if isinstance(rule[kinds[0]], list) else [rule[kinds[0]]]
        pattern = _node(texts, nodes, where) if kinds == ["node"] else "|".join(texts)
        try:
            re.compile(pattern.replace("(?<node>", "(?P<node>"))
        except re.error as error:
            raise Problem(f"{where} has a regular expression that can't be read: {error}") from error
        flags = {flag: rule[flag] for flag in FLAGS if flag in rule}
        rules.append({"kind": kinds[0], "pattern": pattern, "pages": rule["pages"], **flags})
    texts = json.loads((project.root / TEXTS).read_text(encoding="utf-8"))
    if lacking := {name for text in texts for name in text["expect"]} - set(pages):
        raise Problem(f"{TEXTS} names {', '.join(sorted(lacking))}, but {MESSAGES} has no sentence for it: add one")
    return {"symptom": "|".join(table["symptom"]), "rules": rules, "pages": pages, "learned": learned(texts)}


def _node(names: list[str], nodes: list[str], where: str) -> str:
    """The expression for messages about some nodes."""
    listed = rf"(?:{'|'.join(nodes)})\b"
    if names == ["listed"]:
        return rf"{_NODE}(?<node>{listed})"
    if names == ["not listed"]:
        return rf"{_NODE}(?!{listed})\w+Backward"
    for name in names:
        if not any(re.fullmatch(rf"{name}Backward\w*", node) for node in nodes):
            raise Problem(f"{where} names {name}, but PyTorch has no node {name}Backward: correct the name")
    return rf"{_NODE}(?:{'|'.join(names)})Backward"
