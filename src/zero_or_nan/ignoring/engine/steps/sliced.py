"""The derivative of an in-place function that wrote into a slice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....functions.graph import can_be_read_again, function_of
from ....functions.record import FUNCTIONS, UNKNOWN, Function
from ....masks.cotangent import prefer_exact, unwrap
from ....masks.watching import Comparisons, is_profiled
from ..higher import left
from .step import Results, Step

_profiler: Any = torch.autograd
_CONFIG: Any = _profiler.ProfilerConfig(
    _profiler.ProfilerState.CPU, False, False, False, False, False, torch._C._profiler._ExperimentalConfig()
)

_CLONE = torch.ops.aten.clone.default


class _Call:
    """Calls a function when the object that it is an attribute of is freed."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __del__(self) -> None:
        self._function()


class _Wrapped(Comparisons):  # type: ignore[no-untyped-call]
    """Watches the derivative that a node `CopySlices` wraps, and finds out of which function it is.

    The node does not show this. PyTorch's profiler does: it records that the wrapped derivative begins, and runs from
    the operator before that derivative, which clones the slice, to its first operator.

    The node's own code copies the whole gradient, takes the slice, and writes the wrapped derivative's result into it.
    """

    _found = UNKNOWN
    _is_profiling = False

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.function()
        if self._found.compares:
            return super().__torch_dispatch__(op, types, args, kwargs)
        result = op(*args, **(kwargs or {}))
        if op is _CLONE and self._found is UNKNOWN and not is_profiled():
            _profiler._enable_profiler_legacy(_CONFIG)
            self._is_profiling = True
            result.freed = _Call(self.function)  # if the wrapped derivative fails, no hook of ours runs
        return result

    def stop(self) -> None:
        self.function()
        super().stop()

    def function(self) -> Function:
        """The record of the function whose derivative began last."""
        if self._is_profiling:
            self._is_profiling = False
            for event in itertools.chain(*_profiler._disable_profiler_legacy()):
                if event.kind() == "push":
                    self._found = FUNCTIONS.get(function_of(event.name()), self._found)
        return self._found


class Sliced(Step):
    """The run of an in-place function's derivative, on the slice that the function wrote into."""

    always_runs = True
    compares = True
    comparing = _Wrapped
    runs_one_derivative = False
    _comparisons: _Wrapped

    @property
    def selects(self) -> bool:
        # The arguments of the function can't be seen from here, so a callable `selects` counts as False.
        return self._comparisons.function().selects is True

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        ended, masks = super().end(results, arriving)
        values = list(ended)
        # If a number was written, its gradient is a sum, which PyTorch adds up in another order for a tensor subclass.
        numbers = [i for i, value in enumerate(values) if i and value is not None and not value.dim()]
        if numbers and can_be_read_again(self.node, unknown=False):
            with torch.no_grad():
                exact = self.node(*unwrap(arriving))
            for i in numbers:
                if not exact[i].dim():  # if it is broadcast, the engine sums it up, as it did for the masked result
                    (values[i],) = left(results[i : i + 1], [unwrap(prefer_exact(exact[i], results[i]))])
        return values, masks
