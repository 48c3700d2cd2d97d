"""Shows a result: HTML for readers and JSON for programs in one output of a notebook, and plain text elsewhere."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

from zero_or_nan.explain.report.remedies import PAGES

from .entries import Absent, Entries, Kind, Outcome, Raised, nested

MIME = "application/vnd.zero-or-nan+json"
"""The MIME type of claims and verdicts in the outputs of an executed notebook."""


class Shown(Protocol):
    """The interface of objects that `show` can show. Only claims and verdicts have a form for programs."""

    def text(self) -> str: ...

    def html(self) -> str: ...

    def json(self) -> dict[str, Any] | None:
        return None


@dataclass(frozen=True)
class Item(Shown):
    """HTML for the page, and the text that replaces it outside a page."""

    plain: str
    body: str

    def text(self) -> str:
        return self.plain

    def html(self) -> str:
        return self.body


def show(item: Shown) -> None:
    """Display an item in a notebook, as HTML and JSON. Outside a notebook, print its text."""
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
    """Whether a claim that does not hold raises. In a notebook it does not raise, so that a reader can read on.

    A plain `jupyter-book build .` reads no claims from its notebooks. Such a build sets `ZERO_OR_NAN_CLAIMS` to
    `raise`, and stops at the first claim that does not hold.
    """
    return notebook() is None or os.environ.get("ZERO_OR_NAN_CLAIMS") == "raise"


def page(body: str) -> str:
    """Wrap HTML so that it looks the same on the site, in Jupyter and on Colab, in light and in dark.

    Every output carries the styles that it needs, because Colab shows each output in a separate frame.
    """
    return f'<div class="zn"><style>{_STYLE}</style>{body}</div>'


def prose(*parts: str, kind: str = "") -> str:
    """Tables and paragraphs as a column of text. `kind` has further classes."""
    return f'<div class="{f"zn-prose {kind}".strip()}">{"".join(parts)}</div>'


def code(text: str) -> str:
    """A text as code."""
    return f"<code>{html.escape(text)}</code>"


def link(place: str, name: str) -> str:
    """A link to a page of the book, whose anchor follows after `#`. It also leads there from a notebook."""
    page, sharp, anchor = place.partition("#")
    return f'<a href="{PAGES}{page}.html{sharp}{anchor}">{html.escape(name)}</a>'


def with_code(text: str) -> str:
    """A text as HTML. Words between backticks are code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


STACK = 3
"""The most columns that fit side by side on a phone. The rows of a wider table become stacks of labelled elements."""
PHONE = 36
"""The most characters of code that fit on a line of a phone."""


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
        rows: the cells of each row, as many as there are headers. The first cell is the row's header.
        foot: the cells of a last row, below a rule.
        data: `data-` attributes of the table, for scripts and tests.
        stack: whether the rows become stacks on a phone. By default they do if the table has more than `STACK` columns,
            or code that is too long for a phone.
    """
    labels = [html.escape(plain(cell.replace("<br>", " ")), quote=True) for cell in head]
    top = "".join(f'<th scope="col" role="columnheader">{cell}</th>' for cell in head)
    body = "".join(_row(row, labels) for row in rows)
    end = f'<tfoot role="rowgroup"{_widest([foot])}>{_row(foot, labels)}</tfoot>' if foot else ""
    attributes = "".join(f' data-{key}="{html.escape(value, quote=True)}"' for key, value in (data or {}).items())
    if stack is None:
        stack = len(head) > STACK or _longest_words([head, *rows]) > PHONE
    kind = ' class="zn-stack"' if stack else ""
    # The roles are needed because browsers do not treat a table that is laid out as stacks as a table. A table that is
    # still too wide scrolls inside its box. The keyboard can reach this box, and the page never scrolls sideways.
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
    """How many characters a line needs if code does not break: the sum over columns of the longest word.

    Other text breaks.
    """

    def longest(cell: str) -> int:
        code = " ".join(re.findall(r"<code>(.*?)</code>", cell))
        return max((len(word) for word in plain(code).split()), default=0) or min(len(plain(cell)), 7)

    return sum(max(map(longest, column)) for column in zip(*rows, strict=True))


def _widest(rows: Sequence[Sequence[str]]) -> str:
    """The width of the longest line in a cell as CSS. It determines how many cells of a stack are side by side.

    Cells are below one another if one of them has several sentences.
    """
    lines = (plain(line) for row in rows for cell in row[1:] for line in cell.split("<br>"))
    widest = max(map(len, lines), default=0)
    return f' style="--widest: {widest}ch{"; --most: 100%" if widest > 4 * PHONE else ""}"'


def entry(text: str, kind: Kind) -> str:
    """One element as HTML. The text shows its kind, and bold type marks NaN and infinity: never the colour alone."""
    return f'<span class="zn-{kind.value.lower()}">{html.escape(text)}</span>'


def cells(entries: Entries, digits: int = 5) -> list[str]:
    """Every element as HTML. A number has `digits` significant digits."""
    return [entry(text, kind) for text, kind in zip(entries.texts(digits), entries.kinds(), strict=True)]


def result(value: Outcome, limit: int = 24) -> str:
    """An outcome as HTML: its elements in brackets, the exception, or None."""
    if isinstance(value, Absent):
        return '<span class="zn-masked">None</span>'
    if isinstance(value, Raised):
        return f'<span class="zn-nan">raises {html.escape(value.type)}</span>'
    if isinstance(value, Entries):
        return nested(cells(value), value.shape, limit)
    raise TypeError(f"not an outcome: {value!r}; convert it with helpers.entries.outcome")


def anchor(*words: str) -> str:
    """The id of a place on a page, for links.

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
    """The running IPython shell if it belongs to a notebook, otherwise None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell if shell is not None and hasattr(shell, "kernel") else None


_STYLE = " ".join(resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8").split())
