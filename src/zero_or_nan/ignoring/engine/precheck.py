"""Checks before the pass whether plain backward is safe on a graph, by the tensors that the graph saved.

0 times a finite number is 0. If every number that backward multiplies by is finite, an ignored element stays 0. Plain
PyTorch's gradient is then right, and the masked pass would give the same bits. `is_safe` checks the saved tensors and
the scalars of each node. It errs on one side only: a node without a record, a number outside of the bounds, or memory
that is not there yet counts as unsafe.

Benefit: on clean data, one scan of the saved tensors is all that `ignoring` costs, and the gradient is plain PyTorch's.
Downside: the conditions are sufficient, but not necessary. If backward never multiplies a large number by an ignored
element, the masked pass is not needed. It then costs time, but it changes no finite bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ...functions.conditions import AWAY_FROM_ZERO, FINITE, MODERATE, Condition, bound
from ...functions.record import Checks, Saved
from ...masks.mask import extent
from ...masks.numbers import all_finite, form_of, is_sparse, is_wrapped, joined, stored
from ...masks.watching import modes_on, operators_unseen, set_recording
from .plan import classify, known

WORTH_REMEMBERING = 10_000
"""From this number of elements on, it pays to remember the result of a check."""

SMALL = 5000
"""Up to this number of elements, it pays to copy tensors and check them together."""

ROOM = 1 << 18
"""The largest number of elements that are copied to be checked together: a megabyte of float32."""

_DENSE = (Tensor, Parameter)
_UNKNOWN = object()

_Measured = tuple[tuple[Tensor, ...], Condition, torch.dtype]


class _Precheck:
    """One check of the nodes of a graph.

    Attributes:
        refused: the unsafe nodes that are known so far.
        seen: the results for large tensors. Several nodes may save the same tensor: a relu's result is the next
            layer's input.
        elsewhere: measures of tensors on another device, with their nodes. They are fetched at the end, together.
        small: for each condition and dtype, nodes with a small tensor. The tensors are checked together.
    """

    def __init__(self) -> None:
        self.refused: list[Any] = []
        self.seen: dict[tuple[Any, ...], bool | _Measured] = {}
        self.elsewhere: list[tuple[Any, _Measured]] = []
        self.small: dict[tuple[Condition, torch.dtype], list[tuple[Any, Tensor]]] = {}

    def check(self, nodes: list[Any], checks: Checks | None) -> None:
        """Check nodes of one kind."""
        if checks is None:
            self.refused += nodes
            return
        function, places, scalars = checks
        if function.only_if is not None:
            self.refused += [node for node in nodes if not function.only_if(node)]
        for scalar in scalars:
            for node in nodes:
                number = scalar(node)
                if number != 1 and number is not None and not _is_moderate(number, node):
                    self.refused.append(node)
        for place in places:
            self._check_each(nodes, place)

    def _check_each(self, nodes: list[Any], place: Saved) -> None:
        """Check nodes one by one. Small tensors are only collected, to be checked together."""
        _, unpack_hook, saved, condition = place
        for node in nodes:
            try:
                tensor: Any = saved(node) if unpack_hook(node) is None else None
                facts = _facts(tensor)
                if (
                    (facts in _USUAL or facts in _NUMBERS and not tensor.dim())
                    and 0 < tensor.numel() <= SMALL
                    and tensor.untyped_storage().data_ptr()
                ):
                    small = self.small.setdefault((condition, tensor.dtype), [])
                    small.append((node, tensor))
                    if len(small) > ROOM // SMALL:
                        self._check_small(condition, small)
                    continue
            except (AttributeError, RuntimeError):  # several tensors, None, or a freed tensor
                pass
            if not self._accepts(node, place):
                self.refused.append(node)

    def _accepts(self, node: Any, place: Saved) -> bool:
        """True if the tensors in one place of a node meet its condition. Another device's measures are not awaited."""
        try:
            packed = place.packed(node)
            parts = packed if type(packed) is tuple else (packed,)
            # Reading a saved tensor may run a hook, which could recompute it. Older releases can't tell.
            if not all(getattr(part, "unpack_hook", _UNKNOWN) is None for part in parts):
                return False
            saved = place.saved(node)
        except RuntimeError:  # freed, or changed in place: backward itself will raise if it gets there
            return False
        tensors = saved if type(saved) is tuple else (saved,)
        return all(tensor is None or self._accepts_tensor(node, tensor, place.condition) for tensor in tensors)

    def _accepts_tensor(self, node: Any, saved: Any, condition: Condition) -> bool:
        """The same for one tensor."""
        tensor = _numbers_here(saved)
        if tensor is None:
            return False
        entries = tensor.numel()
        if not entries:
            return True
        if tensor.layout is not torch.strided or not _in_memory(tensor) or tensor.is_complex():
            return False
        if tensor.dtype is torch.bool and condition is not AWAY_FROM_ZERO:
            return True
        key = found = None
        if entries > WORTH_REMEMBERING:  # a smaller tensor is measured faster than remembered
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), condition)
            found = self.seen.get(key)
        if found is None:
            found = _measured(tensor, condition)
            if key is not None:
                self.seen[key] = found
        if type(found) is not bool:
            self.elsewhere.append((node, found))
            return True
        return found

    def finish(self) -> None:
        """Check the small tensors, and fetch the measures from other devices."""
        for (condition, _), small in self.small.items():
            if small:
                self._check_small(condition, small)
        if self.elsewhere:
            self._check_elsewhere()

    def _check_small(self, condition: Condition, small: list[tuple[Any, Tensor]]) -> None:
        """Check small tensors together: most of the time goes into calling PyTorch."""
        together = joined([tensor for _, tensor in small])
        if not _accepted_here(together.to(torch.float32), condition):  # a number becomes a factor
            for node, tensor in small:
                if not _accepted_here(tensor.to(torch.float32), condition):
                    self.refused.append(node)
        small.clear()

    def _check_elsewhere(self) -> None:
        """Fetch all measures of a device and a dtype at once: one wait in place of hundreds."""
        together: dict[tuple[Any, ...], list[Tensor]] = {}
        for _, (measures, _, _) in self.elsewhere:
            for measure in measures:
                together.setdefault((measure.device, measure.dtype), []).append(measure)
        numbers = {kind: iter(torch.stack(alike).tolist()) for kind, alike in together.items()}
        self.refused += [
            node
            for node, (measures, condition, dtype) in self.elsewhere
            if not condition.accepts(dtype, *(next(numbers[each.device, each.dtype]) for each in measures))
        ]


def is_safe(nodes: Iterable[Any], unsafe: list[Any] | None = None) -> bool:
    """True if every ignored element that arrives at these nodes leaves them as 0.

    Args:
        nodes: the nodes to check.
        unsafe: a list to which all nodes are added that may turn an ignored element into another number than 0. If it
            is None, the check ends at the first kind of node that has one.
    """
    by_kind: dict[type, list[Any]] = {}
    for node in nodes:
        node_type = type(node)
        if node_type in by_kind:
            by_kind[node_type].append(node)
        else:
            by_kind[node_type] = [node]
    checking = _Precheck()
    recording = torch.is_grad_enabled()
    # In a mode of dispatch, a number that PyTorch has saved would become a Python number.
    unseen = operators_unseen() if modes_on() else None
    try:
        set_recording(False)  # within, because Ctrl-C may come between any two lines
        for node_type, alike in by_kind.items():
            found = known(node_type)
            if found is None:
                for node in alike:
                    checking.check([node], classify(node).checks)
            elif found.needs_check:
                checking.check(alike, found.checks)
            if checking.refused and unsafe is None:
                return False
        checking.finish()
    finally:
        set_recording(recording)
        del unseen
    if unsafe is not None:
        unsafe += checking.refused
    return not checking.refused


def _numbers_here(saved: Any) -> Tensor | None:
    """The dense tensor that has the numbers of a saved tensor on this process; None if there is none."""
    if type(saved) not in _DENSE:
        saved = form_of(saved).here(saved)
        if saved is None or type(saved) not in _DENSE:
            return None
    return stored(saved) if is_sparse(saved) else saved


def _measured(tensor: Tensor, condition: Condition) -> bool | _Measured:
    """Whether a tensor meets a condition. If the tensor is on another device: the measures, which are not awaited."""
    if tensor.dtype is not torch.float32:
        tensor = _as_factor(tensor, condition)
    if tensor.is_cpu:
        return _accepted_here(tensor, condition)
    tensor = _in_memory_order(tensor)
    return condition.measure(tensor), condition, tensor.dtype


_facts = attrgetter("__class__", "dtype", "is_cpu", "is_nested")
_USUAL = {(kind, torch.float32, True, False) for kind in _DENSE}
"""The facts of a tensor that can be checked together with others."""
_NUMBERS = {(Tensor, torch.float64, True, False)}
"""The facts of Python's numbers, as PyTorch saves them."""


def _accepted_here(tensor: Tensor, condition: Condition) -> bool:
    """True if a tensor in this processor's memory meets a condition."""
    if condition is FINITE and tensor.dtype is torch.float32:
        return all_finite(tensor)
    tensor = _in_memory_order(tensor)
    if condition is MODERATE and tensor.is_contiguous() and tensor.dtype in (torch.float32, torch.float64):
        entries = tensor.view(-1)
        squares = torch.dot(entries, entries).item()  # takes half the time of the extremes
        if squares <= bound(tensor.dtype) ** 2:
            return True
        if squares - squares != 0:  # not finite: the squares of moderate numbers have a finite sum
            return False
    return condition.accepts(tensor.dtype, *[measure.item() for measure in condition.measure(tensor)])


def _is_moderate(number: Any, node: Any) -> bool:
    """True if a number that a derivative multiplies by is moderate in the derivative's dtype."""
    dtype = node._input_metadata[0].dtype
    return dtype.is_floating_point and bool(abs(number) <= bound(dtype))


def _in_memory(tensor: Tensor) -> bool:
    """True if the numbers are in memory. A sharded parameter's memory is freed until a hook gathers it again."""
    if tensor.is_nested or tensor.is_meta or tensor._is_zerotensor() or is_wrapped(tensor):
        return False
    if tensor.is_contiguous() and not tensor.storage_offset():  # as most are: the quickest answer
        return tensor.untyped_storage().nbytes() >= tensor.nbytes
    last = tensor.storage_offset() + extent(tensor)
    return tensor.untyped_storage().nbytes() >= last * tensor.element_size()


def _as_factor(tensor: Tensor, condition: Condition) -> Tensor:
    """The tensor in the narrowest dtype in which it may be multiplied, where it overflows first.

    PyTorch saves integers as such, and Python's numbers as float64, whatever the dtype of the other factor is.
    """
    dtype = tensor.dtype
    if not dtype.is_floating_point:
        return tensor.to(torch.float16 if condition is FINITE else torch.float32)
    return tensor.to(torch.float32) if dtype is torch.float64 and tensor.dim() == 0 else tensor


def _in_memory_order(tensor: Tensor) -> Tensor:
    """The same elements, in the order of the memory: `aminmax` of a transposed weight takes ten times as long."""
    if tensor.is_contiguous():
        return tensor
    if tensor.dim() == 2:
        return tensor.t()
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
