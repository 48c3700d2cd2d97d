"""A table of measured results: texts and outcomes. A result may have the results of older releases below it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from . import show
from .entries import describe, outcome
from .releases import Since

Cell = Any
"""A text, in which backticks mark code, or any value that a claim can expect: a tensor, a number, a `Since` of them."""


def grid(caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Show a table of results that the page measured.

    Args:
        caption: what the table shows.
        head: the headers of the columns.
        rows: the cells of each row. A text is shown as it is, with code between backticks. Everything else is shown as
            a result: NaN, infinity and 0 differ by more than colour. A `Since` shows the newest result, and below it
            the results of older releases.

    Raises:
        ValueError: if a row has another number of cells than `head`.

    >>> grid("Slopes at 0", ["Function", "Slope"], [["`abs`", 0.0], ["`clamp`", Since("2.14", now=0.0, before=1.0)]])
    Slopes at 0
    Function  Slope
    abs  0
    clamp  0, before 2.14: 1
    """
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"a row has {len(row)} cells under {len(head)} headers; give one for each header: {row}")
    show.show(_table(caption, head, rows))


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> show.Item:
    lines = [caption, *("  ".join(map(_text, row)) for row in [head, *rows])]
    table = show.table(_html(caption), [*map(_html, head)], [[*map(_html, row)] for row in rows])
    return show.Item("\n".join(lines), show.prose(table))


def _epochs(cell: Since) -> list[tuple[str, Cell]]:
    """The results of a cell, the newest first, each with the words before it."""
    found: list[tuple[str, Cell]] = [("", cell.now)]
    while isinstance(cell, Since):
        older = cell.before
        found.append((f"before {cell.release}: ", older.now if isinstance(older, Since) else older))
        cell = older
    return found


def _text(cell: Cell) -> str:
    if isinstance(cell, Since):
        return ", ".join(words + _text(each) for words, each in _epochs(cell))
    return cell.replace("`", "") if isinstance(cell, str) else describe(outcome(cell))


def _html(cell: Cell) -> str:
    if isinstance(cell, Since):
        return "<br>".join(
            f"{_html(each)}" if not words else f'<span class="zn-note">{words}</span>{_html(each)}'
            for words, each in _epochs(cell)
        )
    if isinstance(cell, str):
        text = show.with_code(cell)
        # A narrow column would otherwise break a word such as float16.
        return f'<span class="zn-word">{text}</span>' if re.fullmatch(r"\w{1,16}", cell) else text
    return show.result(outcome(cell))
