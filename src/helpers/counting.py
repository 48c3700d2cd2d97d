"""The elements that a function ignores, by the definition and by `ignoring`: a row for each function and element."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.masked import MaskedTensor

from zero_or_nan import ignoring

from . import show
from .entries import outcome

Row = tuple[str, Callable[[Tensor], Tensor], str, Sequence[float], Sequence[float]]
"""A function's text, the function, a word about the last element, values, and other values for the last element."""


@dataclass(frozen=True)
class _Judged:
    """One row with its results."""

    row: Row
    changes: bool
    plain: Tensor
    ours: MaskedTensor

    @property
    def counts(self) -> bool:
        return bool(self.ours.get_mask())

    def cells(self) -> list[str]:
        name, _, special, values, others = self.row
        shown = ", ".join(outcome(torch.tensor(value)).texts(3)[0] for value in others)  # type: ignore[union-attr]
        return [
            f"<code>{html.escape(name)}</code><br>{html.escape(special)}",
            html.escape(shown),
            "changes" if self.changes else "same bits",
            show.cells(outcome(self.plain))[0],  # type: ignore[arg-type]
            show.cells(outcome(self.ours))[0],  # type: ignore[arg-type]
            "used" if self.counts else "ignored",
        ]


def _table(judged: Sequence[_Judged]) -> show.Item:
    lines = [
        f"{j.row[0]}, {j.row[2]}: {'used' if j.counts else 'ignored'}, cotangent {j.plain.item():g}" for j in judged
    ]
    head = ["Function, element", "Changed to", "Result", "PyTorch", "ignoring", "Verdict"]
    table = show.table("What counts, row by row", head, [j.cells() for j in judged])
    return show.Item("\n".join(lines), show.prose(table))


def what_counts(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Show for each function of a list whether it uses the last element of its input.

    Args:
        rows: one tuple for each function: the function as text; the function, which takes one float tensor; what is
            special about the last element; the values of the input; and other values for the last element, for which
            the function selects the same elements.

    Returns:
        Two bool tensors with an element for each row. The first says whether the function uses the last element, the
        second whether the element counts for `ignoring`. The function uses the element if another value changes the
        bits of the result, or if PyTorch gives the element a cotangent that is not 0.

    >>> relu = ("relu(y)", torch.relu, "below 0", [2.0, -1.0], [-5.0])
    >>> what_counts([relu])
    relu(y), below 0: ignored, cotangent 0
    (tensor([False]), tensor([False]))
    """
    judged = [_judge(row) for row in rows]
    show.show(_table(judged))
    return torch.tensor([j.changes or bool(j.plain != 0) for j in judged]), torch.tensor([j.counts for j in judged])


def _judge(row: Row) -> _Judged:
    _, function, _, values, others = row
    y = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    before = function(y)
    changes = False
    for other in others:
        moved = y.detach().clone()
        moved[-1] = other
        changes |= not _same(function(moved), before.detach())
    (plain,) = torch.autograd.grad(before.sum(), y, retain_graph=True)
    (ours,) = ignoring.grad(before.sum(), y, ignored="masked")
    return _Judged(row, changes, plain[-1], ours[-1])


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two results are the same by the definition: all NaNs are the same, and 0 is the same as -0."""
    nan = a.isnan() & b.isnan()
    return a.shape == b.shape and bool((nan | (a == b)).all())
