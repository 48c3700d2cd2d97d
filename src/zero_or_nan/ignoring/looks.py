"""Whether plain backward can be trusted with a graph, told by a look at what the graph saved.

0 times anything finite is 0. Where every number that backward will multiply by is finite, an ignored entry stays the
zero that it is, and plain PyTorch's gradient is right: the careful pass would give the same bits. `harmless` looks at
the saved tensors of each node, and at its scalars, before the pass. It errs on one side only: a node without a record,
a number outside of the bounds, or memory that is not there yet asks for care.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import Parameter

from .distributed import is_distributed, part_here
from .registry import Function, record_of

LARGE = 10_000
"""Entries from which on it pays to remember what was looked at."""

_DENSE = (Tensor, Parameter)
_UNKNOWN = object()
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


class Look(NamedTuple):
    """What is measured of a saved tensor in one pass over its memory, and which measures are harmless."""

    measure: Callable[[Tensor], tuple[Tensor, ...]]
    accepts: Callable[..., bool]


def _sum(tensor: Tensor) -> tuple[Tensor, ...]:
    """Finite where all entries are: NaN and inf get into every sum. Half precision would overflow too early."""
    return (tensor.sum(dtype=torch.float32) if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.sum(),)


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
"""For a function that multiplies by constants, or looks at what it saved only to select."""

FINITE = Look(_sum, lambda dtype, total: math.isfinite(total))
"""For a function that multiplies by what it saved, or by a bounded function of it: all entries are finite."""

MODERATE = Look(torch.aminmax, _moderate)
"""For a derivative that could overflow on its way: no entry is beyond the fourth root of the dtype's largest number."""

AWAY_FROM_ZERO = Look(torch.aminmax, _away_from_zero)
"""For a function that divides by what it saved: all entries are moderate, of one sign, and so are their inverses."""


class _Plan(NamedTuple):
    """How to look at a node: the attributes that hold its saved tensors, each with a look, and those of scalars."""

    function: Function
    tensors: tuple[tuple[str, str, Look], ...]
    scalars: tuple[str, ...]


@functools.cache
def _plan(kind: type, function: Function) -> _Plan | None:
    """None asks for care."""
    usual = function.look
    if usual is None:
        return None
    saved = [attribute.removeprefix("_raw_saved_") for attribute in dir(kind) if attribute.startswith("_raw_saved_")]
    looks = {attribute: function.looks.get(attribute, usual) for attribute in saved}
    saved_in = "saved_{}" if issubclass(kind, BackwardCFunction) else "_saved_{}"
    tensors = tuple(
        (f"_raw_saved_{a}", saved_in.format(a), look)
        for a, look in looks.items()
        if look is not None and look is not NOTHING
    )
    return _Plan(function, tensors, tuple(f"_saved_{scalar}" for scalar in function.scalars))


@torch.no_grad()
def harmless(nodes: Iterable[Any]) -> bool:
    """Whether ignored entries can't contaminate what comes out of these nodes."""
    seen: set[tuple[Any, ...]] = set()
    elsewhere: list[tuple[tuple[Tensor, ...], Look, torch.dtype]] = []
    for node in nodes:
        kind: Any = type(node)
        plan = _plan(kind, record_of(node))
        if plan is None:
            return False
        if plan.function.only_if is not None and not plan.function.only_if(node):
            return False
        if plan.scalars and not _scalars_moderate(node, plan.scalars):
            return False
        for raw, attribute, look in plan.tensors:
            try:
                if not _is_there(getattr(node, raw)):
                    return False
                saved = getattr(node, attribute)
            except RuntimeError:  # freed, or changed in place: backward will say so, if it gets there
                return False
            for tensor in saved if type(saved) is tuple else (saved,):
                if is_distributed(tensor):
                    tensor = part_here(tensor)
                    if tensor is None:
                        return False
                if tensor is None or not tensor.numel():
                    continue
                if type(tensor) not in _DENSE or tensor.layout is not torch.strided or tensor.is_complex():
                    return False
                if not _in_memory(tensor):
                    return False
                if tensor.dtype is torch.bool and look is not AWAY_FROM_ZERO:
                    continue
                if tensor.numel() > LARGE:  # a relu's result is the next layer's input; a small one costs less
                    key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), look)
                    if key in seen:
                        continue
                    seen.add(key)
                tensor = _as_factor(tensor, look)
                measures = look.measure(_in_memory_order(tensor))
                if tensor.device.type != "cpu":
                    elsewhere.append((measures, look, tensor.dtype))
                elif not look.accepts(tensor.dtype, *[measure.item() for measure in measures]):
                    return False
    return not elsewhere or _all_accepted(elsewhere)


def _is_there(packed: Any) -> bool:
    """Whether a saved tensor is to be had as it is. Unpacking could recompute (checkpoint); older ones can't tell."""
    parts = packed if type(packed) is tuple else (packed,)
    return all(getattr(part, "unpack_hook", _UNKNOWN) is None for part in parts)


def _all_accepted(elsewhere: list[tuple[tuple[Tensor, ...], Look, torch.dtype]]) -> bool:
    """On another device all measures are fetched at once: one wait in place of hundreds."""
    numbers = iter(torch.stack([measure.double() for measures, _, _ in elsewhere for measure in measures]).tolist())
    return all(look.accepts(dtype, *itertools.islice(numbers, len(measures))) for measures, look, dtype in elsewhere)


def _scalars_moderate(node: Any, scalars: tuple[str, ...]) -> bool:
    """Whether the numbers that a derivative multiplies by neither are infinite nor become so in its dtype."""
    for scalar in scalars:
        number = getattr(node, scalar, 1)
        if number is not None and number != 1:
            dtype = node._input_metadata[0].dtype
            if not dtype.is_floating_point or not abs(number) <= _bound(dtype):
                return False
    return True


def _in_memory(tensor: Tensor) -> bool:
    """Whether the numbers are there: a sharded parameter's memory is given back until a hook brings it again."""
    if tensor.is_nested or tensor.is_meta or tensor._is_zerotensor() or _is_wrapped(tensor):
        return False
    extent = tensor.numel()
    if not tensor.is_contiguous():
        extent = 1 + sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + extent) * tensor.element_size()


def _as_factor(tensor: Tensor, look: Look) -> Tensor:
    """In the narrowest dtype that it can be multiplied in: Python's numbers are saved as float64, integers as such."""
    dtype = tensor.dtype
    if not dtype.is_floating_point:
        return tensor.to(torch.float16 if look is FINITE else torch.float32)
    return tensor.to(torch.float32) if dtype is torch.float64 and tensor.dim() == 0 else tensor


def _in_memory_order(tensor: Tensor) -> Tensor:
    """The same entries; a transposed weight takes `aminmax` ten times as long as the weight."""
    if tensor.is_contiguous():
        return tensor
    if tensor.dim() == 2:
        return tensor.t()
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
