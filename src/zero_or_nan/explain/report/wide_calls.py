"""Writes a call of the user's own function with arguments in a wider dtype, perhaps moved a little.

A number may be lost in a line of one function, and be needed in a line of another. Then no change of a single line
there repairs the formula, but the line that calls the outer function can pass wider arguments. All calls run again,
from the first call to the loss. The loss and its gradients must be those of a run in float64, and must not depend on
how float64 rounds.

If they are not finite in float64 either, but have a limit, then moving an argument leads near this limit.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..births.call import Call
from ..births.chain import Chain
from ..program.functions import OnlyCall, only_calls_around
from ..program.source import expression_at
from .again import Program, agree, once_more, position_of
from .conversion import Calls, Change, has_limit_of_dtype, is_smaller, with_dtype
from .exact import texts_of
from .limits import drawn
from .widening import METHODS, VIEW, is_item

_STEP = 1e-6
"""The distance by which an argument is moved."""

_MOST_ALONE = 6
"""The largest number of arguments for which each is also moved alone."""


def with_wider_arguments(failed: Chain, program: Program) -> tuple[str, int, int | None] | None:
    """The lines that call a function with wider arguments, and the numbers of the first and the last line.

    The last number is None if there is only one line. The result is None if no such lines are known to be right.

    Args:
        failed: the calls that led to a number that is not finite. The number may have been lost in any of them.
        program: all known calls.
    """
    calls = program.calls
    ways = [way for call in _calls_around(failed) for way in _ways(call, calls, _Arguments.of(call, calls))]
    exact = program.exact if ways else None
    if exact is None or not program.has_digits:
        return None
    for way in ways:
        found = once_more(program, converted=way.converted, changed=way.changed)
        if found is not None and agree(found, exact, 1e-4 if way.dtype is torch.float64 else 2e-2):
            dtype = str(way.dtype).removeprefix("torch.")
            tried = f"# tried on your numbers, with {dtype} in this call: {found.told}"
            return f"{tried}\n{way.line}", way.call.node.lineno, way.call.until
    return None


def with_moved_arguments(failed: Chain, program: Program) -> tuple[str, int, int | None] | None:
    """The lines that call a function with a slightly moved argument, in float64. Returns as `with_wider_arguments`.

    They are for a formula that is not finite, but whose loss and gradients have a limit: a rotation as a function of
    equal singular values. With the argument moved to one side, the loss and gradients must be near the limit. With the
    argument moved to the other side, they must be near it, too, or the loss must be NaN.
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


def with_a_wider_conversion(failed: Call, program: Program) -> tuple[str, int, None] | None:
    """The line of a conversion to float16, with float32 instead, and its number; None if that may be wrong."""
    expression = expression_at(failed.place, failed.name)
    if expression is None or not isinstance(expression.node, ast.Call):
        return None
    code, count = re.subn(r"\.half\(\)$|\.to\(torch\.(float16|half)\)$", ".float()", ast.unparse(expression.node))
    at = position_of(failed, program.calls) if count else None
    if at is None or not program.fails_again:
        return None
    call = program.calls[at][1]
    wide, exact = (
        once_more(
            program, changed={at: call._replace(func=lambda it, *_, dtype=dtype, **__: it.to(dtype))}, dtype=of_all
        )
        for dtype, of_all in ((torch.float32, None), (torch.float64, torch.float64))
    )
    if not agree(wide, exact, 2e-2):
        return None
    assert wide is not None
    tried = f"# tried on your numbers, in float32: {wide.told}"
    return f"{tried}\n{expression.replaced_by(code)}", failed.place.line, None


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
                if isinstance(thing, Tensor) and thing.is_floating_point() and VIEW.fullmatch(text):
                    name = re.split(r"\W", text, maxsplit=1)[0]
                    if not made & {id(thing), id(thing._base)}:
                        for parameter in call.parameters_of(name, calls[at][1].place):
                            found.setdefault(parameter, []).append(thing)
                            containers |= {parameter} if is_item(thing, text) else set()
        found = {name: things for name, things in found.items() if name not in containers}
        return cls(inside, made, found)

    def identities(self, names: Collection[str]) -> set[int]:
        """Of the tensors for some parameters, and of what they are views of."""
        return {id(it) for name in names for each in self.found[name] for it in (each, each._base) if it is not None}


class _Way(NamedTuple):
    """A line with wider arguments.

    Attributes:
        call: the call of the function.
        line: the line, with the conversions.
        dtype: the wider dtype.
        changed: by position, the calls in which the source has `x.dtype`, with the wider dtype.
        inside: the positions of the calls during this one.
        wide, moved: the identities of the arguments that are wider, and of those that are moved.
        back: the identities of results that get the dtype back that they had.
        by: how arguments are moved.
        step: how far.
    """

    call: OnlyCall
    line: str
    dtype: torch.dtype
    changed: dict[int, Call]
    inside: set[int]
    wide: set[int]
    moved: set[int]
    back: set[int] = set()
    by: Change = torch.zeros_like
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
        return (lambda it: it.to(self.dtype)) if either & self.wide and is_smaller(tensor, self.dtype) else None

    def _move(self, argument: Tensor) -> Tensor:
        wide = argument.to(self.dtype)
        return wide + self.step * self.by(wide.detach())


def _ways(
    call: OnlyCall, calls: Calls, given: _Arguments, move: _Move | None = None, moved: Collection[str] = ()
) -> Iterator[_Way]:
    """The lines with which the tensors among the arguments of a call are wider, and some are moved.

    Args:
        call: the call.
        calls: all calls that are known.
        given: the arguments of the call.
        move: how arguments are moved.
        moved: by parameter, which.
    """
    dtypes = {each.dtype for things in given.found.values() for each in things}
    dtype = torch.float64 if moved or dtypes <= {torch.float32, torch.float64} else torch.float32
    wide = [name for name, things in given.found.items() if any(is_smaller(each, dtype) for each in things)]
    forms = dict.fromkeys(wide, f"{{}}.{METHODS[dtype]}()")
    for name in moved:
        assert move is not None
        forms[name] = move.form.replace("}", f"}}.{METHODS[dtype]}()", 1) if name in forms else move.form
    line = call.with_arguments(forms) if forms else ""
    is_other = call.rounds or call.reads_dtype or any(has_limit_of_dtype(calls[at][1]) for at in given.inside)
    if line and not is_other:
        changed = {at: each for at in given.inside if (each := with_dtype(calls[at][1], dtype)) is not None}
        way = _Way(call, line, dtype, changed, given.inside, given.identities(wide), given.identities(moved))
        way = way if move is None else way._replace(by=move.by)
        yield way
        outside = [each for at, (_, each) in enumerate(calls) if at not in given.inside]
        if call.names:
            beside = [each for each in outside if call.is_beside(each.place)]
            text, back = _names_back(call.names, beside, given.made)
            if back:
                yield way._replace(line=f"{line}\n{text}", back=back)
        used = {id(it): it for each in outside for it in each.tensors() if id(it) in given.made}
        methods = {METHODS.get(it.dtype, "") for it in used.values()}
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
        is_view = isinstance(thing, Tensor) and VIEW.fullmatch(text) and {id(thing), id(thing._base)} & made
        if is_view and name in names and thing.dtype in METHODS:
            found.setdefault(name, thing)
    converted = [f"{name}.{METHODS[found[name].dtype]}()" for name in names if name in found]
    line = f"{', '.join(name for name in names if name in found)} = {', '.join(converted)}"
    return line, {id(it) for each in found.values() for it in (each, each._base) if id(it) in made}
