"""The derivative of a result without elements: each element of the gradient is a sum over nothing, so it is ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..forms import not_zero, values_of
from .step import Results, Step


class OverNothing(Step):
    """The run of a derivative to which only cotangents without elements arrive. It gets plain tensors.

    It may be a user's: whatever the code does, the result did not depend on an element that it gives zero.
    """

    is_needed = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        return results, [None if value is None else not_zero(value) for value in results]


def is_over_nothing(arriving: Sequence[Any]) -> bool:
    """True if cotangents arrive at a node, and none of them has an element."""
    there = [values_of(value) for value in arriving if value is not None]
    return bool(there) and not any(value.is_nested or value.numel() for value in there)
