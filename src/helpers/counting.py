"""The elements that a function ignores, by the definition and by `ignoring`: a row for each function and element."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zero_or_nan import ignoring

from . import show
from .entries import outcome

Row = tuple[str, Callable[[Tensor], Tensor], str, Sequence[float], Sequence[float]]
"""A function's text, the function, a word about the last element, values, and other values for the last element."""


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
    lines, cells, uses, marks = [], [], [], []
    for name, function, special, values, others in rows:
        y = torch.tensor(values, dtype=torch.float32, requires_grad=True)
        before = function(y)
        changes = not all(_same(function(_with_last(y, other)), before) for other in others)
        (plain,) = torch.autograd.grad(before.sum(), y, retain_graph=True)
        (ours,) = ignoring.grad(before.sum(), y, ignored="masked")
        counts = bool(ours[-1].get_mask())
        uses.append(changes or bool(plain[-1] != 0))
        marks.append(counts)
        word = "used" if counts else "ignored"
        lines.append(f"{name}, {special}: {word}, cotangent {plain[-1].item():g}")
        shown = ", ".join(outcome(torch.tensor(value)).texts(3)[0] for value in others)  # type: ignore[union-attr]
        cotangent = show.cells(outcome(plain[-1]))[0]  # type: ignore[arg-type]
        cells.append([f"{show.code(name)}<br>{html.escape(special)}", html.escape(shown), cotangent, word])
    head = ["Function, and its second element", "Replaced by", "PyTorch's gradient", "Verdict"]
    show.show(show.Item("\n".join(lines), show.prose(show.table("What counts, row by row", head, cells))))
    return torch.tensor(uses), torch.tensor(marks)


def _with_last(y: Tensor, value: float) -> Tensor:
    moved = y.detach().clone()
    moved[-1] = value
    return moved


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two results are the same by the definition: all NaNs are the same, and 0 is the same as -0."""
    nan = a.isnan() & b.isnan()
    return a.shape == b.shape and bool((nan | (a == b)).all())
