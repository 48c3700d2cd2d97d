"""Derivatives that plain PyTorch runs. Afterwards, a step finds the masks of the results, and may repair the results.

Benefits: the derivative costs what it costs in PyTorch, and one hook after the node is enough. Downside: the step has
to know by itself what the derivative does to ignored elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..masks import Mask
from ..registry import Function
from .step import Owner, Results, Step


class Transferred(Step):
    """The part of a run that follows the derivative. `end` gets the plain cotangents and the plain results."""

    on_cotangents = False

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
