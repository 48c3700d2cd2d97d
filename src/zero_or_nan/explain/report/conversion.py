"""Converts the operands of a line to a wider dtype, and checks whether all later calls accept the result.

The calls of the line, and those after the line, run again. If one matrix of a product is then in float64 and the other
in float32, the product raises an error. In that case, the other matrix is converted, too, if it is in the line, or the
result of the line is converted back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...ignoring.inside import tree_map, tree_map_only
from ..births.call import Call
from ..births.chain import Chain, view_like
from ..program.code import Place
from ..program.rerun import on_copies, rerun
from ..program.source import closed
from ..program.tensors import NeedsOthersError, each_in
from .exact import texts_of

Calls = Sequence[tuple[int, Call]]
"""Calls in order of time, each with the identity of its result."""

Change = Callable[[Tensor], Tensor]
"""A function that is applied to an operand before a call reads it."""


class Line(NamedTuple):
    """A line whose operands are converted, or a function in which operands are converted from a line on.

    Attributes:
        first: a call of the line.
        dtype: the dtype to which smaller dtypes are converted.
        is_from_here: whether the operands in the rest of the function are converted, too.
        goes_back: which result is converted back to its own dtype: that of the line, or of the function; or none.
        is_alone: whether the other calls of the line stay unchanged.
        skipped: the places of calls whose operands are not converted, each with the name of its function.
    """

    first: Call
    dtype: torch.dtype
    is_from_here: bool = False
    goes_back: Literal["", "line", "function"] = ""
    is_alone: bool = False
    skipped: frozenset[tuple[Place, str]] = frozenset()

    def has(self, call: Call) -> bool:
        """Whether the operands of a call are converted."""
        if (call.place, call.name) in self.skipped:
            return False
        if self.is_alone:
            return call.is_again(self.first)
        return self._is_later(call) if self.is_from_here else call.is_beside(self.first)

    def is_within(self, call: Call) -> bool:
        """Whether a call gets the wider results without a conversion back."""
        if not self.goes_back:
            return True
        return self._is_later(call) if self.goes_back == "function" else call.is_beside(self.first)

    def _is_later(self, call: Call) -> bool:
        begin = self.first.place
        return call.place.code is begin.code and call.place.line >= begin.line

    def _narrows(self, text: str) -> bool:
        return closed(text) == text and _NARROW[self.dtype].search(text) is not None

    def converted(self, calls: Calls) -> dict[int, Tensor] | None:
        """By identity, the operands that are converted; None if a call then raises an error.

        An operand is not converted if another conversion has already made it wider.
        """
        wide: dict[int, Tensor] = {}
        found: dict[int, Tensor] = {}
        end = 1 + max((at for at, (_, call) in enumerate(calls) if self.is_within(call)), default=-1)
        for key, call in calls[:end]:
            is_here = self.has(call)

            def put(tensor: Tensor, is_here: bool = is_here) -> Tensor:
                value = _now(tensor, wide)
                if is_here and is_smaller(value, self.dtype):
                    found[id(tensor)] = tensor
                    value = value.to(self.dtype)
                return value

            is_new = any(_now(each, wide) is not each for each in call.tensors())
            if (is_here or is_new) and has_limit_of_dtype(call):
                return None  # in another dtype, the program has another limit
            if not is_here and any(self._narrows(text) for thing, text in texts_of(call) if _is_wider(thing, wide)):
                return None  # in the program, x.float() was x itself, and therefore no call
            try:
                if is_here or is_new:
                    args, kwargs = tree_map_only(Tensor, put, (tuple(call.args), dict(call.kwargs)))
                    with rerun():
                        result: Any = call.again(on_copies(args), on_copies(kwargs))
                    if isinstance(result, Tensor):
                        wide[key] = result
            except NeedsOthersError:
                continue
            except Exception:  # the code may be the user's
                return None
        return found

    def changes(self, calls: Calls) -> Callable[[int, Tensor], Change | None]:
        """What becomes of an operand of the call at a position, before the call reads it; None if nothing does."""
        made = {key for key, call in calls if self.goes_back and self.is_within(call)}

        def change(at: int, tensor: Tensor) -> Change | None:
            call = calls[at][1]
            if self.has(call):
                return (lambda it: it.to(self.dtype)) if is_smaller(tensor, self.dtype) else None
            is_back = bool(made & {id(tensor), id(tensor._base)}) and not self.is_within(call)
            return (lambda it: it.to(tensor.dtype)) if is_back else None

        return change

    def converts(self, chain: Chain) -> Chain:
        """The chain with conversions before the calls of the line, and after the line if its result is converted back.

        Raises:
            RuntimeError: if a call does not accept the dtype.
        """
        wide = self.converted(calls_of(chain))
        if wide is None:
            raise RuntimeError(f"a call does not accept {self.dtype}")
        changed = chain.through(wide, lambda each: each.to(self.dtype), self.has)
        if not self.goes_back:
            return changed
        # `to` may return the same tensor, but a chain distinguishes tensors by their identity. So `copy=True`.
        results = {key: tensor for key, (tensor, call) in chain.made.items() if self.is_within(call)}
        dtype = next((each.dtype for each in results.values()), None)

        def is_outside(call: Call) -> bool:
            return not self.is_within(call)

        return changed.through(results, lambda each: each.to(dtype=dtype, copy=True), is_outside)


def has_limit_of_dtype(call: Call) -> bool:
    """Whether a call has a number that the program may have read from the dtype: `torch.finfo(x.dtype).eps`."""
    infos = [torch.finfo(each.dtype) for each in call.tensors() if each.is_floating_point()]
    limits = {number for info in infos for number in (info.eps, 1 - info.eps, info.tiny)}
    return not limits.isdisjoint(each_in((tuple(call.args), dict(call.kwargs)), float))


_NARROW = {
    torch.float64: re.compile(r"\.(float|half|bfloat16)\(\)$|\.to\((dtype=)?torch\.(b?float(16|32)?|half)\)$"),
    torch.float32: re.compile(r"\.(half|bfloat16)\(\)$|\.to\((dtype=)?torch\.(b?float16|half)\)$"),
}
"""By dtype, an expression that matches the source of a conversion to a smaller dtype."""


def _is_wider(thing: object, wide: dict[int, Tensor]) -> bool:
    return isinstance(thing, Tensor) and is_smaller(thing, _now(thing, wide).dtype)


def calls_of(chain: Chain) -> Calls:
    """The calls of a chain."""
    return [*((key, call) for key, (_, call) in chain.made.items()), (0, chain.call)]


def _now(tensor: Tensor, wide: dict[int, Tensor]) -> Tensor:
    """What a tensor is now, or the tensor that it views."""
    base = tensor._base
    if id(tensor) in wide or base is None or id(base) not in wide:
        return wide.get(id(tensor), tensor)
    return view_like(wide[id(base)], tensor)


def is_smaller(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor has a smaller floating-point dtype."""
    is_float = tensor.is_floating_point() and tensor.dtype is not dtype
    return is_float and torch.promote_types(tensor.dtype, dtype) is dtype


def with_dtype(call: Call, dtype: torch.dtype) -> Call | None:
    """A call with a wider dtype in place of each dtype that the source reads from a tensor, as `x.to(q.dtype)` does."""
    taken = [thing for thing, text in texts_of(call) if isinstance(thing, torch.dtype) and text.endswith(".dtype")]
    if not taken:
        return None
    args, kwargs = tree_map(
        lambda thing: dtype if any(thing is each for each in taken) else thing, (tuple(call.args), dict(call.kwargs))
    )
    return call._replace(args=args, kwargs=kwargs)
