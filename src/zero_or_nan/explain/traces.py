"""Which tensors are not finite, and what they have it from.

A tensor is known by its memory, so that a view, a saved tensor and a detached one are the same thing. Memory that is
given back is forgotten.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch._C._nn import flatten_dense_tensors
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from ..ignoring.conditions import total
from ..ignoring.distributed import is_distributed, part_here
from .places import Place

MOST_STEPS = 40
"""The steps of a path that are kept."""

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

_SMALL = 10_000
"""Entries up to which tensors are looked at together."""

T = TypeVar("T")

_DENSE = (Tensor, Parameter)
is_transformed = torch._C._functorch.is_functorch_wrapped_tensor

Nature = Literal["made", "given", "meant"]
"""An operator made it of finite numbers; it came in with data; or it is an infinity that the code wrote down."""


@dataclass(eq=False)
class Found:
    """Where a number that is not finite was born or came in; an origin, once it is known to have reached something.

    Attributes:
        nature: whether an operator made it.
        phase: whether that was in backward.
        operator, place: the forward function, and the call of it.
        where: the indices of the first elements, in the tensor.
        count, shape, dtype, device: how many elements, and of what tensor.
        operands: what it was made of, as text.
        too_large: whether the numbers were only too large for the dtype.
        infinite: of what came in or was written down, the infinity, where it is one and the same; else 0.
        tensor: what came in.
        held: whether it was in `.grad` before a pass added to it.
        in_backward: what backward multiplied there, where that made a gradient that is not finite.
        is_sure: whether it was found out that the loss uses the elements, or ignores them.
        made_of: the infinities that the code wrote down and that it was made of.
        number: in order of time.
    """

    nature: Nature
    phase: Literal["forward", "backward"]
    operator: str
    place: Place
    where: list[tuple[int, ...]]
    count: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    operands: str
    too_large: bool = False
    infinite: float = 0.0
    tensor: weakref.ref[Tensor] | None = None
    held: bool = False
    in_backward: str = ""
    is_sure: bool = True
    made_of: tuple[Found, ...] = ()
    number: int = field(default_factory=itertools.count().__next__)

    @property
    def kind_where_used(self) -> Literal["undefined", "overflow", "bad input"]:
        """What it is called where the loss uses it."""
        if self.nature != "made":
            return "bad input"
        return "overflow" if self.too_large else "undefined"


@dataclass(frozen=True, eq=False)
class Trace:
    """What a tensor that is not finite has it from, and for each the way that it took."""

    ways: Mapping[Found, tuple[str, ...]]

    @property
    def found(self) -> tuple[Found, ...]:
        """All that it has it from, each once."""
        return tuple(self.ways)


def joined(traces: Iterable[Trace], step: str = "", born: Iterable[Found] = ()) -> Trace:
    """The trace of what comes of several tensors. Of the ways that an origin took, the longest; of equals the first.

    Args:
        traces: of the tensors.
        step: the function of the user's that it comes by, if it does.
        born: what was born in it.
    """
    ways: dict[Found, tuple[str, ...]] = {}
    for trace in traces:
        for found, way in trace.ways.items():
            longer = (*way, step) if step and len(way) < MOST_STEPS and way[-1:] != (step,) else way
            if found not in ways or len(longer) > len(ways[found]):
                ways[found] = longer
    for found in born:
        ways.setdefault(found, (step,))
    return Trace(ways)


@dataclass
class Traces:
    """The traces of the tensors that are there."""

    _by_memory: dict[int, tuple[StorageWeakRef, Trace]] = field(default_factory=dict)
    _swept: int = 64

    def __bool__(self) -> bool:
        return bool(self._by_memory)

    def of(self, tensor: Tensor) -> Trace | None:
        if not self._by_memory:
            return None
        known = self._by_memory.get(memory(tensor)._cdata)
        return known[1] if known is not None else None

    def keep(self, tensor: Tensor, trace: Trace) -> None:
        storage = memory(tensor)
        self._by_memory[storage._cdata] = StorageWeakRef(storage), trace
        if len(self._by_memory) > 2 * self._swept:
            for key in [key for key, (memory, _) in self._by_memory.items() if memory.expired()]:
                del self._by_memory[key]
            self._swept = max(64, len(self._by_memory))

    def forget(self, tensor: Tensor) -> None:
        self._by_memory.pop(memory(tensor)._cdata, None)


def without(trace: Trace, found: Collection[Found]) -> Trace:
    """The trace without some of what it has."""
    return Trace({each: way for each, way in trace.ways.items() if each not in found})


def tensors_in(things: Any) -> Iterator[Tensor]:
    """The tensors of arguments or results, however they are nested."""
    return each_in(things, Tensor)


def each_in(things: Any, kind: type[T]) -> Iterator[T]:
    """All that is of a kind in arguments or results, however they are nested."""
    if isinstance(things, kind):
        yield things
    elif isinstance(things, (tuple, list)):
        for thing in things:
            yield from each_in(thing, kind)
    elif isinstance(things, dict):
        for thing in things.values():
            yield from each_in(thing, kind)


def is_sparse(tensor: Tensor) -> bool:
    """Whether a tensor stores some of its elements only."""
    return tensor.layout in _SPARSE


def stored(tensor: Tensor) -> Tensor:
    """The elements that a sparse tensor stores, in the same memory."""
    tensor = tensor.detach()
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def memory(tensor: Tensor) -> Any:
    """Where the numbers of a tensor are."""
    return (stored(tensor) if is_sparse(tensor) else tensor).untyped_storage()


def looked_at(tensor: Any) -> Tensor | None:
    """The numbers of a tensor, where they can be had; None for all others.

    Of a distributed tensor its part here, of a sparse one what it stores. Numbers of eight bits are widened.
    """
    if type(tensor) not in _DENSE:
        if not isinstance(tensor, Tensor):
            return None
        part = part_here(tensor) if is_distributed(tensor) else tensor
        if part is None or type(part).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
        tensor = part.as_subclass(Tensor)
    dtype = tensor.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return None
    if tensor.is_meta or tensor.is_nested or is_transformed(tensor):
        return None
    if tensor.layout is not torch.strided:
        if not is_sparse(tensor):
            return None
        tensor = stored(tensor)
    if not tensor.untyped_storage().nbytes() or not tensor.numel():
        return None
    if dtype.itemsize == 1:  # of eight bits, or of two numbers in them: these can't be added up as they are
        return None if "x2" in str(dtype) else tensor.detach().to(torch.float32)
    return tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether all elements are: NaN and inf get into every sum; one that is too large is looked at again."""
    number = total(tensor).item()
    return bool(number - number == 0) or bool(torch.isfinite(tensor).all())


def are_finite(values: Any) -> bool:
    """Whether all tensors are, however they are nested, as far as they can be looked at."""
    return all(is_finite(here) for here in map(looked_at, tensors_in(values)) if here is not None)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all elements of all tensors are; fetched from their device at once."""
    with torch._C.DisableTorchFunction():  # a watch sees nothing of it
        return _all_finite(tensors)


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    usual: list[Tensor] = []
    others: list[Tensor] = []
    for tensor in tensors:
        if (
            type(tensor) is Tensor
            and tensor.dtype is torch.float32
            and tensor.is_cpu
            and tensor.layout is torch.strided
        ):
            usual.append(tensor)
        else:
            here = looked_at(tensor)
            if here is not None:
                others.append(torch.view_as_real(here) if here.is_complex() else here)
    if not usual and not others:
        return True
    with torch.no_grad():
        totals = [tensor.sum() for tensor in usual if tensor.numel() > _SMALL]
        small = [tensor for tensor in usual if tensor.numel() <= _SMALL]
        if small:  # most of their time goes into calling PyTorch
            totals.append(flatten_dense_tensors(small).sum())
        if others:
            first = others[0].device
            wide = [total(tensor).to(first, torch.float64) for tensor in others]
            totals.append(torch.stack(wide).sum())
        is_fine = all((number := each.item()) - number == 0 for each in totals)
        return is_fine or all(is_finite(tensor) for tensor in (*usual, *others))


def first_entries(mask: Tensor, most: int = 5) -> list[tuple[int, ...]]:
    """The indices of the first elements of a mask that are True."""
    return [tuple(entry) for entry in mask.nonzero()[:most].tolist()]


def first_stored(tensor: Tensor, mask: Tensor) -> list[tuple[int, ...]] | None:
    """Their indices in a sparse tensor, of which the mask is for what it stores; None for other layouts."""
    if mask.shape != stored(tensor).shape or tensor.layout not in (torch.sparse_coo, torch.sparse_csr):
        return None
    if tensor.layout is torch.sparse_csr and tensor.dim() > 2:  # a batch
        return None
    indices = tensor.detach().to_sparse_coo()._indices().T
    return [(*indices[at].tolist(), *rest) for at, *rest in first_entries(mask)]
