"""A batch with rows that are not finite: a line that leaves these rows out, of all tensors that have them.

Only the user can say whether such a row may be left out. If it may, the loss of the other rows alone is right. The line
stands where the variables have got their values. All calls after it run once more, with the other rows: the loss must
be finite then, and its gradients, and no data may be left that still has all rows.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import torch
from torch import Tensor

from ...ignoring.inside import is_wrapped, tree_map_only
from ..births.arithmetic import number
from ..program.code import Place, of_variables
from ..program.rerun import on_copies, without_side_effects
from ..program.source import after_bindings, free_name
from ..program.tensors import are_finite
from .conversion import Calls
from .trial import MOST_ELEMENTS, NOTHING_TRIED, Advice


def without_rows(is_bad: Callable[[Tensor], bool], frame: FrameType | None, calls: Calls, filename: str) -> Advice:
    """What to write to leave out the rows that are not finite.

    Args:
        is_bad: whether it is the NaN or infinity in question that a tensor holds.
        frame: the user's frame. The variable that holds the rows is there, or in the frame of a caller.
        calls: all calls that are known, each with the identity of its result.
        filename: the file in which the line must be.
    """
    while frame is not None:
        data = of_variables(frame, lambda pairs: [pair for pair in pairs if _is_data(pair[1])])
        bad = [(name, tensor) for name, tensor in data if is_bad(tensor)]
        if bad:
            here = Place(frame.f_code, frame.f_lasti, None)
            found = (_without(name, tensor, data, here, calls) for name, tensor in bad if here.filename == filename)
            return next((advice for advice in found if advice.remedy), NOTHING_TRIED)
        frame = frame.f_back
    return NOTHING_TRIED


def _without(name: str, tensor: Tensor, data: Sequence[tuple[str, Tensor]], place: Place, calls: Calls) -> Advice:
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
        before = [at for at, (_, call) in enumerate(calls) if call.place.code is place.code]
        begin = 1 + max((at for at in before if calls[at][1].place.line < statement.lineno), default=-1)
        value = _tried(calls[begin:], {id(alike[each]): alike[each][kept] for each in names}, len(tensor))
        if value is not None:
            return _written(names, name, kept, tensor.dim(), value, place, statement.lineno)
    return NOTHING_TRIED


def _is_data(thing: object) -> bool:
    """Whether a variable is a tensor with rows that was not computed from parameters."""
    if not isinstance(thing, Tensor) or thing.layout is not torch.strided or is_wrapped(thing):
        return False
    return thing.dim() > 0 and not thing.requires_grad


def _tried(calls: Calls, given: Mapping[int, Tensor], count: int) -> float | None:
    """The loss with other tensors, by identity; None if it or a gradient is not finite, or if data has all rows still.

    Args:
        calls: those that run again, if one of their operands changes.
        given: the tensors without some rows.
        count: the number of all rows.
    """
    now, leaves, loss = dict(given), dict[int, Tensor](), None

    def put(tensor: Tensor) -> Tensor:
        if id(tensor) not in now and tensor.requires_grad and id(tensor) not in leaves:
            leaves[id(tensor)] = on_copies(tensor).detach().requires_grad_()
        return now.get(id(tensor), leaves.get(id(tensor), tensor))

    try:
        with without_side_effects(), torch.enable_grad():
            for key, call in calls:
                operands = call.tensors()
                if not any(id(each) in now for each in operands):
                    continue
                if any(id(each) not in now and _is_data(each) and len(each) == count for each in operands):
                    return None
                args, kwargs = tree_map_only(Tensor, put, (tuple(call.args), dict(call.kwargs)))
                result = call.again(args, kwargs)
                if isinstance(result, Tensor):
                    now[key] = result
                    loss = result if result.numel() == 1 and result.requires_grad else loss
            if loss is None or not leaves:
                return None
            gradients = torch.autograd.grad(loss, list(leaves.values()), torch.ones_like(loss), allow_unused=True)
    except Exception:  # the code may be the user's, and may not take so few rows
        return None
    found = [loss.detach(), *(each for each in gradients if each is not None)]
    return float(loss.detach()) if are_finite(found) else None


def _written(names: Sequence[str], own: str, kept: Tensor, dim: int, value: float, place: Place, line: int) -> Advice:
    which = free_name("kept", place)
    count = len(kept) - int(kept.sum())
    lines = [
        f"# if rows of {own} that are not finite may be left out, {count} of {len(kept)} here.",
        f"# Tried on your numbers: value {number(value)}, and finite gradients",
        f"{which} = {own}.isfinite(){'.flatten(1).all(1)' if dim > 1 else ''}",
        f"{', '.join(names)} = {', '.join(f'{name}[{which}]' for name in names)}",
        linecache.getline(place.filename, line).strip(),
    ]
    return Advice("\n".join(lines), line)
