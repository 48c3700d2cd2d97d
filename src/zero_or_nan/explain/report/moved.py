"""Writes a call of the user's own function with an argument in float64 that is moved a little, near a limit.

It is for a formula that is not finite, but whose loss and gradients have a limit: a rotation as a function of equal
singular values. All calls run again, from the first call to the loss. With the argument moved to one side, the loss and
gradients must be near the limit. With the argument moved to the other side, they must be near it, too, or the loss must
be NaN.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...ignoring.inside import tree_map
from ..births.call import Call
from ..births.chain import Chain
from ..program.functions import OnlyCall, only_calls_around
from ..program.tensors import each_in
from .again import Calls, Change, Program, agree, once_more
from .exact import texts_of
from .limits import drawn

_STEP = 1e-6
"""The distance by which an argument is moved."""

_MOST_ALONE = 6
"""The largest number of arguments for which each is also moved alone."""


def with_moved_arguments(failed: Chain, program: Program) -> tuple[str, int, int | None] | None:
    """The lines that call a function with a moved argument, and the numbers of the first and the last line.

    The last number is None if there is only one line. The result is None if no such lines are known to be right.

    Args:
        failed: the calls that led to a number that is not finite.
        program: all known calls.
    """
    has_masks = any(each.dtype is torch.bool for _, call in program.calls for each in call.tensors())
    limits = None if has_masks else program.at_limits
    for call in _calls_around(failed) if limits is not None else ():
        if call.decides:
            continue  # beside the number, a comparison may come out in another way, as may one that gave a mask
        given = _Arguments.of(call, program.calls)
        names = [*given.found]
        alone = [[name] for name in names] if len(names) <= _MOST_ALONE else []
        for move, moved in itertools.product(_MOVES, [*alone, names]):
            for way in _ways(call, program.calls, given, move, moved):
                found = once_more(program, converted=way.converted, changed=way.changed)
                if found is not None and agree(found, limits, 2e-3):
                    back = once_more(program, converted=way.opposite.converted, changed=way.changed)
                    if agree(back, limits, 2e-3) or back is not None and bool(back.outcome.value.isnan().any()):
                        text = f"{_TO_A_LIMIT}\n# Tried in float64: {found.told}\n{way.line}"
                        return text, call.node.lineno, call.until
    return None


_TO_A_LIMIT = """\
# the loss or a gradient has a limit here, but the formula gives no number. This
# call gives nearly the limit, because an argument is moved a little."""


class _Move(NamedTuple):
    """How an argument is moved.

    Attributes:
        form: what to write, as in `OnlyCall.with_arguments`.
        by: what the steps of the numbers are multiplied by.
    """

    form: str
    by: Change


def _noise(argument: Tensor) -> Tensor:
    return drawn(torch.randn, argument, torch.Generator().manual_seed(0))


_MOVES = (
    _Move("{} + 1e-6", torch.ones_like),
    _Move("{} - 1e-6", lambda argument: -torch.ones_like(argument)),
    _Move("{0} + 1e-6 * torch.randn_like({0})", _noise),
)


def _calls_around(failed: Chain) -> list[OnlyCall]:
    """The calls of the user's functions with which a chain begins, from the inside out."""
    functions = {call.place.code: call.place for call in failed.calls()}
    return [*{call.node: call for place in functions.values() for call in only_calls_around(place)}.values()]


class _Arguments(NamedTuple):
    """The tensors among the arguments of a call.

    Attributes:
        inside: the positions of the calls during this one.
        made: the identities of what these gave.
        found: by parameter, the tensors that they read.
    """

    inside: set[int]
    made: set[int]
    found: dict[str, list[Tensor]]

    @classmethod
    def of(cls, call: OnlyCall, calls: Calls) -> _Arguments:
        inside = {at for at, (_, each) in enumerate(calls) if call.has(each.place)}
        made = {calls[at][0] for at in inside}
        found: dict[str, list[Tensor]] = {}
        containers = set[str]()
        for at in inside:
            for thing, text in texts_of(calls[at][1]):
                if isinstance(thing, Tensor) and thing.is_floating_point() and _VIEW.fullmatch(text):
                    name = re.split(r"\W", text, maxsplit=1)[0]
                    if not made & {id(thing), id(thing._base)}:
                        for parameter in call.parameters_of(name, calls[at][1].place):
                            found.setdefault(parameter, []).append(thing)
                            containers |= {parameter} if _is_item(thing, text) else set()
        found = {name: things for name, things in found.items() if name not in containers}
        return cls(inside, made, found)

    def identities(self, names: Collection[str]) -> set[int]:
        """Of the tensors for some parameters, and of what they are views of."""
        return {id(it) for name in names for each in self.found[name] for it in (each, each._base) if it is not None}


class _Way(NamedTuple):
    """A line with arguments in float64, of which some are moved.

    Attributes:
        line: the line, with the conversions.
        changed: by position, the calls in which the source has `x.dtype`, with float64.
        inside: the positions of the calls during this one.
        wide, moved: the identities of the arguments that are wider, and of those that are moved.
        by: how arguments are moved.
        back: the identities of results that get the dtype back that they had.
        step: how far.
    """

    line: str
    changed: Mapping[int, Call]
    inside: set[int]
    wide: set[int]
    moved: set[int]
    by: Change
    back: set[int] = set()
    step: float = _STEP

    @property
    def opposite(self) -> _Way:
        """The way that moves the arguments to the other side."""
        return self._replace(step=-self.step)

    def converted(self, at: int, tensor: Tensor) -> Change | None:
        """What changes an operand of a call; None for one that is left as it is."""
        either = {id(tensor), id(tensor._base)}
        if at not in self.inside:
            return (lambda it: it.to(tensor.dtype)) if either & self.back else None
        if either & self.moved:
            return self._move
        return Tensor.double if either & self.wide and tensor.dtype is not torch.float64 else None

    def _move(self, argument: Tensor) -> Tensor:
        wide = argument.double()
        return wide + self.step * self.by(wide.detach())


def _ways(call: OnlyCall, calls: Calls, given: _Arguments, move: _Move, moved: Collection[str]) -> Iterator[_Way]:
    """The lines with which the tensors among the arguments of a call are in float64, and some are moved.

    Args:
        call: the call.
        calls: all calls that are known.
        given: the arguments of the call.
        move: how arguments are moved.
        moved: by parameter, which.
    """
    wide = [name for name, things in given.found.items() if any(it.dtype is not torch.float64 for it in things)]
    forms = dict.fromkeys(wide, "{}.double()")
    forms |= {name: move.form.replace("}", "}.double()", 1) if name in forms else move.form for name in moved}
    line = call.with_arguments(forms)
    is_other = call.rounds or call.reads_dtype or any(_has_limit_of_dtype(calls[at][1]) for at in given.inside)
    if not line or is_other:
        return
    changed = {at: each for at in given.inside if (each := _with_float64(calls[at][1])) is not None}
    way = _Way(line, changed, given.inside, given.identities(wide), given.identities(moved), move.by)
    yield way
    outside = [each for at, (_, each) in enumerate(calls) if at not in given.inside]
    if call.names:
        beside = [each for each in outside if call.is_beside(each.place)]
        text, back = _names_back(call.names, beside, given.made)
        if back:
            yield way._replace(line=f"{line}\n{text}", back=back)
    used = {id(it): it for each in outside for it in each.tensors() if id(it) in given.made}
    methods = {_METHODS.get(it.dtype, "") for it in used.values()}
    is_one = len({each.place for key, each in calls if key in used}) == 1  # of several results, one would come back
    line = call.with_arguments(forms, methods.pop()) if is_one and len(methods) == 1 else ""
    if line:
        yield way._replace(line=line, back=given.made)


def _names_back(names: Sequence[str], calls: Sequence[Call], made: set[int]) -> tuple[str, set[int]]:
    """A line that gives some variables the dtype back that they had, and the identities of what it converts.

    Args:
        names: the variables.
        calls: those that come after the line.
        made: the identities of what the variables may be.
    """
    found: dict[str, Tensor] = {}
    for thing, text in (pair for call in calls for pair in texts_of(call)):
        name = re.split(r"\W", text, maxsplit=1)[0]
        is_view = isinstance(thing, Tensor) and _VIEW.fullmatch(text) and {id(thing), id(thing._base)} & made
        if is_view and name in names and thing.dtype in _METHODS:
            found.setdefault(name, thing)
    converted = [f"{name}.{_METHODS[found[name].dtype]}()" for name in names if name in found]
    line = f"{', '.join(name for name in names if name in found)} = {', '.join(converted)}"
    return line, {id(it) for each in found.values() for it in (each, each._base) if id(it) in made}


_VIEW = re.compile(
    r"\w+(\.m?[TH]\b|\.(t|transpose|permute|flatten|squeeze|unsqueeze|view|reshape|expand)\([-\w, ]*\)|\[[^][]*\])*"
)
"""Matches a name, or a view of it with the same dtype."""

_METHODS = {torch.float64: "double", torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16"}


def _is_item(thing: object, text: str) -> bool:
    """Whether an expression is an item of a list or a dictionary: an index of a tensor gives a view, or is a call."""
    return text.endswith("]") and isinstance(thing, Tensor) and thing._base is None


def _has_limit_of_dtype(call: Call) -> bool:
    """Whether a call has a number that the program may have read from the dtype: `torch.finfo(x.dtype).eps`."""
    infos = [torch.finfo(each.dtype) for each in call.tensors() if each.is_floating_point()]
    limits = {number for info in infos for number in (info.eps, 1 - info.eps, info.tiny)}
    return not limits.isdisjoint(each_in((tuple(call.args), dict(call.kwargs)), float))


def _with_float64(call: Call) -> Call | None:
    """A call with float64 in place of each dtype that the source reads from a tensor, as `x.to(q.dtype)` does."""
    taken = [thing for thing, text in texts_of(call) if isinstance(thing, torch.dtype) and text.endswith(".dtype")]
    if not taken:
        return None
    args, kwargs = tree_map(
        lambda thing: torch.float64 if any(thing is each for each in taken) else thing,
        (tuple(call.args), dict(call.kwargs)),
    )
    return call._replace(args=args, kwargs=kwargs)
