"""A derivative that only moves elements or adds them up: it is also applied to the mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..failures import NotFollowed
from ..forms import is_dense, values_of, with_values
from ..graph import for_each_edge, run
from ..masks import Mask, full, reduced
from .step import Results
from .transferred import Transferred


class Linear(Transferred):
    """The run of a derivative that only moves elements or adds them up. The derivative runs again on the mask."""

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
