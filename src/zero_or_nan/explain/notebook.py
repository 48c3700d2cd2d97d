"""A report in a notebook: one card for each origin, with the way drawn; in light and dark, and without a script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Origin, Report

COLOURS = {"contaminated": "#0b7285", "undefined": "#c2255c", "overflow": "#b35c00", "bad input": "#6741d9"}
"""Of the bar beside a card; the word stands there too."""

_CARD = "border-left:4px solid {colour};padding:.2em 0 .2em .9em;margin:.8em 0;font-size:.95em;overflow-wrap:anywhere"
_CODE = "white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0;background:none;padding:0;border:0"
_STEP = "display:inline-block;border:1px solid currentColor;border-radius:.4em;padding:0 .45em;margin:.1em 0"


def as_html(report: Report) -> str:
    """The report as HTML that stands alone."""
    if report.ok:
        return f"<p>✓ {escape(str(report))}</p>"
    head = f"{len(report.origins)} origins, in order of time" if len(report.origins) > 1 else "One origin"
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.notes)
    return f"<div><p>{head}</p>{''.join(map(_card, report.origins))}{notes}</div>"


def _card(origin: Origin) -> str:
    module = f" in <code>{escape(origin.module)}</code>" if origin.module else ""
    steps = [*origin.path[:8], *(["…"] if len(origin.path) > 8 else [])]
    end = ", ".join(origin.reached[:4]) + (", …" if len(origin.reached) > 4 else "")
    boxes = [f"<span style='{_STEP}'>{escape(step)}</span>" for step in steps]
    boxes.append(f"<span style='{_STEP};font-weight:bold'>{escape(end)}</span>")
    rows = [
        f"<strong>{escape(origin.kind)}</strong>: <code>{escape(origin.operands or origin.operator)}</code>",
        f"<code>{escape(origin.filename)}:{origin.line}</code>",
        f"<pre style='{_CODE}'>{escape(origin.source)}</pre>" if origin.source else "",
        f"born in {origin.phase}, by <code>{escape(origin.operator)}</code>{module}; {escape(origin.where)}",
        " → ".join(boxes),
        escape(_meaning(origin)),
        f"<pre style='{_CODE}'>{escape(origin.remedy)}</pre>" if origin.remedy else "",
        f"<a href='{escape(origin.chapter)}'>the page about it</a>" if origin.chapter else "",
    ]
    body = "".join(f"<div>{row}</div>" for row in rows if row)
    return f"<div style='{_CARD.format(colour=COLOURS[origin.kind])}'>{body}</div>"


def _meaning(origin: Origin) -> str:
    from .report import MEANS

    text = MEANS[origin.kind] + origin.is_mended
    return text[0].upper() + text[1:] + "."
