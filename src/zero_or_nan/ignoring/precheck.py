"""Whether plain backward is safe on a graph: a check of the tensors that the graph saved, before the pass.

0 times anything finite is 0. If every number that backward multiplies by is finite, an ignored element stays 0. Plain
PyTorch's gradient is then right, and the masked pass would give the same bits. `is_safe` checks the saved tensors and
the scalars of each node before the pass. It errs on one side only: a node without a record, a number outside of the
bounds, or memory that is not there yet counts as not safe.

Benefit: on clean data, one scan of the saved tensors is all that `ignoring` costs, and the gradient is plain PyTorch's.
Downside: the conditions are sufficient, not necessary. A large number that backward never multiplies by anything
ignored costs a masked pass, which changes no finite bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._C._nn import flatten_dense_tensors
from torch.nn import Parameter

from .checks import Checks, Saved
from .conditions import AWAY_FROM_ZERO, FINITE, MODERATE, Condition, bound
from .distributed import is_distributed, part_here
from .finite import is_number
from .jagged import values_of
from .kinds import classify, known
from .sparse import is_sparse, stored
from .vmapped import is_wrapped

LARGE = 10_000
"""From this number of elements on, it pays to remember the outcome for a tensor."""

SMALL = 5000
"""Up to this number of elements, it pays to copy tensors and check them together."""

TOGETHER = 500
"""The largest number of tensors that are checked together."""

ROOM = 1 << 18
"""The largest number of elements that are copied for that: a megabyte of float32."""

MANY = 16
"""Nodes of one kind from which on it pays to find out whether they saved the same kind of tensor."""

_DENSE = (Tensor, Parameter)
_UNKNOWN = object()

_Measured = tuple[tuple[Tensor, ...], Condition, torch.dtype]


class _Precheck:
    """One check of the nodes of a graph.

    Attributes:
        refused: the nodes out of which ignored elements may come as other numbers than 0, as far as they are known yet.
        seen: what was found of large tensors: a relu's result is the next layer's input.
        elsewhere: what was measured on another device, with the node that it is for; not fetched yet.
        small: tensors that are to be finite, and those that are to be moderate, with the nodes that they are for; all
            of them are checked together.
    """

    def __init__(self) -> None:
        self.refused: list[Any] = []
        self.seen: dict[tuple[Any, ...], bool | _Measured] = {}
        self.elsewhere: list[tuple[Any, _Measured]] = []
        self.small: tuple[list[tuple[Any, Tensor]], ...] = ([], [])

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
            if len(nodes) < MANY:
                self._check_each(nodes, place)
                continue
            for start in range(0, len(nodes), TOGETHER):
                some = nodes[start : start + TOGETHER]
                if not _accepts_alike(some, place):
                    self._check_each(some, place)

    def _check_each(self, nodes: list[Any], place: Saved) -> None:
        _, unpack_hook, saved, condition = place
        small = None if condition is AWAY_FROM_ZERO else self.small[condition is MODERATE]
        for node in nodes:
            if small is not None:
                try:
                    if unpack_hook(node) is None:
                        tensor = saved(node)
                        if (
                            _facts(tensor) in _USUAL
                            and 0 < tensor.numel() <= SMALL
                            and tensor.untyped_storage().data_ptr()
                        ):
                            small.append((node, tensor))
                            if len(small) > ROOM // SMALL:
                                self._check_small(condition, small)
                            continue
                except (AttributeError, RuntimeError):  # several tensors, none, or one that is not there
                    pass
            if not self._accepts(node, place):
                self.refused.append(node)

    def _accepts(self, node: Any, place: Saved) -> bool:
        """Whether the tensors that a node keeps in one place are as they have to be, as far as it is known yet."""
        try:
            packed = place.packed(node)
            if type(packed) is tuple:
                if not all(map(_is_there, packed)):
                    return False
            elif not _is_there(packed):
                return False
            saved = place.saved(node)
        except RuntimeError:  # freed, or changed in place: backward will say so, if it gets there
            return False
        if type(saved) is tuple:
            return all(tensor is None or self._accepts_tensor(node, tensor, place.condition) for tensor in saved)
        return saved is None or self._accepts_tensor(node, saved, place.condition)

    def _accepts_tensor(self, node: Any, tensor: Any, condition: Condition) -> bool:
        if type(tensor) not in _DENSE:
            part = part_here(tensor) if is_distributed(tensor) else values_of(tensor)
            if part is None or type(part) not in _DENSE:
                return False
            tensor = part
        if is_sparse(tensor):
            tensor = stored(tensor)
        entries = tensor.numel()
        if not entries:
            return True
        if tensor.layout is not torch.strided or not _in_memory(tensor):
            return False
        dtype = tensor.dtype
        if not dtype.is_floating_point:
            if dtype.is_complex:
                return False
            if dtype is torch.bool and condition is not AWAY_FROM_ZERO:
                return True
        key = None
        if entries > LARGE:  # others are measured sooner than remembered
            key = (tensor.data_ptr(), dtype, tensor.shape, tensor.stride(), condition)
            found = self.seen.get(key)
            if found is not None:
                if type(found) is bool:
                    return found
                self.elsewhere.append((node, found))
                return True
        if dtype is not torch.float32:
            tensor = _as_factor(tensor, condition)
        if tensor.is_cpu:
            accepted = _accepted_here(tensor, condition)
            if key is not None:
                self.seen[key] = accepted
            return accepted
        tensor = _in_memory_order(tensor)
        measured = condition.measure(tensor), condition, tensor.dtype
        if key is not None:
            self.seen[key] = measured
        self.elsewhere.append((node, measured))
        return True

    def finish(self) -> None:
        """Look at what was put off."""
        finite, moderate = self.small
        if finite:
            self._check_small(FINITE, finite)
        if moderate:
            self._check_small(MODERATE, moderate)
        if self.elsewhere:
            self._check_elsewhere()

    def _check_small(self, condition: Condition, small: list[tuple[Any, Tensor]]) -> None:
        """Check all of them together: most of the time goes into calling PyTorch."""
        if len(small) == 1 or not _accepted_here(flatten_dense_tensors([tensor for _, tensor in small]), condition):
            for node, tensor in small:
                if not _accepted_here(tensor, condition):
                    self.refused.append(node)
        small.clear()

    def _check_elsewhere(self) -> None:
        """All measures on other devices are fetched at once: one wait in place of hundreds."""
        all_measures = [measure.double() for _, (measures, _, _) in self.elsewhere for measure in measures]
        numbers = iter(torch.stack(all_measures).tolist())
        self.refused += [
            node
            for node, (measures, condition, dtype) in self.elsewhere
            if not condition.accepts(dtype, *itertools.islice(numbers, len(measures)))
        ]


def is_safe(nodes: Iterable[Any], unsafe: list[Any] | None = None) -> bool:
    """Whether ignored elements can't contaminate what comes out of these nodes.

    Args:
        nodes: the nodes to check.
        unsafe: gets all nodes out of which ignored elements may come as other numbers than 0. Without it, this ends
            at the first kind that has one.
    """
    by_kind: dict[type, list[Any]] = {}
    for node in nodes:
        kind = type(node)
        if kind in by_kind:
            by_kind[kind].append(node)
        else:
            by_kind[kind] = [node]
    checking = _Precheck()
    recording = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        for kind, alike in by_kind.items():
            found = known(kind)
            if found is None:
                for node in alike:
                    checking.check([node], classify(node).checks)
            elif found.needs_check:
                checking.check(alike, found.checks)
            if checking.refused and unsafe is None:
                return False
        checking.finish()
    finally:
        torch._C._set_grad_enabled(recording)
    if unsafe is not None:
        unsafe += checking.refused
    return not checking.refused


def _accepts_alike(nodes: list[Any], place: Saved) -> bool:
    """Whether many small tensors are as they have to be; False also where they are not all alike."""
    try:
        if list(map(place.unpack_hook, nodes)).count(None) != len(nodes):
            return False
        tensors = list(map(place.saved, nodes))
        return (
            set(map(_facts, tensors)) <= _USUAL
            and 0 < tensors[0].numel() <= min(SMALL, ROOM // len(tensors))
            and all(map(Tensor.data_ptr, tensors))
            and not any(map(Tensor.storage_offset, tensors))  # with one the address does not tell that memory is there
            and _accepted_here(torch.stack(tensors), place.condition)
        )
    except (AttributeError, RuntimeError):  # several tensors, none, one that is not there, or of another shape
        return False


_facts = attrgetter("__class__", "dtype", "is_cpu", "is_nested")
_USUAL = {(kind, torch.float32, True, False) for kind in _DENSE}
"""The facts of a tensor that can be checked together with others."""


def _accepted_here(tensor: Tensor, condition: Condition) -> bool:
    if condition is FINITE and tensor.dtype is torch.float32:
        return is_number(tensor.sum())
    tensor = _in_memory_order(tensor)
    if condition is MODERATE and tensor.is_contiguous() and tensor.dtype in (torch.float32, torch.float64):
        entries = tensor.view(-1)
        squares = torch.dot(entries, entries).item()  # had in half the time of the extremes
        if squares <= bound(tensor.dtype) ** 2:
            return True
        if squares - squares != 0:  # moderate ones have a finite sum
            return False
    return condition.accepts(tensor.dtype, *[measure.item() for measure in condition.measure(tensor)])


def _is_there(packed: Any) -> bool:
    """Whether a saved tensor is to be had as it is. Unpacking could recompute (checkpoint); older ones can't tell."""
    return getattr(packed, "unpack_hook", _UNKNOWN) is None


def _is_moderate(number: Any, node: Any) -> bool:
    """Whether a number that a derivative multiplies by neither is infinite nor becomes so in its dtype."""
    dtype = node._input_metadata[0].dtype
    return dtype.is_floating_point and bool(abs(number) <= bound(dtype))


def _in_memory(tensor: Tensor) -> bool:
    """Whether the numbers are there: a sharded parameter's memory is given back until a hook brings it again."""
    if tensor.is_nested or tensor.is_meta or tensor._is_zerotensor() or is_wrapped(tensor):
        return False
    if tensor.is_contiguous():
        if not tensor.storage_offset():
            return tensor.untyped_storage().nbytes() >= tensor.nbytes
        extent = tensor.numel()
    else:
        extent = 1
        for size, step in zip(tensor.size(), tensor.stride(), strict=True):
            extent += (size - 1) * step
    return tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + extent) * tensor.element_size()


def _as_factor(tensor: Tensor, condition: Condition) -> Tensor:
    """In the narrowest dtype that it can be multiplied in: Python's numbers are saved as float64, integers as such."""
    dtype = tensor.dtype
    if not dtype.is_floating_point:
        return tensor.to(torch.float16 if condition is FINITE else torch.float32)
    return tensor.to(torch.float32) if dtype is torch.float64 and tensor.dim() == 0 else tensor


def _in_memory_order(tensor: Tensor) -> Tensor:
    """The same elements; a transposed weight takes `aminmax` ten times as long as the weight."""
    if tensor.is_contiguous():
        return tensor
    if tensor.dim() == 2:
        return tensor.t()
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
