"""Shows a report in a notebook: one card for each origin, for light and dark themes, without JavaScript.

These functions write the HTML and its style. `report` calls them, and decides what a card shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape as _escaped

from ..program.code import printable

COLOURS = {"contaminated": "#0c8599", "undefined": "#e64980", "overflow": "#d9690b", "bad input": "#845ef7"}
"""Colors of the bar and of the box around the kind, visible on white and on black. The kind has the text's color."""

_CARD = "border-left:4px solid {colour};padding:.1em 0 .2em .9em;font-size:.95em;overflow-wrap:anywhere"
_CARDS = "display:grid;grid-template-columns:minmax(0,1fr);gap:1em"
_HEAD = "display:flex;flex-wrap:wrap;gap:.3em .8em;align-items:baseline;margin:0 0 .3em"
_KIND = "border:2px solid {colour};border-radius:.3em;padding:0 .45em;white-space:nowrap"
_PLAIN = "background:none;padding:0;border:0;color:inherit;overflow-wrap:anywhere"
_CODE = f"{_PLAIN};white-space:pre-wrap;margin:0;overflow:visible;font-size:.9em;line-height:1.45"
_ROW = "display:flex;flex-wrap:wrap;gap:0 .8em;align-items:baseline;margin:.15em 0"
_LABEL = "flex:0 0 5.5em;font-weight:400;opacity:.85;font-size:.9em"
_VALUE = "flex:1 1 15em;min-width:0;margin:0"
_STEP = "display:inline-block;border:1px solid #8888;border-radius:.3em;padding:0 .4em;margin:.1em 0"
_LINK = "color:inherit;text-decoration:underline"


def escape(text: str) -> str:
    """Text as HTML, all in one line."""
    return _escaped(printable(text))


def cards(head: str, parts: Iterable[str]) -> str:
    """Complete HTML: a sentence, unless it is empty, and the parts below it."""
    return f"<div style='{_CARDS}'>{sentence(head) if head else ''}{''.join(parts)}</div>"


def sentence(text: str) -> str:
    """A line of text."""
    return f"<p style='margin:0'>{escape(text)}</p>"


def card(kind: str, title: str, rows: Mapping[str, str]) -> str:
    """One card.

    Args:
        kind: the word in the box, which also chooses the color.
        title: the code beside the word.
        rows: HTML by label.
    """
    colour = COLOURS[kind]
    head = (
        f"<div style='{_HEAD}'><strong style='{_KIND.format(colour=colour)}'>{escape(kind)}</strong>{word(title)}</div>"
    )
    body = "".join(
        f"<div style='{_ROW}'><dt style='{_LABEL}'>{label}</dt><dd style='{_VALUE}'>{value}</dd></div>"
        for label, value in rows.items()
    )
    return f"<div style='{_CARD.format(colour=colour)}'>{head}<dl style='margin:0'>{body}</dl></div>"


def word(text: str) -> str:
    """Code within a line."""
    return f"<code style='{_PLAIN}'>{escape(text)}</code>"


def code(text: str) -> str:
    """Lines of code; empty if there are none."""
    lines = "\n".join(map(escape, text.split("\n")))
    return f"<pre style='{_CODE}'>{lines}</pre>" if text else ""


def path(steps: Iterable[str], end: str) -> str:
    """The functions on a path, each in a box, and the end of the path."""
    boxes = [f"<span style='{_STEP}'>{escape(step)}</span>" for step in steps]
    return " → ".join([*boxes, f"<strong>{escape(end)}</strong>"])


def link(address: str) -> str:
    """A link to a section of the book, with the name of its page; empty if there is no address."""
    name = address.rpartition("/")[2].partition(".html")[0].replace("-", " ")
    return f"<a style='{_LINK}' href='{escape(address)}'>Read on: {escape(name)}</a>" if address else ""
