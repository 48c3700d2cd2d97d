"""A derivative in Python that has a record: it consists of PyTorch's operators alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..cotangent import Cotangent, can_carry
from ..failures import NotFollowed
from ..forms import not_zero
from .step import Results, Step, name_of


class Traced(Step):
    """The run of a derivative in Python. Its record says that it consists of PyTorch's operators alone."""

    is_anothers = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        if any(value is None for value in arriving):
            self.node.apply = self._apply  # the engine makes up zeros for None, after its hooks have run
        return super().begin(arriving)

    def _apply(self, *cotangents: Any) -> Any:
        """Run the derivative. A cotangent that did not arrive is replaced by zeros that are ignored."""
        self.abandon()
        return self.node.apply(
            *(self.all_ignored(i) if type(value) is Tensor else value for i, value in enumerate(cotangents))
        )

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        self.abandon()
        not_cotangents = [r for r in results if isinstance(r, Tensor) and type(r) is not Cotangent and can_carry(r)]
        if not_cotangents and any(mask is not None and not bool(mask.all()) for mask in self.masks):
            error = NotFollowed("a result of its backward is no Cotangent: it was made without operators")
            self.owner.failed(name_of(self.node), error, suspected=True)
        values, masks = super().end(results, arriving)
        # A write without an operator, into the memory of a Cotangent, is not in the mask: count what is not 0.
        return values, [
            mask if mask is None or value is None else mask | not_zero(value)
            for value, mask in zip(values, masks, strict=True)
        ]

    def abandon(self) -> None:
        vars(self.node).pop("apply", None)
