"""Put a result on the page: HTML for readers and JSON for machines in one output, plain text outside a notebook."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from .entries import Absent, Entries, Kind, Outcome, Raised, nested

MIME = "application/vnd.zero-or-nan+json"
"""The MIME type under which claims and verdicts stand in an executed notebook's outputs."""


class Shown(Protocol):
    """What `show` can show."""

    def text(self) -> str: ...

    def html(self) -> str: ...

    def json(self) -> dict[str, Any] | None: ...


def show(item: Shown) -> None:
    """Display an item in a notebook, as HTML with its JSON beside it; elsewhere print its text."""
    shell = notebook()
    if shell is None:
        print(item.text())
        return
    bundle: dict[str, Any] = {"text/plain": item.text(), "text/html": page(item.html())}
    facts = item.json()
    if facts is not None:
        bundle[MIME] = facts
    shell.display_pub.publish(bundle)


def raises() -> bool:
    """Whether a claim that does not hold raises: always, but in a notebook whose reader wants to read on.

    A build that reads no claims from its notebooks, such as a plain `jupyter-book build .`, sets `ZERO_OR_NAN_CLAIMS`
    to `raise`, and stops at the first one.
    """
    return notebook() is None or os.environ.get("ZERO_OR_NAN_CLAIMS") == "raise"


def page(body: str) -> str:
    """Wrap HTML so that it looks the same on the site, in Jupyter and on Colab, in light and in dark.

    Every output carries the few rules that it needs: Colab shows each one in a frame of its own.
    """
    return f'<div class="zn"><style>{_STYLE}</style>{body}</div>'


STACK = 3
"""The columns that fit on a phone side by side; the rows of a wider table become stacks of labelled elements there."""
PHONE = 36
"""The characters of code that fit on a line there."""


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    foot: Sequence[str] = (),
    data: Mapping[str, str] | None = None,
    stack: bool | None = None,
) -> str:
    """An HTML table whose first row and first column are headers. All cells are HTML already.

    Args:
        caption: what the table shows.
        head: the headers of the columns.
        rows: the cells of each row, as many as there are headers; the first is the row's header.
        foot: the cells of a last row, below a rule.
        data: `data-` attributes of the table, for scripts and tests.
        stack: whether the rows become stacks on a phone; by default those of a table with more than `STACK` columns, or
            with code that is too long for a phone.
    """
    labels = [html.escape(plain(cell.replace("<br>", " ")), quote=True) for cell in head]
    top = "".join(f'<th scope="col" role="columnheader">{cell}</th>' for cell in head)
    body = "".join(_row(row, labels) for row in rows)
    end = f'<tfoot role="rowgroup"{_widest([foot])}>{_row(foot, labels)}</tfoot>' if foot else ""
    attributes = "".join(f' data-{key}="{html.escape(value, quote=True)}"' for key, value in (data or {}).items())
    if stack is None:
        stack = len(head) > STACK or _longest_words([head, *rows]) > PHONE
    kind = ' class="zn-stack"' if stack else ""
    # Roles, for a table that is laid out as stacks is no table to a browser. A table that is too wide all the same
    # scrolls inside its own box, which the keyboard can reach, and never moves the page sideways.
    return (
        f'<div class="zn-scroll" tabindex="0" role="group" aria-label="{html.escape(plain(caption), quote=True)}">'
        f'<table role="table"{kind}{attributes}><caption>{caption}</caption>'
        f'<thead role="rowgroup"><tr role="row">{top}</tr></thead>'
        f'<tbody role="rowgroup"{_widest(rows)}>{body}</tbody>{end}</table></div>'
    )


def _row(cells: Sequence[str], labels: Sequence[str]) -> str:
    first, *rest = zip(cells, labels, strict=True)
    return (
        f'<tr role="row"><th scope="row" role="rowheader" data-head="{first[1]}">{first[0]}</th>'
        + "".join(f'<td role="cell" data-head="{label}">{cell}</td>' for cell, label in rest)
        + "</tr>"
    )


def _longest_words(rows: Sequence[Sequence[str]]) -> int:
    """How many characters a line needs if code does not break: the longest word of each column. Other text breaks."""

    def longest(cell: str) -> int:
        code = " ".join(re.findall(r"<code>(.*?)</code>", cell))
        return max((len(word) for word in plain(code).split()), default=0) or min(len(plain(cell)), 7)

    return sum(max(map(longest, column)) for column in zip(*rows, strict=True))


def _widest(rows: Sequence[Sequence[str]]) -> str:
    """The width of the longest line in a cell, which says how many cells of a stack stand side by side."""
    lines = (plain(line) for row in rows for cell in row[1:] for line in cell.split("<br>"))
    return f' style="--widest: {max(map(len, lines), default=0)}ch"'


def entry(text: str, kind: Kind) -> str:
    """One element as HTML; its kind is told by the text and by the shape of its mark, never by colour alone."""
    return f'<span class="zn-{kind.value.lower()}">{html.escape(text)}</span>'


def cells(entries: Entries, digits: int = 5) -> list[str]:
    """Every element as HTML, a number with `digits` significant digits."""
    return [entry(text, kind) for text, kind in zip(entries.texts(digits), entries.kinds(), strict=True)]


def result(value: Outcome, limit: int = 24) -> str:
    """An outcome as HTML: its elements in brackets, or what stood in their place."""
    if isinstance(value, Absent):
        return '<span class="zn-masked">None</span>'
    if isinstance(value, Raised):
        return f'<span class="zn-nan">raises {html.escape(value.type)}</span>'
    if isinstance(value, Entries):
        return nested(cells(value), value.shape, limit)
    raise TypeError(f"not an outcome: {value!r}")


def anchor(*words: str) -> str:
    """The name under which a link finds a place on a page.

    >>> anchor("claim", "10729", "vanilla", "x.grad, result clamped")
    'claim-10729-vanilla-x-grad-result-clamped'
    >>> anchor("where(y >= 0), at −1"), anchor("where(y > 0), at 1")
    ('where-y-ge-0-at-minus-1', 'where-y-0-at-1')
    """
    text = " ".join(words).lower().replace(">=", " ge ")
    return "-".join(re.findall("[a-z0-9]+", re.sub(r"(?<![a-z0-9])[−-](?=\d)", " minus ", text)))


def plain(fragment: str) -> str:
    """The text of a piece of HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", fragment))


def notebook() -> Any:
    """The running IPython shell with a kernel behind it, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell if shell is not None and hasattr(shell, "kernel") else None


_STYLE = " ".join(resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8").split())
