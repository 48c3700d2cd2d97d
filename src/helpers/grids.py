"""Tables of results: texts and outcomes, with the results of older releases, or as samples of a control."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

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


Column = Sequence[str] | Tensor


def control(name: str, caption: str, columns: Mapping[str, Column]) -> None:
    """Show samples of a small computation as a table.

    On the site, a script replaces the table by a control. Readers can change the inputs, and the browser computes the
    results by the same arithmetic. Everywhere else, readers see the table.

    Args:
        name: the name of the control in `theme/static/control.js`.
        caption: what is computed.
        columns: a column for each input and each result, by its heading. A column is a list of texts, or a tensor of
            shape [samples].

    Raises:
        ValueError: if the columns have different lengths.

    >>> import torch
    >>> x = torch.tensor([1.0, 100.0])
    >>> control("where-over-exp", "exp in float32", {"x": x, "exp(x)": x.exp()})
    exp in float32
    x  exp(x)
    1  2.718282
    100  inf
    """
    lengths = {head: len(column) for head, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"every column needs an element for each sample, but they have {lengths}")
    lines = [caption, *("  ".join(row) for row in [tuple(columns), *_rows(columns, _texts)])]
    table = show.table(html.escape(caption), [html.escape(head) for head in columns], _rows(columns, _cells))
    # The shortest texts from which a script gets exactly the same numbers.
    exact = _rows(columns, partial(_texts, digits=None))
    samples = json.dumps([dict(zip(columns, row, strict=True)) for row in exact], ensure_ascii=False)
    data = f'data-control="{html.escape(name, quote=True)}" data-samples="{html.escape(samples, quote=True)}"'
    show.show(show.Item("\n".join(lines), f"<div {data}>{table}</div>"))


def _rows(columns: Mapping[str, Column], form: Callable[[Column], list[str]]) -> list[tuple[str, ...]]:
    return list(zip(*map(form, columns.values()), strict=True))


def _texts(column: Column, digits: int | None = 7) -> list[str]:
    return outcome(column).texts(digits) if isinstance(column, Tensor) else list(column)  # type: ignore[union-attr]


def _cells(column: Column) -> list[str]:
    if isinstance(column, Tensor):
        return show.cells(outcome(column), 7)  # type: ignore[arg-type]
    return [html.escape(text) for text in column]
