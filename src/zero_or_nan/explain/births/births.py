"""The descriptions of births: which call, which elements, made of which numbers."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from ..program.places import optimizer_here
from ..program.tensors import any_of, first_entries, first_stored, is_sparse, not_finite, numbers_of
from .arithmetic import Born, is_nan, number
from .calls import Call, Change
from .provenance import Birth
from .underflow import UNDERFLOWED, after_underflow

UNREADABLE = ", which explain can't read"
"""How the text ends of what came out of such a tensor."""


def describe(
    nature: Any, call: Call, whole: Tensor, entries: Tensor, operands: str, phase: Any = "forward", **more: Any
) -> Birth:
    """A birth in some elements of a tensor."""
    where = first_stored(whole, entries) if is_sparse(whole) else None
    shape = entries.shape if where is None else whole.shape
    where = first_entries(entries) if where is None else where
    count, kind = int(entries.sum()), (tuple(shape), whole.dtype, whole.device)
    here = numbers_of(whole)
    is_nan = here is not None and here.shape == entries.shape and not bool((entries & ~here.isnan()).any())
    return Birth(nature, phase, call.name, call.place, where, count, *kind, operands, is_nan=is_nan, **more)


def come_in(tensor: Tensor, here: Tensor, call: Call) -> Birth:
    """The birth of a tensor that is not finite, and that nothing in the block made."""
    bad = not_finite(here)
    first = here[bad][0].item()
    infinite = first if isinstance(first, float) and bool((here[bad] == first).all()) else 0.0
    base = None if tensor._base is None else weakref.ref(tensor._base)
    return describe("given", call, tensor, bad, number(first), infinite=infinite, tensor=weakref.ref(tensor), base=base)


def come_out(tensor: Tensor, bad: Tensor, call: Call, layout: str) -> Birth:
    """The birth of what a call took out of a tensor whose numbers cannot be read."""
    text = f"{number(tensor[bad][0].item())} out of a tensor of layout {layout}{UNREADABLE}"
    return describe("given", call, tensor, bad, text)


def held_before(grad: Tensor, here: Tensor, call: Call) -> Birth:
    """The birth of a `.grad` that is not finite before a pass adds to it."""
    bad = not_finite(here)
    text = f"{number(here[bad][0].item())} in .grad before this pass"
    return describe("given", call, grad, bad, text, held=True)


def newborn(call: Call, result: Tensor, entries: Tensor, at: int, change: Change) -> Birth:
    """The birth of elements that a call made, or that its arguments write down.

    Args:
        call: the call.
        result: one of its results.
        entries: the elements of the result.
        at: the position of the result among the results.
        change: puts finite numbers in place of the operands' NaN and infinities that the elements were not made of.
    """
    written = call.infinite_number()
    here = numbers_of(result)
    if written is not None and is_nan(written):
        return describe("given", call, result, entries, str(written))
    if written is not None and not (here is not None and bool((here.isnan() & entries).any())):
        return describe("meant", call, result, entries, str(written), infinite=written)
    born = call.first_born(entries, change)
    too_large = _only_too_large(call, entries, at, born, result, change)
    text = born.text if born is not None else ""
    if call.name in ("div", "log") and not too_large and any(map(after_underflow, call.tensors()[-1:])):
        text += UNDERFLOWED
    of_large = born is not None and born.of_large
    optimizer = optimizer_here()
    if optimizer:
        text = text.removeprefix("1 + ")  # 1 in place of the parameter, of which there is no copy from before
    more = {"too_large": too_large, "of_large": of_large, "optimizer": optimizer}
    return describe("made", call, result, entries, text, **more)


def _only_too_large(call: Call, entries: Tensor, at: int, born: Born | None, result: Tensor, change: Change) -> bool:
    """Whether the true value is a number that the dtype has no room for."""
    if born is not None and is_nan(born.result) and not born.of_large:
        return False
    try:
        wider = call.results(lambda tensor: _in_double(change(tensor)))[at]
    except Exception:
        wider = None
    if wider is not None and wider.shape == entries.shape and wider.dtype != result.dtype:
        has_room = any_of(entries & ~not_finite(wider))
        if has_room:
            return True
    return born is not None and not born.is_pole


def _in_double(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
