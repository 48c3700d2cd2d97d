"""Fills a gap in a formula, such as 0 / 0, with lines that compute the limit at the gap.

If a rewrite chooses another number than the limit, it is wrong. If no rewrite chooses the limit, a number from which
both operands come is kept away from 0. The formula itself then computes the limit, as well as its dtype allows. If this
number has both signs, the new line contains the limit and its slope.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functions.numerics import numerics_of
from ...functions.rewrites import Rewrite
from ..births.arithmetic import number
from ..births.call import Call, in_order
from ..births.chain import Chain
from ..program.constants import is_fixed
from ..program.source import closed, expression_at, with_each, with_each_in
from ..program.tensors import are_finite
from .exact import CLOSE, Outcome, gradients_of, measured, outcome, texts_of
from .limits import coming_in, have_limits, is_all, limit_and_slope, limits_of
from .matching import Match, line_of

_FILLED = "torch.where(b == 0, {}, a / torch.where(b == 0, 1, b))"

_STEPS = (1e-6, 1e-4, 1e-2)
"""The distances from 0 at which a number is kept. The first distance that is enough is used."""


def kept_away(chain: Chain) -> tuple[str, int] | None:
    """A line that keeps a number away from 0, so that a chain's last call returns the limit, and the line's number."""
    plain = chain.run()
    before = outcome(plain)
    bad = before.value.isnan()
    limits = limits_of(chain, bad)
    if not bool(bad.any()) or not are_finite(limits) or limits.is_complex():
        return None
    tensors = {id(tensor): tensor for call in chain.calls() for tensor in call.tensors()}
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and bool((tensor == 0).any()) and not bool((tensor < 0).any()):
            for step in _STEPS:
                found = _tried(chain, before, limits, tensor, step)
                line = None if found is None else _line(chain, key, step)
                if found is not None and line is not None:
                    text, code, at = line
                    why = f"# a choice: a number below {number(step)} in {text} counts as {number(step)}"
                    told = f"value {number(found[0])}, gradient {number(found[1])}"
                    return f"{why}, which gives the limit here. Tried on your numbers: {told}\n{code}", at
    return None


def _tried(chain: Chain, before: Outcome, limits: Tensor, tensor: Tensor, step: float) -> tuple[float, float] | None:
    """What a chain gives with a tensor that is kept away from 0, if the missing numbers are the limits then."""
    is_made = id(tensor) in chain.made
    changed = chain.through(
        {id(tensor): tensor}, lambda each: each.clamp_min(step), lambda call: is_made or call.is_beside(chain.call)
    )
    run = changed.run()
    after, bad = outcome(run), before.value.isnan()
    if not after.is_finite:
        return None
    is_near = torch.allclose(after.value[bad].double(), limits, rtol=1e-3, atol=1e-3)
    is_kept = torch.allclose(after.value[~bad], before.value[~bad], rtol=CLOSE.get(before.value.dtype, 1e-4))
    return measured(before, run) if is_near and is_kept and have_limits(chain, changed) else None


def _line(chain: Chain, key: int, step: float) -> tuple[str, str, int] | None:
    """What is kept away from 0, the line that does so, and its number."""
    bound = f".clamp_min({number(step)})"
    if key in chain.made:
        call = chain.made[key][1]
        expression = expression_at(call.place, call.name)
        if expression is None or not expression.is_whole or call.place.filename != chain.call.place.filename:
            return None
        text = ast.unparse(expression.node)
        return text, expression.replaced_by(closed(text) + bound), call.place.line
    beside = [call for call in chain.calls() if call.is_beside(chain.call)]
    texts = {text for call in beside for thing, text in texts_of(call) if id(thing) == key}
    expressions = [expression_at(call.place, call.name) for call in beside]
    if not all(each is not None and each.is_whole and not each.has_scope for each in expressions):
        return None
    line = with_each_in(expressions, {text: closed(text) + bound for text in texts})
    if line is None or len(texts) != 1:
        return None
    return texts.pop(), line, chain.call.place.line


def filled(chain: Chain) -> tuple[str, int] | None:
    """A line whose division returns the limit in place of 0 / 0, and its number; None if there is no common limit."""
    call, before = chain.call, outcome(chain.run())
    bad = before.value.isnan()
    operands = [each for each in in_order(call) if isinstance(each, Tensor)]
    is_real = not before.value.is_complex()
    if not numerics_of(call.name).divides or len(operands) < 2 or call.kwargs or not is_real or not bool(bad.any()):
        return None
    if _has_variables(chain):
        return None  # with another number, the formula has another limit
    limits = limits_of(chain, bad)
    for leaf in coming_in(chain):
        found = limit_and_slope(chain, leaf, bad) if leaf.is_floating_point() else None
        if found is None or not is_all(limits, found[0]):
            continue
        value, slope = (f"{each:.7g}" for each in found)
        is_flat = id(leaf) not in chain.wanted or not found[1]
        line = f"{value} + {slope} * (x - x.detach())".removeprefix("0 + ").replace("+ -", "- ")
        code = _FILLED.format(value if is_flat else line)
        names = dict(zip("abx", (*operands, leaf), strict=not is_flat))
        replaced = call._replace(func=evaluated(code, names), args=tuple(names.values()), kwargs={})
        changed = replace(chain, call=replaced)
        after = outcome(changed.run())
        is_kept = torch.equal(after.value[~bad], before.value[~bad])
        if after.is_finite and is_kept and have_limits(chain, changed):
            match = Match(names, (call, *(each for each in chain.calls()[1:] if each.is_beside(call))))
            text, at = line_of(Rewrite(ast.Pass(), code, ""), match)  # type: ignore[arg-type]
            told = f"{value} here" if is_flat else f"{value} here, with the slope {slope}"
            if at is not None:
                return f"# tried on your numbers: 0 / 0 has the limit {told}, measured beside it in float64\n{text}", at
    return None


def _has_variables(chain: Chain) -> bool:
    """Whether the source has a number in a formula that may be another one in the next run of the line."""
    pairs = ((thing, text, call) for call in chain.calls() for thing, text in texts_of(call))
    return any(isinstance(thing, (int, float)) and not is_fixed(text, call.place) for thing, text, call in pairs)


def evaluated(code: str, names: Iterable[str], others: Mapping[str, Any] = MappingProxyType({})) -> Callable[..., Any]:
    """A function that evaluates code. Its arguments get these names. The code also sees `others`, `torch` and `F`."""
    known = list(names)
    return lambda *values: eval(code, {"torch": torch, "F": F, **others, **dict(zip(known, values, strict=True))})


def rewritten(call: Call, rewrite: Rewrite, match: Match) -> Call:
    """A call that computes a rewrite, in place of the call that the rewrite matches."""
    tensors = {name: thing for name, thing in match.names.items() if isinstance(thing, Tensor)}
    func = evaluated(rewrite.code, tensors, match.names)
    return call._replace(func=func, args=tuple(tensors.values()), kwargs={})


class Guarded(NamedTuple):
    """A line in which `where` leaves out a gap, with both branches safe.

    Attributes:
        remedy, replaces: as in `Advice`.
        has_slope: whether the formula has another slope at the gap than the other branch, and so than `ignoring`.
    """

    remedy: str
    replaces: int
    has_slope: bool


def guarded(chains: Sequence[Chain]) -> Guarded | None:
    """A safe line for a division whose 0 / 0 `where` leaves out, if the formula has a limit and a slope there.

    In `where(x == 0, 0, (1 - cos(x)) / x)`, the formula tends to 0, as in the other branch, but its slope to 1 / 2.
    """
    later = next((each for each in reversed(chains[:-1]) if each.call.name == "where"), None)
    before = [] if later is None else [later.of(tensor) for tensor in later.call.tensors()]
    failed = next((each for each in before if each is not None and each.is_again(chains[-1].call)), None)
    if later is None or failed is None or not numerics_of(failed.name).divides or not later.call.is_beside(failed):
        return None
    chain = replace(later, call=failed)
    bad, value = outcome(chain.run()).value.isnan(), outcome(later.run()).value
    if not bool(bad.any()) or bad.shape != value.shape or not are_finite(value) or value.is_complex():
        return None
    limits = limits_of(chain, bad)
    for leaf, text in _named_in(chain):
        found = limit_and_slope(chain, leaf, bad) if id(leaf) in chain.wanted and leaf.shape == bad.shape else None
        if found is None or not is_all(limits, found[0]) or not is_all(value[bad], found[0]):
            continue
        kept = later.with_calls(lambda call: _constant(call) if call.is_again(failed) else call)
        run = kept.run(torch.float64, {id(leaf): leaf})
        one = run.result[bad].sum()
        (ours,) = gradients_of(run, [one], [run.leaves[id(leaf)]], [torch.ones_like(one)])
        has_slope = bool(((ours[bad] - found[1]).abs() > 1e-2 * (1 + abs(found[1]))).any())
        if has_slope and _has_variables(chain):
            return None
        line = _safe_line(later.call, failed, f"{found[1]:.7g} * ({text} - {text}.detach())" if has_slope else "")
        if line is not None:
            return Guarded(line, failed.place.line, has_slope)
    return None


def _named_in(chain: Chain) -> Iterator[tuple[Tensor, str]]:
    """The tensors that the line of a call takes and does not compute, with their names."""
    inside = [call for call in chain.calls() if call.is_beside(chain.call)]
    made = {key for key, (_, call) in chain.made.items() if call in inside}
    pairs = {id(thing): (thing, text) for call in inside for thing, text in texts_of(call) if isinstance(thing, Tensor)}
    return (pair for key, pair in pairs.items() if key not in made and pair[1].isidentifier())


def _constant(call: Call) -> Call:
    """A call whose result has no gradient, and 1 in place of NaN."""
    return call._replace(func=lambda *args, **named: call.func(*args, **named).detach().nan_to_num(1.0))


def _safe_line(where: Call, division: Call, slope: str) -> str | None:
    """The line of a call of `where` with 1 as divisor in place of 0, and with a slope in its other branch."""
    outer, inner = expression_at(where.place, "where"), expression_at(division.place, division.name)
    if outer is None or inner is None or not outer.is_whole or outer.has_scope:
        return None
    above, below = inner.operands()
    branches = outer.operands()[1:]
    text = ast.unparse(inner.node)
    others = [branch for branch in branches if text not in branch]
    if len(branches) != 2 or len(others) != 1:
        return None
    safe = {text: f"{closed(above)} / torch.where({below} == 0, 1, {below})"}
    line = with_each_in([outer], safe)
    if line is None:
        return None
    if slope:
        if not isinstance(outer.node, ast.Call) or len(outer.node.args) != 3:
            return None
        kept = [with_each(branch, safe) if branch is not others[0] else f"{branch} + {slope}" for branch in branches]
        line = outer.replaced_by(f"{ast.unparse(outer.node.func)}({outer.operands()[0]}, {kept[0]}, {kept[1]})")
    return f"{_WITH_SLOPE if slope else _WITHOUT_SLOPE}\n{line}"


_WITHOUT_SLOPE = "# a divisor of 1 in place of 0, in the branch that where leaves out there:"
_WITH_SLOPE = (
    "# beside this point, the formula has another slope than the branch that where takes\n"
    "# there, and ignoring gives the slope of this branch. With the slope of the formula:"
)
