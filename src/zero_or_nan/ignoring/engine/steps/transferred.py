"""Derivatives that plain PyTorch runs. Afterwards, a step finds the masks of the results, and may repair the results.

Benefits: the derivative costs what it costs in PyTorch, and one hook after the node is enough. Downside: the step has
to know by itself what the derivative does to ignored elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ....functions.graph import for_each_edge, run
from ....functions.record import Function
from ....masks.cotangent import NotFollowed
from ....masks.mask import Mask, full, reduced
from ....masks.numbers import is_dense, not_zero, values_of, with_values
from .step import Owner, Results, Step


class Transferred(Step):
    """The part of a run that follows the derivative. `end` gets the plain cotangents and the plain results."""

    on_cotangents = False
    runs_one_derivative = False

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    @classmethod
    def after(
        cls,
        owner: Owner,
        node: Any,
        function: Function,
        arriving: Sequence[Any],
        masks: Sequence[Mask],
        results: Sequence[Any],
        wanted: Sequence[Any],
    ) -> Results:
        """The results and their masks, by a step that begins and ends now. The arguments are as in `Transfer.after`."""
        if owner.count is not None:
            owner.count.see(node, masks)
        return cls(owner, node, function, masks).end(results, arriving)


class Linear(Transferred):
    """The run of a derivative that only moves elements or adds them up. The derivative runs again on the mask."""

    runs_one_derivative = True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        if any(isinstance(value, Tensor) and value.is_nested and is_dense(value) for value in results):
            self.owner.failed("a nested tensor", NotFollowed("a tensor that can't carry a mask"), suspected=True)
            return results, [None] * len(results)
        given = [None if v is None else _as_values(v, mask) for v, mask in zip(arriving, self.masks, strict=True)]
        return results, [
            None if value is None or mask is None else reduced(values_of(mask), values_of(value).shape)
            for value, mask in zip(results, for_each_edge(self.node, run(self.node, *given)), strict=True)
        ]


def _as_values(like: Any, mask: Mask) -> Any:
    """The mask in the form of a cotangent, so that the derivative can run on it."""
    return with_values(like, full(mask, values_of(like)))


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
