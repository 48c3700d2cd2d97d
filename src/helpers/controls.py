"""Samples of a small computation as a table. On the site, a control replaces the table and computes more samples."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from . import show
from .entries import outcome


@dataclass(frozen=True)
class Control(show.Shown):
    """Samples of a computation, with a column for each input and result: texts, or a tensor of shape [samples]."""

    name: str
    caption: str
    columns: Mapping[str, Sequence[str] | torch.Tensor]

    def text(self) -> str:
        rows = [list(self.columns), *zip(*(self._texts(column) for column in self.columns.values()), strict=True)]
        return "\n".join([self.caption, *("  ".join(row) for row in rows)])

    def html(self) -> str:
        rows = list(zip(*(self._cells(column) for column in self.columns.values()), strict=True))
        body = show.table(html.escape(self.caption), [html.escape(head) for head in self.columns], rows)
        # The shortest texts from which a script gets exactly the same numbers.
        exact = list(zip(*(self._texts(column, None) for column in self.columns.values()), strict=True))
        samples = json.dumps([dict(zip(self.columns, row, strict=True)) for row in exact], ensure_ascii=False)
        return (
            f'<div data-control="{html.escape(self.name, quote=True)}" '
            f'data-samples="{html.escape(samples, quote=True)}">{body}</div>'
        )

    @staticmethod
    def _texts(column: Sequence[str] | torch.Tensor, digits: int | None = 7) -> list[str]:
        if isinstance(column, torch.Tensor):
            return outcome(column).texts(digits)  # type: ignore[union-attr]
        return list(column)

    @staticmethod
    def _cells(column: Sequence[str] | torch.Tensor) -> list[str]:
        if isinstance(column, torch.Tensor):
            return show.cells(outcome(column), 7)  # type: ignore[arg-type]
        return [html.escape(text) for text in column]


def control(name: str, caption: str, columns: Mapping[str, Sequence[str] | torch.Tensor]) -> None:
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
    show.show(Control(name, caption, columns))
