"""Births of NaN and infinity, and which of them each tensor that is not finite comes from.

A tensor is identified by its memory, so a view, a saved tensor and a detached one have the same provenance. When the
memory is freed, its provenance is forgotten.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..program.code import Place
from ..program.tensors import memory

MOST_STEPS = 40
"""The largest number of steps of a path that are kept."""

NANS, OTHERS, LEAVES_OUT = 1, 2, 4
"""Kinds of births: of NaN alone, all other births, and infinities with which code may leave elements out."""

Kind = Literal["contaminated", "undefined", "overflow", "bad input"]
"""The kind of a birth that reached the loss or a gradient."""

Nature = Literal["made", "given", "meant"]
"""An operator made it from finite numbers; it came in with data; or the code has this infinity as a constant."""


@dataclass(eq=False)
class Birth:
    """Where a number that is not finite was made or came in. If it reaches the loss or a gradient, it is an origin.

    Attributes:
        nature: made by an operator, given with data, or meant, as a constant in the code.
        phase: whether this happened in forward or in backward.
        operator, place: the forward function, and the place of its call.
        where: the indices of the first elements, in the tensor.
        count, shape, dtype, device: the number of elements, and the tensor that holds them.
        operands: the computation that produced it, as text.
        too_large: whether the number was only too large for the dtype.
        infinite: the infinity, if every element that came in, or is a constant, is this same infinity; else 0.
        tensor: the tensor that came in.
        is_nan: whether every element is NaN. An infinite element of a result does not come from such a birth.
        half: if this is the birth of a call's infinities, the birth of the NaN in the same call.
        uninitialized: the call that handed out the memory of the tensor, if nothing has initialized it.
        optimizer: the name of the optimizer whose step made it, if one did.
        held: whether it was in `.grad` before a backward pass added to `.grad`.
        of_large: whether one of the operands was already large.
        base: the tensor that `tensor` is a view of.
        kept_in: the buffer of a module that has kept it since.
        in_backward: the multiplication in backward that turned it into a NaN or infinite gradient, as text.
        made_of: the constant infinities in the code that it was made from.
        watch: an object that identifies the watch that found it.
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

    @property
    def leaves_out(self) -> bool:
        """Whether it is an infinity with which code may leave elements out."""
        return self.nature == "meant" or self.infinite == -math.inf


class _History:
    """Births in the order in which they came together, and the steps that were taken since.

    Attributes:
        births: the births.
        joined: by birth, its position, its path until it joined the others, and the number of steps taken by then.
        steps: the steps. Each made the paths of all births that had joined longer, up to `MOST_STEPS`.
    """

    def __init__(self) -> None:
        self.births: list[Birth] = []
        self.joined: dict[Birth, tuple[int, tuple[str, ...], int]] = {}
        self.steps: list[str] = []


class Provenance:
    """The births that a tensor's NaN and infinities come from, and the path that each took to the tensor.

    A provenance is the beginning of a history. If code adds up many terms, the births of each term join one after the
    other. The provenance of each partial sum is then a longer beginning of the same history, so no birth is copied.
    Only one provenance can continue a history. If a tensor is used a second time, the result continues a copy.

    Args:
        paths: by birth, its path. With `before`, only the births that join.
        before: the provenance to continue.
        step: the step to add to all paths of `before`; empty to add no step.

    Attributes:
        kinds: which of `NANS`, `OTHERS` and `LEAVES_OUT` are among the births, added up.
    """

    __slots__ = ("_continued", "_count", "_end", "_history", "_shortest", "_taken", "kinds")

    def __init__(
        self, paths: Mapping[Birth, tuple[str, ...]], before: Provenance | None = None, step: str = ""
    ) -> None:
        self._end: str | None = None if before is None else step or before._end
        """The last step of each path that can still grow; None if they differ, or a path is empty."""
        self._shortest: int = MOST_STEPS if before is None else before._shortest + bool(step)
        """No path is shorter."""
        self.kinds: int = 0 if before is None else before.kinds
        history = _History() if before is None else before._to_continue()
        if step:
            history.steps.append(step)
        for birth, path in paths.items():
            history.joined[birth] = len(history.births), path, len(history.steps)
            history.births.append(birth)
            if len(path) < MOST_STEPS:
                end = path[-1] if path else None
                self._end = end if end == self._end or self._shortest == MOST_STEPS else None
            self._shortest = min(self._shortest, len(path))
            self.kinds |= (NANS if birth.is_nan else OTHERS) | (LEAVES_OUT if birth.leaves_out else 0)
        self._history, self._count, self._taken = history, len(history.births), len(history.steps)
        self._continued = [history]

    def _to_continue(self) -> _History:
        """The history, for the first that asks; a copy for all others."""
        try:
            return self._continued.pop()  # at once: backward may run in several threads
        except IndexError:
            copy = _History()
            copy.births = self._history.births[: self._count]
            copy.joined = {birth: self._history.joined[birth] for birth in copy.births}
            copy.steps = self._history.steps[: self._taken]
            return copy

    @property
    def births(self) -> tuple[Birth, ...]:
        """All births, without duplicates."""
        return tuple(self._history.births[: self._count])

    @property
    def first(self) -> Birth:
        """The first birth."""
        return self._history.births[0]

    @property
    def paths(self) -> Mapping[Birth, tuple[str, ...]]:
        """By birth, its path."""
        return {birth: self.path_of(birth) for birth in self.births}

    def path_of(self, birth: Birth) -> tuple[str, ...]:
        """The path of one of the births."""
        _, path, at = self._history.joined[birth]
        return (*path, *self._history.steps[at : min(self._taken, at + MOST_STEPS - len(path))])

    def __contains__(self, birth: Birth) -> bool:
        found = self._history.joined.get(birth)
        return found is not None and found[0] < self._count

    def continued(self, step: str, paths: Mapping[Birth, tuple[str, ...]]) -> Provenance:
        """This provenance after one more step, with the births that join. If nothing changes, the same object."""
        grows = bool(step) and self._end != step and self._shortest < MOST_STEPS
        if not paths and not grows:
            return self  # a deep graph shares it
        if grows and self._end is None:  # some paths may end with the step already
            return Provenance({birth: _longer(path, step) for birth, path in self.paths.items()} | {**paths})
        return Provenance(paths, self, step if grows else "")


def _longer(path: tuple[str, ...], step: str) -> tuple[str, ...]:
    """A path after one more step."""
    return (*path, step) if step and len(path) < MOST_STEPS and path[-1:] != (step,) else path


def joined(provenances: Iterable[Provenance], step: str = "", born: Collection[Birth] = ()) -> Provenance:
    """The provenance of a result of several tensors. If a birth took several paths, the longest is kept; of equals, the
    first.

    Args:
        provenances: those of the tensors.
        step: the user's function that returned the result, if there is one.
        born: the births in that function.
    """
    each = list(dict.fromkeys(provenances))
    if not each:
        return Provenance(dict.fromkeys(born, (step,)))
    largest = max(each, key=attrgetter("_count", "_taken"))
    shared = {birth for one in each if one is not largest for birth in one.births if birth in largest}
    paths: dict[Birth, tuple[str, ...]] = {}
    for one in each:
        for birth in shared if one is largest else one.births:
            path = _longer(one.path_of(birth), step)
            if birth not in paths or len(path) > len(paths[birth]):
                paths[birth] = path
    for birth in born:
        if birth not in largest:
            paths.setdefault(birth, (step,))
    if any(paths[birth] != _longer(largest.path_of(birth), step) for birth in shared):
        return Provenance({birth: _longer(path, step) for birth, path in largest.paths.items()} | paths)
    return largest.continued(step, {birth: path for birth, path in paths.items() if birth not in shared})


def all_births(provenances: Iterable[Provenance]) -> dict[Birth, None]:
    """The births of several provenances, without duplicates."""
    return dict.fromkeys(birth for provenance in provenances for birth in provenance.births)


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
        """The provenance of a tensor; None if it is unknown."""
        if not self._by_memory:
            return None
        known = self._by_memory.get(memory(tensor)._cdata)
        return known[1] if known is not None else None

    def of_each(self, tensors: Iterable[Tensor]) -> list[Provenance]:
        """The provenances of all tensors that have a provenance."""
        return [provenance for provenance in map(self.of, tensors) if provenance is not None]

    def keep(self, tensor: Tensor, provenance: Provenance) -> None:
        storage = memory(tensor)
        self._by_memory[storage._cdata] = StorageWeakRef(storage), provenance
        if len(self._by_memory) > 2 * self._swept:  # seldom enough that a sweep costs nothing per tensor
            for key in [key for key, (memory, _) in self._by_memory.items() if memory.expired()]:
                del self._by_memory[key]
            self._swept = max(64, len(self._by_memory))

    def exists(self, key: int | None) -> bool:
        """Whether a tensor with a provenance still exists in this memory."""
        known = None if key is None else self._by_memory.get(key)
        return known is not None and not known[0].expired()

    def forget(self, tensor: Tensor) -> None:
        self._by_memory.pop(memory(tensor)._cdata, None)

    def clear(self) -> None:
        self._by_memory.clear()
