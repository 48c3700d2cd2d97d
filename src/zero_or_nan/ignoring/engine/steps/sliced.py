"""The derivative of an in-place function that wrote into a slice."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....functions.graph import can_be_read_again, function_of
from ....functions.record import FUNCTIONS, UNKNOWN, Function
from ....masks.cotangent import Cotangent, mask_of, prefer_exact, unwrap, written_mask
from ....masks.mask import Mask, everywhere, full, laid_out
from ....masks.watching import Comparisons, is_profiled
from ..higher import in_forward_mode, left
from .step import Results, Step

_profiler: Any = torch.autograd
_CONFIG: Any = _profiler.ProfilerConfig(
    _profiler.ProfilerState.CPU, False, False, False, False, False, torch._C._profiler._ExperimentalConfig()
)

_CLONE = torch.ops.aten.clone.default
_OWN = frozenset(getattr(torch.ops.aten, name).default for name in ("as_strided", "copy_", "new_empty_strided"))
"""The operators of the node's own code, from the copy of the gradient to the slice."""


class _Wrapped(Comparisons):  # type: ignore[no-untyped-call]
    """Watches the derivative that a node `CopySlices` wraps, and finds out of which function it is.

    The node does not show this. PyTorch's profiler does: it records that the wrapped derivative begins, and runs from
    the operator before that derivative, which clones the slice, to its first operator.

    The node's own code copies the whole gradient, takes the slice, and writes the wrapped derivative's result into it.
    If nothing is recorded, this code gets plain tensors, and only the wrapped derivative gets a cotangent: a program
    may have hundreds of slices.

    Attributes:
        step: the run of the node, if its own code gets plain tensors.
        whole: the node's copy of the whole gradient, and then its first result. A cotangent if its code gets one.
        mask: the mask of this copy.
    """

    _found = UNKNOWN
    _is_profiling = False
    step: Step | None = None
    whole: Tensor | None = None
    mask: Mask = None
    _slice: Tensor | None = None

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_own = self.step is not None and self._slice is None
        if is_own and op in _OWN:
            result = op(*args, **(kwargs or {}))
            self.whole = result if self.whole is None else self.whole
            return result
        self.function()
        if self._slice is not None and args[0] is self._slice:
            return self._write(op, *args)
        if is_own and op is not _CLONE:
            # A view that `as_strided` can't make, such as the complex view of a real tensor.
            assert self.whole is not None
            self.whole, self.step, is_own = Cotangent(self.whole, self.mask, self.step), None, False
            part = args[0]
            args = (self.whole.as_strided(part.size(), part.stride(), part.storage_offset()), *args[1:])
        if self._found.compares:
            return super().__torch_dispatch__(op, types, args, kwargs)
        if self._slice is not None and type(args[0]) is Cotangent:  # in fewer calls than by way of PyTorch
            return Cotangent.handler(op, args, kwargs or {})
        result = op(*args, **(kwargs or {}))
        if is_own and op is _CLONE:
            result = self._cloned(args[0], result)
        if op is _CLONE and self._found is UNKNOWN and not is_profiled():
            _profiler._enable_profiler_legacy(_CONFIG)
            self._is_profiling = True
            weakref.finalize(result, self.function)  # if the wrapped derivative fails, no hook of ours runs
        return result

    def _cloned(self, part: Tensor, clone: Tensor) -> Cotangent:
        """What the wrapped derivative gets: the slice, with its part of the mask."""
        assert self.whole is not None
        mask = self.mask
        if mask is not None:
            self.mask = laid_out(mask, self.whole)
            mask = self._place(part).clone()  # below, the mask is written into
        self._slice = part
        return Cotangent(clone, mask, self.step)

    def _write(self, op: Any, part: Tensor, result: Any, *args: Any) -> Tensor:
        """Write the result of the wrapped derivative into the slice, and its mask into the mask."""
        assert self.whole is not None
        inner = result.mask if type(result) is Cotangent else written_mask(result, Cotangent(part, None, self.step))
        if self.mask is None and inner is not None:
            self.mask = laid_out(everywhere(True, self.whole), self.whole)
        if self.mask is not None:
            self._place(part).copy_(full(inner, part))
        return op(part, unwrap(result), *args)  # type: ignore[no-any-return]

    def _place(self, part: Tensor) -> Tensor:
        """The part of the mask that belongs to a part of the whole gradient."""
        assert self.mask is not None
        return self.mask.as_strided(part.size(), part.stride(), part.storage_offset())

    def forget(self) -> None:
        """Free the tensors. Otherwise they and the step keep each other alive until the garbage collector runs."""
        self.step = self.whole = self.mask = self._slice = None

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

    def cotangent(self, value: Any, mask: Mask) -> Any:
        is_plain = type(value) is Tensor and value.is_floating_point() and not value.is_neg()
        if not is_plain or torch.is_grad_enabled() or in_forward_mode():
            return super().cotangent(value, mask)
        self._comparisons.step, self._comparisons.mask = self, mask
        return value

    def _mask_of(self, result: Any) -> Mask:
        watch = self._comparisons
        if result is None or unwrap(watch.whole) is not result:
            return super()._mask_of(result)
        return watch.mask if watch.step is not None else mask_of(watch.whole)

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        ended, masks = super().end(results, arriving)
        self._comparisons.forget()
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
