"""The derivative of a function that wrote into a slice of its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..cotangent import prefer_exact, unwrap
from ..graph import can_be_read_again, function_of
from ..masks import Mask
from ..registry import FUNCTIONS, UNKNOWN, Function
from .step import Owner, Results, Step

_profiler: Any = torch.autograd


class Sliced(Step):
    """The run of an in-place function's derivative on the slice that it wrote to.

    `CopySlices` hides which function that was. PyTorch's profiler tells: it sees the wrapped derivative begin.
    """

    def __init__(self, owner: Owner, node: Any, function: Function, masks: Sequence[Mask]) -> None:
        super().__init__(owner, node, function, masks)
        self._profiling = False
        self._found: Function | None = None

    @property
    def selects(self) -> bool:
        if self._found is None:
            self._found = self._wrapped()
        # How the function was called is not to be seen from here.
        return self._found.selects is True

    is_needed = True
    compares = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        cotangents = super().begin(arriving)
        if not _profiler._profiler_enabled():
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
        # For a subclass PyTorch sums up the gradient of a number that was written in another order.
        numbers = [i for i, value in enumerate(values) if i and value is not None and not value.dim()]
        if numbers and can_be_read_again(self.node, unknown=False):
            exact = self.node(*unwrap(arriving))
            for i in numbers:
                if not exact[i].dim():  # broadcast, the engine sums it up as ours was
                    values[i] = unwrap(prefer_exact(exact[i], values[i]))
        return values, masks

    def _wrapped(self) -> Function:
        """The record of the function whose derivative began last."""
        for event in reversed(self._stopped()):
            name = function_of(event.name())
            if event.kind() == "push" and name in FUNCTIONS and name != "CopySlices":
                return FUNCTIONS[name]
        return UNKNOWN

    def _stopped(self) -> list[Any]:
        """What the profiler saw on this thread."""
        if not self._profiling:
            return []
        self._profiling = False
        return [event for events in _profiler._disable_profiler_legacy() for event in events]
