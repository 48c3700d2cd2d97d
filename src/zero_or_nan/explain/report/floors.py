"""A small number that keeps a divisor, or the argument of a logarithm, away from 0: a new one, or a larger one.

float16 rounds an eps of 1e-8 to 0. If the line does not work in float32 either, because the slope of 1e8 does not fit
the gradient, the smallest power of 10 that works is a choice.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ...ignoring.inside import tree_map_only
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain, Run
from ..program.source import expression_at, with_each
from ..program.tensors import each_in, not_finite
from .exact import CLOSE, Lost, Outcome, measured, outcome, texts_of

_FLOORS = {torch.float64: 1e-12, torch.float32: 1e-6}
"""What is added to a positive number that underflowed. Smaller dtypes get 1e-3."""


def floor_under(lost: Lost, chain: Chain) -> str:
    """The line that lost a positive number, with a floor under it; empty if that does not help, or can't be written."""
    if lost.call is None or lost.result is None or lost.fits:
        return ""
    expression = expression_at(lost.call.place, lost.call.name)
    if expression is None or not expression.is_whole or bool((lost.result < 0).any() or lost.result.isinf().any()):
        return ""
    floor = _FLOORS.get(lost.result.dtype, 1e-3)
    key = next(key for key, (tensor, _) in chain.made.items() if tensor is lost.result)
    run = chain.run(given={key: lost.result + floor})
    if any(bool(not_finite(each).any()) for each in outcome(run).parts):
        return ""
    return expression.replaced_by(f"{ast.unparse(expression.node)} + {number(floor)}")


class Constant(NamedTuple):
    """A small number in the program that its dtype rounds to 0."""

    call: Call
    key: int
    value: float


def constant_lost(lost: Lost | None, chain: Chain) -> Constant | None:
    """The number whose rounding to 0 lost a number, if it is an operand of the call that lost it."""
    if lost is None or lost.call is None or lost.result is None:
        return None
    key = next(key for key, (tensor, _) in chain.made.items() if tensor is lost.result)
    numbers = each_in((lost.call.args, lost.call.kwargs), float)
    small = [each for each in numbers if each > 0 and float(torch.tensor(each, dtype=lost.result.dtype)) == 0]
    return Constant(lost.call, key, small[0]) if small else None


def larger_constant(constant: Constant, chain: Chain) -> tuple[str, int] | None:
    """The line with the smallest power of 10 that works, what it gives, and its number; None if none does."""
    call, before = constant.call, outcome(chain.run())
    for exponent in range(-7, -1):
        value = 10.0**exponent
        run = _with(value, constant, chain)
        if _is_right(outcome(run), before):
            break
    else:
        return None
    expression = expression_at(call.place, call.name)
    text = next((text for thing, text in texts_of(call) if isinstance(thing, float) and thing == constant.value), None)
    if expression is None or text is None or call.place.filename != chain.call.place.filename:
        return None
    begin, end = expression.start, expression.end
    code = with_each(expression.line[begin:end], {text: number(value)})
    found, gradient = measured(before, run)
    dtype = str(chain.made[constant.key][0].dtype).removeprefix("torch.")
    why = f"# a choice: {number(value)}, because {dtype} rounds {number(constant.value)} to 0"
    told = f"{why}. Tried on your numbers: value {number(found)}, gradient {number(gradient)}"
    return f"{told}\n{expression.line[:begin]}{code}{expression.line[end:]}", call.place.line


def _with(value: float, constant: Constant, chain: Chain) -> Run:
    """A run with another value of the number."""

    def changed(thing: Any) -> Any:
        return value if thing == constant.value else thing

    args, kwargs = tree_map_only(float, changed, (tuple(constant.call.args), dict(constant.call.kwargs)))
    tensor, call = chain.made[constant.key]
    made = {**chain.made, constant.key: (tensor, call._replace(args=args, kwargs=kwargs))}
    return replace(chain, made=made).run()


def _is_right(now: Outcome, before: Outcome) -> bool:
    """Whether all is finite, and the values that were finite before are nearly the same."""
    was, close = before.value, CLOSE[before.value.dtype]
    known = torch.isfinite(was)
    is_finite = not any(bool(not_finite(each).any()) for each in now.parts)
    return is_finite and torch.allclose(now.value[known], was[known], rtol=close, atol=close)
