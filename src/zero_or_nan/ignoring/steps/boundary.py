"""A node that makes a DTensor of a plain tensor, or the reverse, or that changes placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import distributed
from .step import Results
from .transferred import Transferred


class DTensorBoundary(Transferred):
    """The run of a derivative in which all processes take part: it also runs on the masks, on all of them together."""

    selects = False
    always_runs = True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        return results, distributed.masks_across(self.node, arriving, self.masks)
