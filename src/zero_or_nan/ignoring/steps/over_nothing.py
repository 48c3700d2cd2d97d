"""The derivative of a result without elements: each element of the gradient is a sum over nothing, so it is ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..forms import not_zero, values_of
from .step import Results
from .transferred import Transferred


class OverNothing(Transferred):
    """The run of a derivative to which only cotangents without elements arrive. It gets plain tensors.

    If the derivative is a user's, it does not matter what it computes: a result without elements depends on no element.
    """

    always_runs = True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        return results, [None if value is None else not_zero(value) for value in results]


def is_over_nothing(arriving: Sequence[Any]) -> bool:
    """True if cotangents arrive at a node, and none of them has an element."""
    there = [values_of(value) for value in arriving if value is not None]
    return bool(there) and not any(value.is_nested or value.numel() for value in there)
