"""A call of a function by the user's code, which can run again on copies of its operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from ..program.code import Place
from ..program.tensors import each_in, numbers_of, on_copies, rerun, tensors_in

Change = Callable[[Tensor], Tensor]


class Call(NamedTuple):
    """A call of a function by the user's code."""

    func: Any
    name: str
    place: Place
    args: Any = ()
    kwargs: Any = MappingProxyType({})

    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return list(tensors_in((self.args, self.kwargs)))

    def infinite_number(self) -> float | None:
        """The first argument, not in a tensor, that is a NaN or an infinity."""
        return next((number for number in each_in((self.args, self.kwargs), float) if not math.isfinite(number)), None)

    def results(self, change: Change | None = None) -> list[Tensor | None]:
        """The results of running it again on copies, changed first."""
        args = on_copies(self.args, change)
        with rerun():
            result = self.func(*args, **on_copies(self.kwargs, change))
        return [numbers_of(tensor) for tensor in tensors_in(args[:1] if result is None else result)]

    def result(self, at: int, like: Tensor, change: Change | None = None) -> Tensor | None:
        """One of these results, or None if it cannot run again or gives another shape."""
        try:
            alone = self.results(change)[at]
        except Exception:
            return None
        return alone if alone is not None and alone.shape == like.shape else None


def in_order(call: Call) -> list[Any]:
    """The arguments of a call in the order in which an operator has its operands: `1 - x` is a call with x first."""
    name = getattr(call.func, "__name__", "")
    is_reversed = name == "rsub" or name.startswith("__r") and name not in ("__repr__", "__round__")
    return [*call.args[1::-1], *call.args[2:]] if is_reversed else list(call.args)
