"""The place where a tensor begins or ends to be spread over several processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import distributed
from .step import Results, Step


class DTensorBoundary(Step):
    """Where a tensor begins or ends to be spread over several processes: what it does, all of them do together."""

    selects = False
    is_needed = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        return results, distributed.masks_across(self.node, arriving, self.masks)
