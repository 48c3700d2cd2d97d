"""Writes a line that leaves out the rows of a batch that are not finite, in all tensors that have these rows.

Only the user can say whether such a row may be left out. If it may, the loss of the other rows alone is right. The line
comes after the variables get their values. All later calls run again, with the other rows only. The loss and its
gradients must then be finite, and no data may still have all rows.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import torch
from torch import Tensor

from ...ignoring.inside import is_wrapped
from ..births.arithmetic import number
from ..program.code import Place, of_variables
from ..program.source import after_bindings, free_name
from ..program.tensors import node_of
from .advice import MOST_ELEMENTS, NOTHING_TRIED, Advice
from .again import Program, once_more


def without_rows(is_bad: Callable[[Tensor], bool], frame: FrameType | None, program: Program, filename: str) -> Advice:
    """What to write to leave out the rows that are not finite.

    Args:
        is_bad: whether a tensor holds the NaN or infinity in question.
        frame: the user's frame. The variable that holds the rows is in this frame, or in the frame of a caller.
        program: all known calls.
        filename: the file in which the line must be.
    """
    while frame is not None:
        data = of_variables(frame, lambda pairs: [pair for pair in pairs if _is_data(pair[1])])
        bad = [(name, tensor) for name, tensor in data if is_bad(tensor)]
        if bad:
            here = Place(frame.f_code, frame.f_lasti, None)
            found = (_without(name, tensor, data, here, program) for name, tensor in bad if here.filename == filename)
            return next((advice for advice in found if advice.remedy), NOTHING_TRIED)
        frame = frame.f_back
    return NOTHING_TRIED


def _without(name: str, tensor: Tensor, data: Sequence[tuple[str, Tensor]], place: Place, program: Program) -> Advice:
    """What to write to leave out the rows of one tensor, and those of other data, such as targets, if they are used."""
    finite = torch.isfinite(tensor)
    kept = finite.flatten(1).all(1) if tensor.dim() > 1 else finite
    alike = {each: other for each, other in data if len(other) == len(tensor)}
    if bool(kept.all()) or not bool(kept.any()) or sum(map(torch.numel, alike.values())) > MOST_ELEMENTS:
        return NOTHING_TRIED
    for names in ([each for each, other in alike.items() if other is tensor], sorted(alike)):
        statement = after_bindings(names, place)
        if statement is None:
            continue
        calls = program.calls
        before = [at for at, (_, call) in enumerate(calls) if call.place.code is place.code]
        begin = 1 + max((at for at in before if calls[at][1].place.line < statement.lineno), default=-1)
        value = _tried(
            Program(calls[begin:], program.loss, program.callers),
            {id(alike[each]): alike[each][kept] for each in names},
            len(tensor),
        )
        if value is not None:
            draws = sum(call.drawn is not None for _, call in calls[begin:])
            told = f"value {number(value)}" if draws < 2 else "a finite loss"  # fewer rows draw fewer numbers
            return _written(names, name, kept, tensor.dim(), told, place, statement.lineno)
    return NOTHING_TRIED


def _is_data(thing: object) -> bool:
    """Whether a variable is a tensor with rows that was not computed from parameters."""
    if not isinstance(thing, Tensor) or thing.layout is not torch.strided or is_wrapped(thing):
        return False
    return thing.dim() > 0 and not thing.requires_grad


def _tried(program: Program, given: Mapping[int, Tensor], count: int) -> float | None:
    """The loss with other tensors, by identity; None if it or a gradient is not finite, or if data has all rows still.

    Integers may be the numbers of rows, which then mean other rows.

    Args:
        program: the calls that run again.
        given: the tensors without some rows.
        count: the number of all rows.
    """
    results = [each for _, call in program.calls for each in call.tensors() if node_of(each) is not None]
    if any(each._version > program.writes[id(each)] for each in results):
        return None  # the program wrote into a result by a call that is not among these
    found = once_more(program, lambda tensor: given.get(id(tensor), tensor))
    if found is None or not found.outcome.gradients or not found.outcome.is_finite:
        return None
    data = [each for each in found.kept if _is_data(each)]
    is_left = any(len(each) == count or each.dtype in (torch.int64, torch.int32) for each in data)
    return None if is_left else float(found.outcome.value)


def _written(names: Sequence[str], own: str, kept: Tensor, dim: int, told: str, place: Place, line: int) -> Advice:
    which = free_name("kept", place)
    count = len(kept) - int(kept.sum())
    lines = [
        f"# if rows of {own} that are not finite may be left out, {count} of {len(kept)} here.",
        f"# Tried on your numbers: {told}, and finite gradients",
        f"{which} = {own}.isfinite(){'.flatten(1).all(1)' if dim > 1 else ''}",
        f"{', '.join(names)} = {', '.join(f'{name}[{which}]' for name in names)}",
        linecache.getline(place.filename, line).strip(),
    ]
    return Advice("\n".join(lines), line)
