"""The derivative of an in-place function that wrote into a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....functions.graph import can_be_read_again, function_of
from ....functions.record import FUNCTIONS, UNKNOWN, Function
from ....masks.cotangent import prefer_exact, unwrap
from ....masks.mask import Mask
from ....masks.watching import is_profiled
from ..higher import left
from .step import Owner, Results, Step

_profiler: Any = torch.autograd


class Sliced(Step):
    """The run of an in-place function's derivative, on the slice that the function wrote into.

    The node `CopySlices` does not show which function that was. PyTorch's profiler does: it records that the wrapped
    derivative begins.
    """

    def __init__(self, owner: Owner, node: Any, function: Function, masks: Sequence[Mask]) -> None:
        super().__init__(owner, node, function, masks)
        self._profiling = False
        self._found: Function | None = None

    @property
    def selects(self) -> bool:
        if self._found is None:
            self._found = self._wrapped()
        # The arguments of the function can't be seen from here, so a callable `selects` counts as False.
        return self._found.selects is True

    always_runs = True
    compares = True
    runs_one_derivative = False

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        cotangents = super().begin(arriving)
        if not is_profiled():
            config = _profiler.ProfilerConfig(
                _profiler.ProfilerState.CPU, False, False, False, False, False,
                torch._C._profiler._ExperimentalConfig(),
            )  # fmt: skip
            _profiler._enable_profiler_legacy(config)
            self._profiling = True
        return cotangents

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        self._stopped()
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

    def _wrapped(self) -> Function:
        """The record of the function whose derivative began last."""
        for event in reversed(self._stopped()):
            name = function_of(event.name())
            if event.kind() == "push" and name in FUNCTIONS and name != "CopySlices":
                return FUNCTIONS[name]
        return UNKNOWN

    def _stopped(self) -> list[Any]:
        """Stop the profiler. Returns its events; an empty list if it did not run."""
        if not self._profiling:
            return []
        self._profiling = False
        return [event for events in _profiler._disable_profiler_legacy() for event in events]
