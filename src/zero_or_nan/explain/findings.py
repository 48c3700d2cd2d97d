"""What one watch has found out so far. The watch owns these objects, and gives them to the parts that need them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from torch import Tensor

from ..ignoring.engine.problems import REPORT
from .places import Place, is_recomputed, printable
from .provenance import Birth, Provenance, Provenances
from .tensors import Masks, address, is_finite, memory, numbers_of, tensors_in

T = TypeVar("T")

_MOST_UNCONSUMED = 1000


class Scope:
    """The thread in which a block runs, until the block ends."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.is_over = False

    def is_here(self) -> bool:
        """Whether the block still runs, in the thread that asks."""
        return not self.is_over and threading.get_ident() == self._thread


class Mistakes:
    """Exceptions in the code of `explain` itself: they must never become the user's."""

    are_raised = False
    """Whether a mistake is raised, as tests want it, instead of a warning."""

    def __init__(self) -> None:
        self._first: tuple[str, Exception] | None = None

    def note(self, name: str, error: Exception) -> None:
        """Remember a mistake, and where it happened. Only the first is reported: later ones may follow from it."""
        if self.are_raised:
            raise error
        self._first = self._first or (name, error)

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """While entered, a mistake is noted, and ends only this block."""
        try:
            yield
        except Exception as error:
            self.note(name, error)

    def warn(self, stacklevel: int) -> None:
        if self._first is not None:
            name, error = self._first
            what = printable(f"{name} ({type(error).__name__}: {error})")
            why = f"This is a bug in zero_or_nan; please report it at {REPORT}"
            if isinstance(error, (RecursionError, MemoryError)):
                why = "It needs some memory and some room on the stack, and the code that it watched left too little"
            warnings.warn(f"explain failed at {what}. {why}. The report may be incomplete", stacklevel=stacklevel + 1)


class Births:
    """The births so far, one for each call.

    Attributes:
        in_backward: whether a backward pass is running.
    """

    def __init__(self) -> None:
        self.in_backward = False
        self._watch = object()
        self._by_call: WeakValueDictionary[tuple[Any, ...], Birth] = WeakValueDictionary()
        self._collecting: list[list[Birth]] = []

    def known(self, birth: Birth) -> Birth:
        """The birth, or the earlier one if a checkpoint in backward only repeats the call."""
        birth.watch = self._watch
        place = birth.place
        key = birth.operator, place.code, place.instruction, place.module, birth.half is not None
        if self.in_backward:
            if is_recomputed():
                return self._by_call.get(key, birth)
            birth.phase = "backward"
        self._by_call[key] = birth
        for births in self._collecting:
            births.append(birth)
        return birth

    def own(self, notes: Sequence[T], birth_of: Callable[[T], Birth]) -> list[T]:
        """The notes on a node that this watch made, or else all: then an earlier block made them.

        If a block is inside of another, both describe the same calls.
        """
        return [note for note in notes if birth_of(note).watch is self._watch] or [*notes]

    @contextmanager
    def collected(self) -> Iterator[list[Birth]]:
        """While entered, the list gets every new birth."""
        births: list[Birth] = []
        self._collecting.append(births)
        try:
            yield births
        finally:
            self._collecting[:] = [each for each in self._collecting if each is not births]


class Findings:
    """What is known of the tensors of a block.

    Attributes:
        births: all births.
        provenances: those of the tensors that are not finite.
        secondhand: provenances of tensors that are finite, but were computed from the gradient of a loss that was not.
        uninitialized: provenances of tensors whose memory was not finite when PyTorch handed it out.
        masks: of which elements of the tensors are not finite.
        unconsumed: by memory, the provenances of results that no function has used yet.
        carries: whether any node carries a note about elements that are not finite.
        compiled_at: the call of the last compiled region.
        in_compiled: whether the backward of a compiled region is running. Its functions are not the user's.
    """

    def __init__(self) -> None:
        self.births = Births()
        self.provenances = Provenances()
        self.secondhand = Provenances()
        self.uninitialized = Provenances()
        self.unconsumed: dict[int | None, Provenance] = {}
        self.masks = Masks()
        self.carries = False
        self.compiled_at: Place | None = None
        self.in_compiled = False

    def keep_result(self, tensor: Tensor, provenance: Provenance) -> None:
        """Keep the provenance of a result that no function has used yet."""
        self.provenances.keep(tensor, provenance)
        self.unconsumed[memory(tensor)._cdata] = provenance
        if len(self.unconsumed) > _MOST_UNCONSUMED:
            self.unconsumed.pop(next(iter(self.unconsumed)))

    def of_bad(self, value: Any) -> Provenance | None:
        """The provenance of a tensor that is not finite, if it is known."""
        here = numbers_of(value)
        return None if here is None or is_finite(here) else self.provenances.of(value)

    def consume(self, things: Any) -> None:
        """Note that a function has used these tensors."""
        for tensor in tensors_in(things):
            self.unconsumed.pop(address(tensor), None)

    def clear(self) -> None:
        self.provenances.clear()
        self.secondhand.clear()
        self.uninitialized.clear()
        self.unconsumed.clear()
        self.masks.clear()
