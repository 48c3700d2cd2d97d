"""Numbers in prose: a page must also show each of them where it can't go out of date.

A number that an author types stays as it is when the result changes. So the build looks for it in what is not prose:
the outputs of cells, claims and verdicts, code, quotations (block quotes and code spans), and what is drawn from
records. It must be in the same section of the page, from one heading of level 2 to the next; if it has at least
`LONG` digits, anywhere in the page. The two numbers must be equal to the digits that the prose has: 3.9012 is found in
3.90123, and 19 % in 0.19. A whole number is found only in the same number.

Front matter and the addresses of links are no prose. `_FREE` lists the numbers that need no source. Whole numbers below
`COUNTED` are words for counting, as in *two rows* or *8 × NaN*.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import unescape
from importlib import import_module
from pathlib import Path

from markdown_it import MarkdownIt
from mdit_py_plugins.deflist import deflist_plugin

from ..project import Project, page_text, read_record
from ..versions.matrix import RELEASES
from .collect import MIME
from .ran import Notebook

COUNTED = 13
"""The first whole number that needs a source."""
LONG = 3
"""The significant digits with which a number is hardly found by chance, so that its source may be anywhere."""

_BLOCKS = MarkdownIt("commonmark").enable("table").use(deflist_plugin)
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_CODE_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_ADDRESS = re.compile(r"\]\([^)]*\)|https?://\S+")
_RELEASE = r"\d+(?:\.\d+)+"
_FREE = re.compile(
    "|".join((
        r"\S*#\d+|\[\d{4,}(?=…)|(?:Stack Overflow|forum|issue) \d+",  # a thread
        r"IEEE(?: Std)? \d+|(?:doi|arXiv):\S+|\d+\(\d+\)[^.]*\b(?:19|20)\d\d\b",  # a standard, an article
        r"\b\d{4}-\d\d-\d\d\b|\b20[12]\d\b",  # a date
        rf"(?:PyTorch|Python|NumPy|CUDA|transformers|TRL|[Vv]ersion) {_RELEASE}(?:(?:,| and| or| to) {_RELEASE})*",
        r"(?<![\d.])(?:" + "|".join(re.escape(name.removesuffix(".0")) for name in RELEASES) + r")(?!\d| ?%|\.\d)",
        r"\d+ minutes",  # of a lecture: the book measures seconds
    ))
)  # fmt: skip
_NUMBER = re.compile(r"(?<![\w.])(-?)(\d{1,3}(?:[,_]\d{3})+(?!\d)|\d+)(\.\d+)?(?:e([+-]?\d+))?( ?%| million)?")
_POWER_OF_TEN = re.compile(r"(?:([\d.]+) ?[×·*] ?)?\b10\*\*([+-]?\d+)")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_WORDS = dict(zip("thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(), range(13, 20), strict=True))
_WORDS |= dict(zip("twenty thirty forty fifty sixty seventy eighty ninety".split(), range(20, 100, 10), strict=True))
_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)


@dataclass(frozen=True)
class _Section:
    """A part of a page: the blocks of its prose with their first lines, what it shows beside, and its records."""

    prose: list[tuple[int, str]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    records: list[str] = field(default_factory=list)


def unfound(project: Project, page: Path, notebook: Notebook | None = None) -> list[str]:
    """One text, with the line, for each number in the prose of a page that the page shows nowhere else.

    Args:
        project: the checkout.
        page: the source of the page.
        notebook: the executed page; None if the page has no code.
    """
    sections = _sections(page_text(page), _shown(notebook or {"cells": []}))
    anywhere = _Known(text for section in sections for text in section.sources)
    found = []
    for section in sections:
        missing = _missing(section.prose, _Known(section.sources), anywhere)
        if missing and section.records:  # drawn only here, because this imports PyTorch and matplotlib
            drawn = [_drawn(project, name) for name in section.records]
            missing = _missing(section.prose, _Known([*section.sources, *drawn]), anywhere)
        found += missing
    return found


def _sections(text: str, shown: Iterator[str]) -> list[_Section]:
    """The sections of a page. `shown` has a text for each code cell."""
    text = _FRONT_MATTER.sub(lambda front: "\n" * front[0].count("\n"), text)
    sections, quotes = [_Section()], 0
    for block in _BLOCKS.parse(text):
        if (block.type, block.tag) == ("heading_open", "h2"):
            sections.append(_Section())
        section = sections[-1]
        quotes += {"blockquote_open": 1, "blockquote_close": -1}.get(block.type, 0)
        if block.info.startswith("{measured-"):
            section.records.append(block.info.strip("{} ").removeprefix("measured-"))
        elif block.type in ("fence", "code_block"):
            section.sources.append(block.content)
            if block.info.startswith("{code-cell}"):
                section.sources.append(next(shown, ""))
        elif block.type == "inline" and quotes:
            section.sources.append(block.content)
        elif block.type == "inline":
            assert block.map is not None
            section.prose.append((block.map[0] + 1, block.content))
            section.sources.extend(span[2] for span in _CODE_SPAN.finditer(block.content))
    return sections


def _shown(notebook: Notebook) -> Iterator[str]:
    """What each code cell of an executed page shows, as text; of claims also every digit."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            texts = []
            for output in cell["outputs"]:
                data = output.get("data", {})
                texts.append("".join(output.get("text", "")) or "".join(data.get("text/plain", "")))
                facts = data.get(MIME) or {}
                sides = [facts.get(side) for side in ("expected", "observed", "reference")]
                texts.append(json.dumps(sides).replace('"', " "))
            yield "\n".join(texts)


def _drawn(project: Project, name: str) -> str:
    """The text of a figure or table of a record, as a page shows it."""
    from ..pages.measured import DRAWN

    record, module, function = DRAWN[name]
    draw = getattr(import_module(f"tools.{module}"), function)
    content = read_record(project.results / "measured" / f"{record}.json")
    return unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", draw(content), flags=re.DOTALL))


def _missing(prose: list[tuple[int, str]], here: _Known, anywhere: _Known) -> list[str]:
    missing = []
    for first, text in prose:
        for line, number, words in _numbers(first, text):
            digits = re.sub(r"\D", "", number.partition("e")[0]).strip("0")
            if not (number in here or len(digits) >= LONG and number in anywhere):
                missing.append(f"line {line}: {number} ({words})")
    return missing


def _numbers(first: int, text: str) -> Iterator[tuple[int, str, str]]:
    """Each number of a block that needs a source: its line, the number, and the words around it."""
    for free in (_CODE_SPAN, _ADDRESS, _FREE):
        text = free.sub(lambda part: "…" + "\n" * part[0].count("\n"), text)
    text = _plain(text)
    for number in _NUMBER.finditer(text):
        if number[3] or number[4] or number[5] or _value(number) >= COUNTED:
            words = text[max(number.start() - 30, 0) : number.end() + 30]
            yield first + text.count("\n", 0, number.start()), number[0], " ".join(words.split())


def _plain(text: str) -> str:
    """The text with digits for words, ASCII signs, and powers of ten as in code: 3 × 10⁸ becomes 3e8."""
    text = _SUPERSCRIPT.sub(lambda digits: f"**{digits[0].translate(_DIGITS)}", text.replace("−", "-"))
    text = _WORD.sub(lambda word: str(_WORDS[word[0].lower()]), text)
    return _POWER_OF_TEN.sub(lambda power: f"{power[1] or 1}e{power[2]}", text)


class _Known:
    """All numbers in some texts, without their signs, and those with a minus."""

    def __init__(self, texts: Iterable[str]) -> None:
        found = [(number[1], _value(number)) for text in texts for number in _NUMBER.finditer(_plain(text))]
        self._all = sorted(value for _, value in found)
        self._negative = sorted(value for sign, value in found if sign)

    def __contains__(self, text: str) -> bool:
        """Whether a number is among them, to the digits that it has. A percentage may also be a share."""
        number = _NUMBER.fullmatch(text)
        assert number is not None
        among, value = self._negative if number[1] else self._all, _value(number)
        if not (number[3] or number[4] or number[5]):
            return _has(among, value, 0)
        half = 0.5 * 10.0 ** (int(number[4] or 0) + 1 - len(number[3] or ".")) * _scale(number)
        return any(_has(among, value / part, half / part) for part in ((1, 100) if "%" in text else (1,)))


def _value(number: re.Match[str]) -> float:
    return float(f"{re.sub('[,_]', '', number[2])}{number[3] or ''}e{number[4] or 0}") * _scale(number)


def _scale(number: re.Match[str]) -> float:
    return 1e6 if number[5] == " million" else 1


def _has(ordered: list[float], value: float, within: float) -> bool:
    within += 1e-9 * value  # a source that lies halfway between two roundings fits both
    place = bisect_left(ordered, value - within)
    return place < len(ordered) and ordered[place] <= value + within
