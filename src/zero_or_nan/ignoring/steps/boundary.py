"""A node that makes a DTensor of a plain tensor, or the reverse, or that changes placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import distributed
from .step import Results, Step


class DTensorBoundary(Step):
    """The run of a derivative in which all processes take part: it also runs on the masks, on all of them together."""

    selects = False
    is_needed = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        return results, distributed.masks_across(self.node, arriving, self.masks)
