"""The results of compiled code, with elements of another run in place of those that are not finite.

Each result is merged as soon as the other run has it, in place if possible: then it takes no further memory. A result
is worked on piece by piece, because to check the whole would take several times its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ....masks.cotangent import can_carry
from ....masks.mask import everywhere, extent
from ....masks.numbers import is_number

CHUNK = 1 << 16
"""The number of elements that are merged at a time, so that they stay in the processor's cache."""


class Merging:
    """Merges the results of compiled code with those of another run.

    Args:
        exact: the results of the compiled code.
        others: what else is in memory, and may be a result, too.
    """

    def __init__(self, exact: Sequence[Any], others: Iterable[Any]) -> None:
        self._owners = Counter(_memory_of(thing) for thing in (*exact, *others) if can_carry(thing))
        self._replaced: list[tuple[Tensor, Tensor]] = []
        """The pieces of results that were written into, each with the places where it was NaN."""

    def merged(self, exact: Tensor, followed: Tensor) -> Tensor:
        """A result, with the elements of the other run, of the same shape, in place of those that are not finite."""
        if is_number(exact.sum()):
            return exact
        if not self._may_be_written(exact):
            has_room = extent(exact) >= exact.numel()
            merged = exact.new_empty_strided(exact.shape, exact.stride()) if has_room else torch.empty_like(exact)
            for into, piece, other in pieces(merged, exact, followed):
                into.copy_(torch.where(piece.isfinite(), piece, other))
            return merged
        for piece, other in pieces(exact, followed):
            nan = piece.isnan()
            if bool(nan.all()):
                nan = everywhere(True, nan)
                piece.copy_(other)
            else:
                piece.copy_(torch.where(nan, other, piece))
            self._replaced.append((piece, nan))
        return exact

    def undo(self) -> None:
        """Write NaN where it was. No other element was written over."""
        for piece, nan in self._replaced:
            piece.masked_fill_(nan, torch.nan)

    def _may_be_written(self, exact: Tensor) -> bool:
        """True if nothing else has this memory, and only NaN is written over, so that it can be undone."""
        return (
            self._owners[_memory_of(exact)] == 1
            and torch.ops.aten.is_non_overlapping_and_dense(exact)
            and not any(bool(piece.isinf().any()) for (piece,) in pieces(exact))
        )


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, cut along the dimension in which the memory of the first is longest."""
    first = tensors[0]
    if first.numel() <= CHUNK:
        return iter([tensors])
    dim = max(range(first.dim()), key=first.stride)
    length = max(1, CHUNK * first.shape[dim] // first.numel())
    return zip(*(torch.split(tensor, length, dim) for tensor in tensors), strict=True)
