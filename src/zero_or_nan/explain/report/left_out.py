"""Finds a harmless number for elements that the loss leaves out, or should leave out.

`(k >= 0) * sqrt(k)` multiplies a NaN by 0, but 0 times NaN is NaN. And -inf leaves an element out of a softmax, but 0
times -inf is NaN, too. In both cases, the calls run again up to the loss, each time with another number in this place.
If the loss and its gradients are finite and always the same, they do not depend on the number.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...functions.rewrites import REWRITES, Rewrite
from ...ignoring.inside import tree_map_only
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain
from ..program.code import Place
from ..program.source import closed, expression_at, is_rebound, reads, with_each_in
from ..program.tensors import not_finite
from .again import Change, Program, agree, once_more, position_of
from .exact import outcome, texts_of
from .gaps import rewritten
from .limits import are_limits
from .matching import Match, line_of, matches

_SAME = 1e-5
"""The largest relative difference between losses with different numbers that counts as none."""

_NUMBERS = (0.01, 3.0, 50.0)
"""The numbers that replace the NaN. There are three, because a clamp may map two numbers to the same result."""

_LARGE = {torch.float16: 1e4}
"""The size of the number that replaces an infinity. Other dtypes get 1e9."""


def without_them(
    failed: Call, program: Program, known: str | None, holds: Callable[[Rewrite, Match], bool]
) -> tuple[str, int] | None:
    """The line of a call with a harmless number in place of elements that later calls leave out, and its number.

    None if the loss depends on the number, or if no rewrite of the line produces such a number. If a line is `known`
    from elsewhere, only this line may be the result.
    """
    at = position_of(failed, program.calls)
    call = None if at is None else program.calls[at][1]
    if at is None or call is None or call.plan.in_place or not program.fails_again:
        return None
    right, *others, below = (once_more(program, changed={at: _with_number(call, each)}) for each in (*_NUMBERS, -3.0))
    if right is None or not all(agree(each, right, _SAME) for each in others):
        return None
    if below is not None and below.outcome.is_finite and not agree(below, right, _SAME):
        return None  # a logarithm may follow, which takes no negative number
    for rewrite in REWRITES.get(call.name, ()):
        for match in matches(rewrite.pattern, call, Chain(call), Match({}, ())):
            line, replaces = line_of(rewrite, match)
            if replaces is None or known not in (None, line):
                continue
            changed = {at: rewritten(call, rewrite, match)}
            is_left_out = agree(once_more(program, changed=changed), right, _SAME) and holds(rewrite, match)
            if is_left_out and _is_limit(changed, program):
                tried = f"{', '.join(map(number, _NUMBERS))} and this line give the same gradients here"
                return f"# what follows leaves this element out: {tried}.\n# Tried: {right.told}\n{line}", replaces
    return None


def data_left_out(
    place: Place, name: str, is_bad: Callable[[Tensor], bool], program: Program
) -> tuple[str, int] | None:
    """The line that reads data, with 0 in place of NaN and infinities in them, and its number.

    None if the loss depends on the number, as far as several numbers show. Some are from the data, so that they are not
    all on one side of a clamp.

    Args:
        place, name: of the calls that read the data.
        is_bad: whether a tensor has the NaN or infinity in question.
        program: all known calls.
    """
    every = {at: call for at, (_, call) in enumerate(program.calls) if (call.place, call.name) == (place, name)}
    pairs = (pair for call in every.values() for pair in texts_of(call))
    tensors = [(each, text) for each, text in pairs if isinstance(each, Tensor) and each.layout is torch.strided]
    bad = {text: each for each, text in tensors if is_bad(each)}
    expression = expression_at(place, name)
    if expression is None or not program.fails_again:
        return None
    for text, data in bad.items():
        part = expression.line[expression.start : expression.end]
        if reads(part, text) > [other for _, other in texts_of(next(iter(every.values())))].count(text):
            continue  # as in x - x.nanmean()
        here = {at: {id(thing) for thing, other in texts_of(call) if other == text} for at, call in every.items()}
        known = data[data.isfinite()].detach().double()
        typical = [float(each) for each in (known.min(), known.median(), known.max())] if len(known) else []
        puts = [_put(value, here) for value in (0.0, *_NUMBERS, -3.0, *typical)]
        right, *others = (once_more(program, converted=put) for put in puts)
        line = with_each_in([expression], {text: f"{closed(text)}.nan_to_num(0, 0, 0)"})
        is_same = all(agree(each, right, 0.0, 0.0) for each in others)  # a small element may change beside a large one
        if right is not None and line is not None and is_same:
            why = f"# what follows leaves out what is not finite in {text}: other numbers give the same gradients."
            return f"{why}\n# Tried with 0: {right.told}\n{line}", place.line
    return None


def _put(value: float, here: Mapping[int, set[int]]) -> Callable[[int, Tensor], Change | None]:
    """Puts a number in place of NaN and infinities, for the calls at some positions, in the tensors of an identity."""

    def converted(at: int, tensor: Tensor) -> Change | None:
        is_here = id(tensor) in here.get(at, ())
        return (lambda data: torch.where(not_finite(data), value, data)) if is_here else None

    return converted


def masked_before(chains: Sequence[Chain], program: Program) -> tuple[str, int] | None:
    """The line of the failed call, with the mask of a later line in it, and its number; None without such a mask.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
        program: all calls that are known.
    """
    failed = chains[-1].call
    bad = not_finite(outcome(chains[-1].run()).value)
    expression = expression_at(failed.place, failed.name)
    if expression is None or not expression.is_whole or expression.has_scope:
        return None
    operands = {text for _, text in texts_of(failed)}
    for later in reversed(chains[:-1]):
        for mask, text in texts_of(later.call) if later.call.name == "mul" else ():
            is_here = later.call.place.code is failed.place.code and text.isidentifier()
            is_operand = text in operands  # p * log(p) has no mask
            if not is_here or is_operand or not _leaves_out(mask, bad):
                continue
            if is_rebound(text, failed.place, later.call.place):
                continue
            with_mask = _with_mask(mask, failed, 0.0)
            is_finite = all(outcome(each.with_calls(with_mask).run()).is_finite for each in chains)
            if is_finite and _is_left_out(mask, failed, program):
                told = f"# {text} is 0 here, and line {later.call.place.line} multiplies by it, but 0 times NaN is NaN."
                safe = f"torch.where({text} == 0, 0, {ast.unparse(expression.node)})"
                tried = "# Tried on your numbers, what follows is finite, with finite gradients:"
                return f"{told}\n{tried}\n{expression.replaced_by(safe)}", failed.place.line
    return None


def _leaves_out(mask: Any, bad: Tensor) -> bool:
    """Whether a factor is 0, or False, for each of these elements, and not for all that there are."""
    if not isinstance(mask, Tensor) or mask.requires_grad or mask.shape != bad.shape:
        return False
    return bool((mask[bad] == 0).all()) and bool((mask != 0).any())


def _with_mask(mask: Tensor, at: Call, value: float) -> Callable[[Call], Call]:
    """Makes the result of one call a number where a mask is 0."""

    def changed(call: Call) -> Call:
        def run(*args: Any, **named: Any) -> Any:
            return torch.where(mask == 0, value, call.func(*args, **named))

        return call._replace(func=run) if call.is_again(at) else call

    return changed


def _is_left_out(mask: Tensor, failed: Call, program: Program) -> bool:
    """Whether the loss does not depend on a result where a mask is 0, as far as that is known."""
    at = position_of(failed, program.calls)
    if at is None or not program.fails_again:
        return False
    call = program.calls[at][1]
    one, *others = (once_more(program, changed={at: _with_mask(mask, call, value)(call)}) for value in (0.0, 3.0, -3.0))
    if one is None or not one.outcome.is_finite:
        return True
    is_limit = _is_limit({at: _with_mask(mask, call, 0.0)(call)}, program)
    return is_limit and all(agree(other, one, _SAME) for other in others)


def _is_limit(changed: Mapping[int, Call], program: Program) -> bool:
    """Whether calls in place of others give the limits of the loss and its gradients, wherever there are limits.

    A factor 0 leaves an element out. But a / b * b has a limit where b is 0, and the loss may mean this limit.
    """
    now = once_more(program, dtype=torch.float64, changed=changed)
    return now is None or are_limits(now.slopes, program.limits)


def with_large_numbers(failed: Call, program: Program) -> tuple[str, int] | None:
    """An earlier line with a large number for an infinity, and its line number; None if the loss depends on it."""
    last = position_of(failed, program.calls)
    if last is None or not program.fails_again:
        return None
    for at in range(last + 1)[::-1]:
        call = program.calls[at][1]
        infinity = call.infinite_number()
        if infinity is None or math.isnan(infinity) or call.place.filename != failed.place.filename:
            continue
        dtypes = [each.dtype for each in call.tensors()] or [call.kwargs.get("dtype")]
        large = math.copysign(_LARGE.get(dtypes[0], 1e9), infinity)
        every = {at: each for at, (_, each) in enumerate(program.calls) if each.is_again(call)}  # the line is for all
        right = once_more(program, changed={at: _with_one(each, infinity, large) for at, each in every.items()})
        several = {at: _with_several(each, large) for at, each in every.items()}
        if right is None or not agree(once_more(program, changed=several), right, _SAME):
            continue
        text = next((text for thing, text in texts_of(call) if isinstance(thing, float) and thing == infinity), "")
        line = with_each_in([expression_at(call.place, call.name)], {text: number(large)}) if text else None
        if line is not None:
            told = f"# 0 times an infinity is NaN, and 0 times a large number is 0. Tried on your numbers: {right.told}"
            return f"{told}\n{line}", call.place.line
    return None


def _with_number(call: Call, value: float) -> Call:
    """A call that gives a number where its result is not finite, without a gradient there."""

    def run(*args: Any, **named: Any) -> Tensor:
        bad = not_finite(call.func(*args, **named).detach())

        def safe(tensor: Tensor) -> Tensor:
            return torch.where(bad, 0.5, tensor) if tensor.is_floating_point() else tensor

        args, named = tree_map_only(Tensor, safe, (args, named))
        return torch.where(bad, value, call.func(*args, **named))

    return call._replace(func=run)


def _with_one(call: Call, infinity: float, large: float) -> Call:
    """A call with a large number in place of an infinity among its arguments."""
    args = tuple(call.args), dict(call.kwargs)
    args, kwargs = tree_map_only(float, lambda each: large if each == infinity else each, args)
    return call._replace(args=args, kwargs=kwargs)


def _with_several(call: Call, large: float) -> Call:
    """A call that gives other large numbers, which all differ, in place of each infinity."""
    most = large if abs(large) < 1e9 else 1e3 * large  # the number must be large beside every other one

    def run(*args: Any, **named: Any) -> Tensor:
        result = call.func(*args, **named)
        count = torch.arange(result.numel(), device=result.device).reshape(result.shape)
        return torch.where(result.isinf(), most * (1 + count % 7 / 10), result)

    return call._replace(func=run)
