"""Moves an argument of one of the user's functions a little, where the loss and its gradients have a limit.

It is for a formula that is not finite, such as a rotation as a function of equal singular values. The function computes
in float64. All calls run again, up to the loss. With the argument moved to one side, the loss and its gradients must be
near the limit. With the argument moved to the other side, they must be near it, too, or the loss must be NaN.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import re
import textwrap
from collections.abc import Collection
from types import CodeType

import torch
from torch import Tensor

from ..births.chain import Chain
from .again import Again, Change, Program, agree
from .exact import texts_of
from .limits import drawn
from .wider import around, decorated, first_line, fits_in, function_of, in_dtype, inside_of

_STEP = 1e-6
"""The distance by which an argument is moved."""

_MOST_ALONE = 6
"""The largest number of arguments for which each is also moved alone."""

_NEAR = 2e-3
"""The largest relative distance from the limit."""


def _noise(argument: Tensor) -> Tensor:
    return drawn(torch.randn, argument, torch.Generator().manual_seed(0))


_MOVES: dict[str, Change] = {
    "{0} = {0} + 1e-6": torch.ones_like,
    "{0} = {0} - 1e-6": lambda argument: -torch.ones_like(argument),
    "{0} = {0} + 1e-6 * torch.randn_like({0})": _noise,
}
"""By the line that moves an argument, the direction of the move."""

_OTHERS = (_noise, _STEP), (_noise, -_STEP), (torch.ones_like, 100 * _STEP)
"""More moves, each a direction and a distance. All must give nearly the same if the limit is not known."""

_CODE = """\
# the loss or a gradient has a limit here, but the formula gives no number. This
# function gives nearly the limit, because an argument is moved a little.
# Tried in float64: {}
from zero_or_nan import in_float64

{}
{}"""


def with_moved_arguments(failed: Chain, program: Program, is_known: bool) -> tuple[str, int, int | None] | None:
    """The head of a function that moves an argument, and the numbers of the first and the last line of the head.

    The last number is None if there is only one line. The result is None if no such lines are known to be right.

    Args:
        failed: the calls that led to a number that is not finite.
        program: all known calls.
        is_known: whether the limit must be known. If not, it is enough that the loss and its gradients are nearly the
            same for different moves, and that no numbers are compared, because a comparison may choose a branch.
    """
    has_masks = any(each.dtype is torch.bool for _, call in program.calls for each in call.tensors())
    limits = None if has_masks else program.at_limits
    if limits is None and (is_known or program.compares):
        return None
    place = failed.call.place
    for code in dict.fromkeys(each for call in failed.calls() for each in reversed(around(call, program))):
        node = function_of(code, place)
        body = [] if node is None else node.body[ast.get_docstring(node) is not None :]
        last = body[0].lineno - 1 if body else 0
        if node is None or last < node.lineno:
            continue
        inside = inside_of(code, program) or set()
        given = _given(node, code, program, inside)
        alone = [[name] for name in given] if len(given) <= _MOST_ALONE else []
        for (form, by), names in itertools.product(_MOVES.items(), [*alone, [*given]]):
            moved = {id(it) for name in names for each in given[name] for it in (each, each._base) if it is not None}
            there, back = (_run(program, inside, moved, by, step) for step in (_STEP, -_STEP))
            is_end = limits is not None and back is not None and bool(back.outcome.value.isnan().any())
            known = limits or there
            is_limit = agree(there, known, _NEAR) and (agree(back, known, _NEAR) or is_end)
            others = [] if limits is not None or not is_limit else _OTHERS
            is_limit &= all(agree(_run(program, inside, moved, *each), known, _NEAR) for each in others)
            if names and there is not None and is_limit:
                first = first_line(node)
                lines = "".join(linecache.getline(place.filename, at) for at in range(first, last + 1))
                head = decorated(textwrap.dedent(lines).rstrip(), "float64")
                moves = textwrap.indent("\n".join(form.format(name) for name in names), "    ")
                text = _CODE.format(there.told, head, moves)
                if fits_in(place, text, first, last):
                    return text, first, last if last > first else None
    return None


def _run(program: Program, inside: Collection[int], moved: Collection[int], by: Change, step: float) -> Again | None:
    """What the program gives if some tensors are moved for some of its calls, which run in float64."""

    made = {program.calls[at][0] for at in inside}  # a view that was made inside is of what has been moved

    def change(at: int, tensor: Tensor) -> Change | None:
        is_moved = at in inside and id(tensor) not in made and not {id(tensor), id(tensor._base)}.isdisjoint(moved)
        return (lambda argument: argument + step * by(argument.detach())) if is_moved else None

    return in_dtype(torch.float64, program, inside, change)


def _given(node: ast.FunctionDef, code: CodeType, program: Program, inside: Collection[int]) -> dict[str, list[Tensor]]:
    """By parameter of a function, the tensors that its lines read under this name.

    A parameter that the function passes on counts if another function reads it as a parameter of the same name.
    """
    stored = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    arguments = [it for each in ast.walk(node) if isinstance(each, ast.Call) for it in each.args]
    passed = {each.id for each in arguments if isinstance(each, ast.Name)} - stored
    made = {program.calls[at][0] for at in inside}
    found: dict[str, list[Tensor]] = {}
    for at in inside:
        _, call = program.calls[at]
        for thing, text in texts_of(call):
            if not isinstance(thing, Tensor) or not thing.is_floating_point() or _VIEW.fullmatch(text) is None:
                continue
            name, is_item = re.split(r"\W", text, maxsplit=1)[0], text.endswith("]") and thing._base is None
            is_here = call.place.code is code or name in passed and name in _parameters(call.place.code)
            if is_here and not is_item and name in _parameters(code) and not made & {id(thing), id(thing._base)}:
                found.setdefault(name, []).append(thing)
    return found


def _parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


_VIEW = re.compile(
    r"\w+(\.m?[TH]\b|\.(t|transpose|permute|flatten|squeeze|unsqueeze|view|reshape|expand)\([-\w, ]*\)|\[[^][]*\])*"
)
"""Matches a name, or a view of it with the same dtype."""
