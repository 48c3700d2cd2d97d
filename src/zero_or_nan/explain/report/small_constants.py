"""A larger constant, where the dtype rounded a small one to 0, and a floor under a number that underflowed.

A small eps keeps a divisor, or the argument of a logarithm, away from 0, but float16 rounds an eps of 1e-8 to 0. The
new eps is a choice: the smallest power of 10 that works.
"""

from __future__ import annotations

import ast

import torch

from ...ignoring.inside import tree_map_only
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain
from ..program.source import expression_at, with_each
from ..program.tensors import each_in
from .exact import CLOSE, Lost, measured, outcome, texts_of

_FLOORS = {torch.float64: 1e-12, torch.float32: 1e-6}
"""The floor that is added to a positive number that underflowed. Smaller dtypes get 1e-3."""


def floor_under(lost: Lost, chain: Chain) -> str:
    """The line that lost a positive number, plus a small floor; empty if this does not help, or can't be written."""
    if lost.key is None or lost.fits:
        return ""
    result, call = chain.made[lost.key]
    expression = expression_at(call.place, call.name)
    if expression is None or not expression.is_whole or bool((result < 0).any() or result.isinf().any()):
        return ""
    floor = _FLOORS.get(result.dtype, 1e-3)
    if not outcome(chain.run(given={lost.key: result + floor})).is_finite:
        return ""
    return expression.replaced_by(f"{ast.unparse(expression.node)} + {number(floor)}")


def constant_lost(lost: Lost | None, chain: Chain) -> float | None:
    """The constant that the dtype rounded to 0, if it is an operand of the call that lost a number."""
    if lost is None or lost.key is None:
        return None
    result, call = chain.made[lost.key]
    numbers = each_in((call.args, call.kwargs), float)
    return next((each for each in numbers if each > 0 and float(torch.tensor(each, dtype=result.dtype)) == 0), None)


def larger_constant(constant: float, lost: Lost, chain: Chain) -> tuple[str, int, int | None] | None:
    """The line with the smallest power of 10 that works, with its result, and the line's number; None if none works."""
    assert lost.key is not None
    result, call = chain.made[lost.key]
    before = outcome(chain.run())
    known, close = torch.isfinite(before.value), CLOSE[before.value.dtype]
    for value in (10.0**exponent for exponent in range(-7, -1)):

        def changed(each: Call, value: float = value) -> Call:
            args = each.args, dict(each.kwargs)
            args, kwargs = tree_map_only(float, lambda thing: value if thing == constant else thing, args)
            return each._replace(args=args, kwargs=kwargs) if each is call else each

        run = chain.with_calls(changed).run()
        now = outcome(run)
        if now.is_finite and torch.allclose(now.value[known], before.value[known], rtol=close, atol=close):
            break
    else:
        return None
    expression = expression_at(call.place, call.name)
    text = next((text for thing, text in texts_of(call) if isinstance(thing, float) and thing == constant), None)
    if expression is None or text is None or call.place.filename != chain.call.place.filename:
        return None
    begin, end = expression.start, expression.end
    code = with_each(expression.line[begin:end], {text: number(value)})
    found, gradient = measured(before, run)
    dtype = str(result.dtype).removeprefix("torch.")
    why = f"# a choice: {number(value)}, because {dtype} rounds {number(constant)} to 0"
    told = f"{why}. Tried on your numbers: value {number(found)}, gradient {number(gradient)}"
    return f"{told}\n{expression.line[:begin]}{code}{expression.line[end:]}", call.place.line, None
