"""Samples of a small computation as a table. On the site, a control replaces the table and computes more samples."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from . import show
from .entries import outcome

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
