"""Whether plain backward can be trusted with a graph, told by a look at what the graph saved.

0 times anything finite is 0. Where every number that backward will multiply by is finite, an ignored element stays the
zero that it is, and plain PyTorch's gradient is right: the careful pass would give the same bits. `harmless` looks at
the saved tensors of each node, and at its scalars, before the pass. It errs on one side only: a node without a record,
a number outside of the bounds, or memory that is not there yet asks for care.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._nn import flatten_dense_tensors
from torch.autograd.function import BackwardCFunction
from torch.nn import Parameter

from .distributed import is_distributed, part_here
from .graph import KINDS, function_of
from .jagged import values_of
from .registry import FUNCTIONS, UNKNOWN, Function, record_of
from .sparse import is_sparse, stored
from .vmapped import is_wrapped

LARGE = 10_000
"""Entries from which on it pays to remember what was looked at."""

SMALL = 5000
"""Entries up to which it pays to copy tensors, and look at them together."""

TOGETHER = 500
"""How many are looked at together, at most."""

ROOM = 1 << 18
"""Entries that are copied for that, at most: a megabyte of float32."""

MANY = 16
"""Nodes of one kind from which on it pays to find out whether they saved the same kind of tensor."""

_DENSE = (Tensor, Parameter)
_UNKNOWN = object()


class Look(NamedTuple):
    """What is measured of a saved tensor in one pass over its memory, and which measures are harmless."""

    measure: Callable[[Tensor], tuple[Tensor, ...]]
    accepts: Callable[..., bool]


def total(tensor: Tensor) -> Tensor:
    """Finite only where all elements are: NaN and inf get into every sum. Half precision would overflow too early."""
    return tensor.sum(dtype=torch.float32) if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.sum()


def _sum(tensor: Tensor) -> tuple[Tensor, ...]:
    return (total(tensor),)


@functools.cache
def _bound(dtype: torch.dtype) -> float:
    """Squares and cubes of numbers up to here don't overflow, nor do their inverses."""
    return float(torch.finfo(dtype).max ** 0.25)


def _moderate(dtype: torch.dtype, low: float, high: float) -> bool:
    bound = _bound(dtype)
    return -bound <= low and high <= bound


def _away_from_zero(dtype: torch.dtype, low: float, high: float) -> bool:
    bound = _bound(dtype)
    return 1 / bound <= low and high <= bound or -bound <= low and high <= -1 / bound


NOTHING = Look(lambda tensor: (), lambda dtype: True)
"""No condition: for a function that multiplies only by constants, or reads its saved tensors only to select."""

FINITE = Look(_sum, lambda dtype, total: math.isfinite(total))
"""All elements are finite: for a function that multiplies by a saved tensor, or by a bounded function of it."""

MODERATE = Look(torch.aminmax, _moderate)
"""No absolute value is above the 4th root of the dtype's largest number: for a derivative that could overflow."""

AWAY_FROM_ZERO = Look(torch.aminmax, _away_from_zero)
"""All elements have one sign, and they and their inverses are `MODERATE`: for a function that divides by them."""


class _Place(NamedTuple):
    """Where nodes of a kind keep a saved tensor, or several: how to get them, and the look that they need."""

    packed: Callable[[Any], Any]
    unpack_hook: Callable[[Any], Any]
    saved: Callable[[Any], Any]
    look: Look


class _Plan(NamedTuple):
    """How to look at the nodes of a kind: where they keep tensors, and how to get the scalars among their arguments."""

    function: Function
    places: tuple[_Place, ...]
    scalars: tuple[Callable[[Any], Any], ...]


@functools.cache
def _plan(kind: type, function: Function) -> _Plan | None:
    """None asks for care."""
    usual = function.look
    if usual is None:
        return None
    saved = [attribute.removeprefix("_raw_saved_") for attribute in dir(kind) if attribute.startswith("_raw_saved_")]
    looks = {attribute: function.looks.get(attribute, usual) for attribute in saved}
    saved_in = "saved_{}" if issubclass(kind, BackwardCFunction) else "_saved_{}"
    places = tuple(
        _Place(
            attrgetter(f"_raw_saved_{a}"),
            attrgetter(f"_raw_saved_{a}.unpack_hook"),
            attrgetter(saved_in.format(a)),
            look,
        )
        for a, look in looks.items()
        if look is not None and look is not NOTHING
    )
    scalars = [f"_saved_{scalar}" for scalar in function.scalars]
    return _Plan(function, places, tuple(attrgetter(scalar) for scalar in scalars if hasattr(kind, scalar)))


_Measured = tuple[tuple[Tensor, ...], Look, torch.dtype]


class _Looking:
    """One look at the nodes of a graph.

    Attributes:
        refused: the nodes out of which ignored elements may come as other numbers than 0, as far as they are known yet.
        seen: what was found of large tensors: a relu's result is the next layer's input.
        elsewhere: what was measured on another device, with the node that it is for; not fetched yet.
        small: tensors that are to be finite, and those that are to be moderate, with the nodes that they are for; all
            of them are looked at together.
    """

    def __init__(self) -> None:
        self.refused: list[Any] = []
        self.seen: dict[tuple[Any, ...], bool | _Measured] = {}
        self.elsewhere: list[tuple[Any, _Measured]] = []
        self.small: tuple[list[tuple[Any, Tensor]], ...] = ([], [])

    def look_at(self, nodes: list[Any], plan: _Plan | None) -> None:
        """Look at nodes of one kind."""
        if plan is None:
            self.refused += nodes
            return
        function, places, scalars = plan
        if function.only_if is not None:
            self.refused += [node for node in nodes if not function.only_if(node)]
        for scalar in scalars:
            for node in nodes:
                number = scalar(node)
                if number != 1 and number is not None and not _is_moderate(number, node):
                    self.refused.append(node)
        for place in places:
            if len(nodes) < MANY:
                self._look_at_each(nodes, place)
                continue
            for start in range(0, len(nodes), TOGETHER):
                some = nodes[start : start + TOGETHER]
                if not _accepts_alike(some, place):
                    self._look_at_each(some, place)

    def _look_at_each(self, nodes: list[Any], place: _Place) -> None:
        _, unpack_hook, saved, look = place
        small = None if look is AWAY_FROM_ZERO else self.small[look is MODERATE]
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
                                self._look_at_small(look, small)
                            continue
                except (AttributeError, RuntimeError):  # several tensors, none, or one that is not there
                    pass
            if not self._accepts(node, place):
                self.refused.append(node)

    def _accepts(self, node: Any, place: _Place) -> bool:
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
            return all(tensor is None or self._accepts_tensor(node, tensor, place.look) for tensor in saved)
        return saved is None or self._accepts_tensor(node, saved, place.look)

    def _accepts_tensor(self, node: Any, tensor: Any, look: Look) -> bool:
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
            if dtype is torch.bool and look is not AWAY_FROM_ZERO:
                return True
        key = None
        if entries > LARGE:  # others are measured sooner than remembered
            key = (tensor.data_ptr(), dtype, tensor.shape, tensor.stride(), look)
            found = self.seen.get(key)
            if found is not None:
                if type(found) is bool:
                    return found
                self.elsewhere.append((node, found))
                return True
        if dtype is not torch.float32:
            tensor = _as_factor(tensor, look)
        if tensor.is_cpu:
            accepted = _accepted_here(tensor, look)
            if key is not None:
                self.seen[key] = accepted
            return accepted
        tensor = _in_memory_order(tensor)
        measured = look.measure(tensor), look, tensor.dtype
        if key is not None:
            self.seen[key] = measured
        self.elsewhere.append((node, measured))
        return True

    def finish(self) -> None:
        """Look at what was put off."""
        finite, moderate = self.small
        if finite:
            self._look_at_small(FINITE, finite)
        if moderate:
            self._look_at_small(MODERATE, moderate)
        if self.elsewhere:
            self._look_elsewhere()

    def _look_at_small(self, look: Look, small: list[tuple[Any, Tensor]]) -> None:
        """All of them are looked at together: most of the time goes into calling PyTorch."""
        if len(small) == 1 or not _accepted_here(flatten_dense_tensors([tensor for _, tensor in small]), look):
            for node, tensor in small:
                if not _accepted_here(tensor, look):
                    self.refused.append(node)
        small.clear()

    def _look_elsewhere(self) -> None:
        """All measures on other devices are fetched at once: one wait in place of hundreds."""
        all_measures = [measure.double() for _, (measures, _, _) in self.elsewhere for measure in measures]
        numbers = iter(torch.stack(all_measures).tolist())
        self.refused += [
            node
            for node, (measures, look, dtype) in self.elsewhere
            if not look.accepts(dtype, *itertools.islice(numbers, len(measures)))
        ]


def harmless(nodes: Iterable[Any], dangers: list[Any] | None = None) -> bool:
    """Whether ignored elements can't contaminate what comes out of these nodes.

    Args:
        nodes: where to look.
        dangers: gets all nodes out of which ignored elements may come as other numbers than 0. Without it, this ends
            at the first kind that has one.
    """
    by_kind: dict[type, list[Any]] = {}
    for node in nodes:
        kind = type(node)
        if kind in by_kind:
            by_kind[kind].append(node)
        else:
            by_kind[kind] = [node]
    looking = _Looking()
    recording = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        for kind, alike in by_kind.items():
            known = _KNOWN.get(kind)
            if known is not None and FUNCTIONS.get(known.name, UNKNOWN) is known.function:
                if known.needs_look:
                    looking.look_at(alike, known.plan)
            else:
                for node in alike:
                    looking.look_at([node], _known(node).plan)
            if looking.refused and dangers is None:
                return False
        looking.finish()
    finally:
        torch._C._set_grad_enabled(recording)
    if dangers is not None:
        dangers += looking.refused
    return not looking.refused


class _Known(NamedTuple):
    """What is remembered of a kind of nodes."""

    name: str
    function: Function
    plan: _Plan | None
    needs_look: bool


_KNOWN: dict[type, _Known] = {}


def _known(node: Any) -> _Known:
    function = record_of(node)
    kind: Any = type(node)
    plan = _plan(kind, function)
    needs_look = plan is None or bool(plan.places or plan.scalars or function.only_if)
    known = _Known(function_of(node.name()), function, plan, needs_look)
    if kind in KINDS:  # others go by several names
        _KNOWN[kind] = known
    return known


def _accepts_alike(nodes: list[Any], place: _Place) -> bool:
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
            and _accepted_here(torch.stack(tensors), place.look)
        )
    except (AttributeError, RuntimeError):  # several tensors, none, one that is not there, or of another shape
        return False


_facts = attrgetter("__class__", "dtype", "is_cpu", "is_nested")
_USUAL = {(kind, torch.float32, True, False) for kind in _DENSE}
"""The facts of a tensor that can be looked at together with others."""


def _accepted_here(tensor: Tensor, look: Look) -> bool:
    if look is FINITE and tensor.dtype is torch.float32:
        total = tensor.sum().item()
        return total - total == 0
    tensor = _in_memory_order(tensor)
    if look is MODERATE and tensor.is_contiguous() and tensor.dtype in (torch.float32, torch.float64):
        entries = tensor.view(-1)
        squares = torch.dot(entries, entries).item()  # had in half the time of the extremes
        if squares <= _bound(tensor.dtype) ** 2:
            return True
        if squares - squares != 0:  # moderate ones have a finite sum
            return False
    return look.accepts(tensor.dtype, *[measure.item() for measure in look.measure(tensor)])


def _is_there(packed: Any) -> bool:
    """Whether a saved tensor is to be had as it is. Unpacking could recompute (checkpoint); older ones can't tell."""
    return getattr(packed, "unpack_hook", _UNKNOWN) is None


def _is_moderate(number: Any, node: Any) -> bool:
    """Whether a number that a derivative multiplies by neither is infinite nor becomes so in its dtype."""
    dtype = node._input_metadata[0].dtype
    return dtype.is_floating_point and bool(abs(number) <= _bound(dtype))


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


def _as_factor(tensor: Tensor, look: Look) -> Tensor:
    """In the narrowest dtype that it can be multiplied in: Python's numbers are saved as float64, integers as such."""
    dtype = tensor.dtype
    if not dtype.is_floating_point:
        return tensor.to(torch.float16 if look is FINITE else torch.float32)
    return tensor.to(torch.float32) if dtype is torch.float64 and tensor.dim() == 0 else tensor


def _in_memory_order(tensor: Tensor) -> Tensor:
    """The same elements; a transposed weight takes `aminmax` ten times as long as the weight."""
    if tensor.is_contiguous():
        return tensor
    if tensor.dim() == 2:
        return tensor.t()
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
