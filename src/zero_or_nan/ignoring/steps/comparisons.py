"""What a derivative compares while it runs, and where NaN made that meaningless."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import unwrap
from ..distributed import is_distributed
from ..masks import Mask
from ..watching import Watching


class Comparisons(Watching):  # type: ignore[no-untyped-call]
    """What a derivative compares while it runs, and where NaN made that meaningless."""

    COMPARING = frozenset(getattr(torch.ops.aten, name) for name in ("eq", "ge", "gt", "le", "lt"))
    JOINING = frozenset(getattr(torch.ops.aten, name) for name in ("logical_and", "logical_or", "logical_and_"))

    def __init__(self, first_alone: bool) -> None:
        super().__init__()
        self.places = slice(1) if first_alone else slice(2)
        self.unordered: dict[int, tuple[Tensor, Tensor]] = {}
        """By each result of a comparison, which is kept so that it is known again: where its element was NaN."""

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = op(*args, **(kwargs or {}))
        if op.overloadpacket in self.COMPARING:
            for entry in args[:2] if op.overloadpacket is torch.ops.aten.eq else args[self.places]:
                self._compared(result, entry)
        elif op.overloadpacket in self.JOINING:
            for condition in args:
                self._note(result, self.where_unordered(condition))
        return result

    def where_unordered(self, condition: Any) -> Mask:
        """Where a condition is False because an element was NaN; None where it never is."""
        found = self.unordered.get(id(condition))
        return None if found is None else found[1]

    def _compared(self, result: Tensor, entry: Any) -> None:
        if isinstance(entry, Tensor) and entry.is_floating_point() and not is_distributed(entry):
            nan = unwrap(entry).isnan()
            if bool(nan.any()):
                self._note(result, nan.expand(result.shape))

    def _note(self, result: Tensor, unordered: Mask) -> None:
        if unordered is not None:
            before = self.where_unordered(result)
            self.unordered[id(result)] = result, unordered if before is None else before | unordered
