"""Births of NaN and infinity, and which of them each tensor that is not finite comes from.

A tensor is identified by its memory, so a view, a saved tensor and a detached one have the same provenance. When the
memory is freed, its provenance is forgotten.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .places import Place
from .tensors import memory

MOST_STEPS = 40
"""The number of steps of a path that are kept."""

Nature = Literal["made", "given", "meant"]
"""An operator made it of finite numbers; it came in with data; or the code wrote this infinity down."""


@dataclass(eq=False)
class Birth:
    """Where a number that is not finite was made or came in. If it reaches the loss or a gradient, it is an origin.

    Attributes:
        nature: whether an operator made it.
        phase: whether this happened in backward.
        operator, place: the forward function, and the call of it.
        where: the indices of the first elements, in the tensor.
        count, shape, dtype, device: the number of elements, and the tensor that holds them.
        operands: the computation that gave it, as text.
        too_large: whether the number was only too large for the dtype.
        infinite: the infinity, if every element that came in or was written down is this same infinity; else 0.
        tensor: the tensor that came in.
        is_nan: whether every element is NaN. An element that is infinite does not come from it.
        half: the birth of the NaN in the same call, of which this is the birth of the infinities.
        uninitialized: the call that handed out the memory of the tensor, if nothing has initialized it.
        optimizer: the name of the optimizer whose step made it, if one did.
        held: whether it was in `.grad` before a pass added to it.
        of_large: whether a number that it was made of was large already.
        base: the tensor that `tensor` is a view of.
        kept_in: the buffer of a module that kept it since.
        in_backward: the multiplication in backward that turned it into a gradient that is not finite, as text.
        made_of: the infinities that the code wrote down and that it was made of.
        watch: stands for the watch that found it.
        number: the position in order of time.
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
    is_nan: bool = False
    half: Birth | None = None
    uninitialized: str = ""
    optimizer: str = ""
    held: bool = False
    of_large: bool = False
    base: weakref.ref[Tensor] | None = None
    kept_in: weakref.ref[Tensor] | None = None
    in_backward: str = ""
    made_of: tuple[Birth, ...] = ()
    watch: object = None
    number: int = field(default_factory=itertools.count().__next__)

    @property
    def kind_if_used(self) -> Literal["undefined", "overflow", "bad input"]:
        """The kind of the origin if the loss uses the elements."""
        if self.nature != "made":
            return "bad input"
        return "overflow" if self.too_large else "undefined"


@dataclass(frozen=True, eq=False)
class Provenance:
    """The births that a tensor's NaN and infinities come from, and the path that each took to the tensor."""

    paths: Mapping[Birth, tuple[str, ...]]

    @property
    def births(self) -> tuple[Birth, ...]:
        """All births, each once."""
        return tuple(self.paths)


def joined(provenances: Iterable[Provenance], step: str = "", born: Collection[Birth] = ()) -> Provenance:
    """The provenance of a result of several tensors. If a birth took several paths, the longest is kept; of equals, the
    first.

    Args:
        provenances: those of the tensors.
        step: the user's function that the result comes from, if there is one.
        born: the births in that function.
    """
    each = list(dict.fromkeys(provenances))
    if len(each) == 1 and not born:
        for path in each[0].paths.values():
            if _grows(path, step):
                break
        else:
            return each[0]  # a deep graph shares it
    paths: dict[Birth, tuple[str, ...]] = {}
    for provenance in each:
        for birth, path in provenance.paths.items():
            longer = (*path, step) if _grows(path, step) else path
            if birth not in paths or len(longer) > len(paths[birth]):
                paths[birth] = longer
    for birth in born:
        paths.setdefault(birth, (step,))
    return Provenance(paths)


def _grows(path: tuple[str, ...], step: str) -> bool:
    """Whether a step makes a path longer."""
    return bool(step) and len(path) < MOST_STEPS and path[-1:] != (step,)


def without(provenance: Provenance, births: Collection[Birth]) -> Provenance:
    """The provenance without some births."""
    return Provenance({birth: path for birth, path in provenance.paths.items() if birth not in births})


@dataclass
class Provenances:
    """The provenances of all tensors that exist."""

    _by_memory: dict[int, tuple[StorageWeakRef, Provenance]] = field(default_factory=dict)
    _swept: int = 64

    def __bool__(self) -> bool:
        return bool(self._by_memory)

    def of(self, tensor: Tensor) -> Provenance | None:
        """The provenance of a tensor, or None if nothing is known of it."""
        if not self._by_memory:
            return None
        known = self._by_memory.get(memory(tensor)._cdata)
        return known[1] if known is not None else None

    def of_each(self, tensors: Iterable[Tensor]) -> list[Provenance]:
        """The provenances of those tensors that have one."""
        return [provenance for provenance in map(self.of, tensors) if provenance is not None]

    def keep(self, tensor: Tensor, provenance: Provenance) -> None:
        storage = memory(tensor)
        self._by_memory[storage._cdata] = StorageWeakRef(storage), provenance
        if len(self._by_memory) > 2 * self._swept:  # seldom enough that a sweep costs nothing per tensor
            for key in [key for key, (memory, _) in self._by_memory.items() if memory.expired()]:
                del self._by_memory[key]
            self._swept = max(64, len(self._by_memory))

    def forget(self, tensor: Tensor) -> None:
        self._by_memory.pop(memory(tensor)._cdata, None)

    def clear(self) -> None:
        self._by_memory.clear()
