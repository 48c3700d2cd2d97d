"""A report in a notebook: one card for each origin, with the way drawn; in light and dark, and without a script."""

from __future__ import annotations

import os
import re
import sys
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Origin, Report

COLOURS = {"contaminated": "#0c8599", "undefined": "#e64980", "overflow": "#d9690b", "bad input": "#845ef7"}
"""Of the bar beside a card, and of the box around its word: seen on white and on black. The word has the page's ink."""

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


def as_html(report: Report) -> str:
    """The report as HTML that stands alone."""
    notes = "".join(f"<p style='margin:0'>Note: {escape(note)}.</p>" for note in report.notes)
    if report.ok:
        text = str(report).partition("\n")[0]
        return f"<div style='{_CARDS}'><p style='margin:0'>✓ {escape(text[0].upper() + text[1:])}.</p>{notes}</div>"
    several = len(report.origins) > 1
    head = f"<p style='margin:0'>{len(report.origins)} origins, in order of time:</p>" if several else ""
    return f"<div style='{_CARDS}'>{head}{''.join(map(_card, report.origins))}{notes}</div>"


def place(filename: str, line: int) -> str:
    """Where a line is, as a reader of a notebook knows it: a cell by its number, a file by its path from here.

    >>> place("<ipython-input-7-0e1f2a>", 3)
    'Cell In[7], line 3'
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(filename)
    older = re.match(r"<ipython-input-(\d+)-", filename)
    if named is None and older is not None:
        named = "Cell", f"In[{older[1]}]"
    if named is not None:
        return f"{' '.join(named)}, line {line}"
    here = os.getcwd() + os.sep
    return f"{filename.removeprefix(here)}:{line}"


def _card(origin: Origin) -> str:
    colour = COLOURS[origin.kind]
    head = (
        f"<div style='{_HEAD}'><strong style='{_KIND.format(colour=colour)}'>{escape(origin.kind)}</strong>"
        f"<code style='{_PLAIN}'>{escape(origin.operands or origin.operator)}</code></div>"
    )
    module = f" in <code style='{_PLAIN}'>{escape(origin.module)}</code>" if origin.module else ""
    rank = f", rank {origin.rank}" if origin.rank is not None else ""
    by = f"{origin.phase}, by <code style='{_PLAIN}'>{escape(origin.operator)}</code>{module}{rank}"
    at = escape(place(origin.filename, origin.line))
    rows = {
        "where": f"{at}{_code(origin.source)}",
        "born in": f"{by}<br>{escape(origin.where)}",
        "reached": _way(origin),
        "it means": escape(_meaning(origin)),
        "to do": _code(origin.remedy) + _page(origin.chapter),
    }
    body = "".join(
        f"<div style='{_ROW}'><dt style='{_LABEL}'>{label}</dt><dd style='{_VALUE}'>{value}</dd></div>"
        for label, value in rows.items()
        if value
    )
    return f"<div style='{_CARD.format(colour=colour)}'>{head}<dl style='margin:0'>{body}</dl></div>"


def _way(origin: Origin) -> str:
    """The functions on the way, each in a box, and what it ended in."""
    steps = origin.path if len(origin.path) <= 8 else [*origin.path[:4], "…", *origin.path[-4:]]
    ends = ", ".join(origin.reached[:4])
    more = f" and {len(origin.reached) - 4} more" if len(origin.reached) > 4 else ""
    boxes = [f"<span style='{_STEP}'>{escape(step)}</span>" for step in steps]
    return " → ".join([*boxes, f"<strong>{escape(ends + more)}</strong>"])


def _code(text: str) -> str:
    return f"<pre style='{_CODE}'>{escape(text)}</pre>" if text else ""


def _page(address: str) -> str:
    name = address.rpartition("/")[2].partition(".html")[0].replace("-", " ")
    return f"<a style='{_LINK}' href='{escape(address)}'>Read on: {escape(name)}</a>" if address else ""


def _meaning(origin: Origin) -> str:
    text = origin.means
    return text[0].upper() + text[1:] + "."
