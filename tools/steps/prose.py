"""Numbers in prose: a page must also show each of them where it can't go out of date.

A number that an author types stays as it is when the result changes. So the build looks for it in what is not prose:
the outputs of cells, claims and verdicts, code, quotations (block quotes and code spans), addresses of links, and what
is drawn from records. It must be in the same section of the page, from one heading of level 2 to the next; if it has
at least `LONG` digits, anywhere in the page. The two must be equal to the digits that the prose has: 3.9012 is found
in 3.90123, and 19 % in 0.19. A whole number is found only in the same number.

Front matter and labels are no prose. `_FREE` lists the numbers that need no source. Whole numbers below `COUNTED` are
words for counting, as in *two rows* or *8 × NaN*. Numbers in words are not looked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path

from markdown_it import MarkdownIt
from mdit_py_plugins.deflist import deflist_plugin

from ..project import Project, page_text
from ..versions.matrix import RELEASES
from .collect import MIME, Notebook

COUNTED = 13
"""The first whole number that needs a source."""
LONG = 3
"""The significant digits with which a number is hardly found by chance, so that its source may be anywhere."""

_BLOCKS = MarkdownIt("commonmark").enable("table").use(deflist_plugin)
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_LABEL = re.compile(r"^\([^()\s]+\)=$", re.MULTILINE)
_CODE_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_ADDRESS = re.compile(r"\]\(([^)]*)\)|https?://\S+")
_RELEASE = r"\d+(?:\.\d+)+"
_FREE = re.compile(
    "|".join((
        r"IEEE(?: Std)? \d+|\d+\(\d+\)[^.]*\b(?:19|20)\d\d\b",  # a standard, an article
        r"\b\d{4}-\d\d-\d\d\b|\b20[12]\d\b",  # a date
        rf"(?:PyTorch|Python|NumPy|JAX|CUDA|transformers|TRL|[Vv]ersion) {_RELEASE}(?:(?:,| and| or| to) {_RELEASE})*",
        r"(?<![\d.])(?:" + "|".join(re.escape(name.removesuffix(".0")) for name in RELEASES) + r")(?!\d| ?%|\.\d)",
        r"\d+ minutes",  # of a lecture: the book measures seconds
    ))
)  # fmt: skip
_NUMBER = re.compile(r"(?<![\w.])(-?)(\d{1,3}(?:[,_]\d{3})+(?!\d)|\d+)(\.\d+)?(?:e([+-]?\d+))?( ?%)?")
_POWER_OF_TEN = re.compile(r"(?:([\d.]+) ?[×·*] ?)?\b10\*\*([+-]?\d+)")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_Section = tuple[list[tuple[int, str]], list[str], list[str]]
"""The blocks of prose with their first lines, the texts in which numbers are looked for, and the records."""


def unfound(project: Project, page: Path, notebook: Notebook | None = None) -> list[str]:
    """One text, with the line, for each number in the prose of a page that the page shows nowhere else.

    Args:
        project: the checkout.
        page: the source of the page.
        notebook: the executed page; None if the page has no code.
    """
    sections = _sections(page_text(page), _shown(notebook or {"cells": []}))
    anywhere = _known(text for _, sources, _ in sections for text in sources)
    found = []
    for prose, sources, records in sections:
        missing = _missing(prose, _known(sources), anywhere)
        if missing and records:  # drawn only here, because this imports PyTorch and matplotlib
            drawn = [_drawn(project, name) for name in records]
            missing = _missing(prose, _known([*sources, *drawn]), anywhere)
        found += missing
    return found


def _sections(text: str, shown: Iterator[str]) -> list[_Section]:
    """The sections of a page. `shown` has a text for each code cell."""
    text = _LABEL.sub("", _FRONT_MATTER.sub(lambda front: "\n" * front[0].count("\n"), text))
    sections: list[_Section] = [([], [], [])]
    quotes = 0
    for block in _BLOCKS.parse(text):
        if (block.type, block.tag) == ("heading_open", "h2"):
            sections.append(([], [], []))
        prose, sources, records = sections[-1]
        quotes += {"blockquote_open": 1, "blockquote_close": -1}.get(block.type, 0)
        if block.info.startswith("{measured-"):
            records.append(block.info.strip("{} ").removeprefix("measured-"))
        elif block.type == "fence" or (block.type == "inline" and quotes):
            sources.append(block.content)
            if block.info.startswith("{code-cell}"):
                sources.append(next(shown, ""))
        elif block.type == "inline":
            prose.append(((block.map or [0])[0] + 1, block.content))
            sources.extend(part[0] for rule in (_CODE_SPAN, _ADDRESS) for part in rule.finditer(block.content))
    return sections


def _shown(notebook: Notebook) -> Iterator[str]:
    """What each code cell of an executed page shows, as text; of claims also every digit."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            texts = []
            for output in cell["outputs"]:
                data = output.get("data", {})
                facts = data.get(MIME) or {}
                sides = json.dumps([facts.get(side) for side in ("expected", "observed", "reference")])
                texts += [*output.get("text", ""), "\n", *data.get("text/plain", ""), "\n", sides.replace('"', " ")]
            yield "".join(texts)


def _drawn(project: Project, name: str) -> str:
    """The text of a figure or table of a record, as a page shows it."""
    from ..pages.measured import drawn

    return unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", drawn(project, name), flags=re.DOTALL))


def _missing(prose: list[tuple[int, str]], here: set[float], anywhere: set[float]) -> list[str]:
    """The numbers that need a source and have none, with their lines and the words around them."""
    missing = []
    for first, text in prose:
        for free in (_CODE_SPAN, _ADDRESS, _FREE):
            text = free.sub(lambda part: "…" + "\n" * part[0].count("\n"), text)
        text = _plain(text)
        for number in _NUMBER.finditer(text):
            is_counted = not any(number.group(3, 4, 5)) and abs(_value(number)) < COUNTED
            is_long = len(re.sub(r"\D", "", number[2] + (number[3] or "")).strip("0")) >= LONG
            if not (is_counted or _is_in(here, number) or is_long and _is_in(anywhere, number)):
                words = " ".join(text[max(number.start() - 30, 0) : number.end() + 30].split())
                missing.append(f"line {first + text.count(chr(10), 0, number.start())}: {number[0]} ({words})")
    return missing


def _plain(text: str) -> str:
    """The text with ASCII signs, and with powers of ten as in code: 3 × 10⁸ becomes 3e8."""
    text = _SUPERSCRIPT.sub(lambda digits: f"**{digits[0].translate(_DIGITS)}", text.replace("−", "-"))
    return _POWER_OF_TEN.sub(lambda power: f"{power[1] or 1}e{power[2]}", text)


def _known(texts: Iterable[str]) -> set[float]:
    return {_value(number) for text in texts for number in _NUMBER.finditer(_plain(text))}


def _value(number: re.Match[str]) -> float:
    return float(f"{number[1]}{re.sub('[,_]', '', number[2])}{number[3] or ''}e{number[4] or 0}")


def _is_in(known: set[float], number: re.Match[str]) -> bool:
    """Whether a number is known, to the digits that it has; without a minus, also as a negative number or a share."""
    value, is_whole = _value(number), not any(number.group(3, 4, 5))
    half = 0 if is_whole else 0.5 * 10.0 ** (int(number[4] or 0) + 1 - len(number[3] or "."))
    near = half + 1e-9 * abs(value)  # a source that lies halfway between two roundings fits both
    scales = (1, 100) if number[5] else (1,)
    return any(abs((each if number[1] else abs(each)) * scale - value) <= near for each in known for scale in scales)
