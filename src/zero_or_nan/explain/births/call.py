"""A call of a function by the user's code, which can run again on copies of its operands."""

from __future__ import annotations

import inspect
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


class Arranged(NamedTuple):
    """The arguments of a call.

    Attributes:
        operands: in the order in which an operator has them.
        options: the others, by name.
        unusual: the names of the options that do not have their default.
    """

    operands: list[Any]
    options: dict[str, Any]
    unusual: set[str]


def arranged(call: Call) -> Arranged:
    """The arguments of a call, by the signature of its function, if that has one in Python."""
    try:
        parameters = inspect.signature(call.func).parameters
        given = inspect.signature(call.func).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return Arranged(in_order(call), dict(call.kwargs), {key for key, each in call.kwargs.items() if each})
    optional = {key: each.default for key, each in parameters.items() if each.default is not each.empty}
    operands = [each for key, each in given.items() if key not in optional]
    options = {key: given.get(key, default) for key, default in optional.items() if key != "_stacklevel"}
    unusual = {key for key, each in options.items() if isinstance(each, Tensor) or each != optional[key]}
    return Arranged(in_order(call._replace(args=tuple(operands))), options, unusual)
