"""A gap in a formula that has a limit there: sin(x) / x is 0 / 0 at 0, and near 1 beside it.

A rewrite that chooses another number than the limit is wrong. If none chooses the limit, a number that both operands
come from is kept away from 0: then the formula itself gives the limit, as well as its dtype allows. If the number has
both signs, the limit and its slope are written down.
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

from ...functions.rewrites import Rewrite
from ..births.arithmetic import number
from ..births.call import Call, in_order
from ..births.chain import Chain
from ..program.source import closed, expression_at, with_each_in
from ..program.tensors import are_finite, not_finite
from .exact import CLOSE, Outcome, gradients_of, measured, outcome, texts_of
from .matching import Match, line_of

_FILLED = "torch.where(b == 0, {}, a / torch.where(b == 0, 1, b))"

_STEPS = (1e-6, 1e-4, 1e-2)
"""How far a number is kept away from 0. The first that is enough counts."""


def ordinary(given: Mapping[int, Tensor], seed: int, most: float = 1.8) -> dict[int, Tensor]:
    """Tensors of the same shapes, with numbers between 0.05 and so much more."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: _drawn(torch.rand, tensor, generator) * most + 0.05 if tensor.is_floating_point() else tensor
        for key, tensor in given.items()
    }


def _drawn(draw: Callable[..., Tensor], like: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers in the shape of a tensor. They are drawn on the CPU, so they are the same on every device."""
    return draw(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like.device)


def is_limit(chain: Chain, value: Tensor) -> bool:
    """Whether a value that was chosen is the limit there, if there is one."""
    bad = not_finite(chain.run(torch.float64).result.detach())
    limits = _limits(chain, bad)
    chosen = value.detach()[bad].to(limits.dtype)
    return not bool(((limits - chosen).abs() > 5e-2 * (1 + chosen.abs())).any())


def _limits(chain: Chain, bad: Tensor) -> Tensor:
    """The limits of the elements of a result; NaN if there is none.

    A number that comes in may be at the end of a domain. Then those two calls before the last one are moved instead.
    """
    near = chain.call.tensors()
    for _ in range(2):
        before = [(tensor, chain.of(tensor)) for tensor in near]
        near = [each for tensor, call in before for each in ([tensor] if call is None else call.tensors())]
    first, second = (_limits_beside(chain, bad, moved) for moved in (_coming_in(chain), near))
    return torch.where(first.isnan(), second, first)


def _coming_in(chain: Chain) -> list[Tensor]:
    """The tensors of a chain that no call in it has made."""
    every = {id(each): each for call in chain.calls() for each in call.tensors() if id(each) not in chain.made}
    return [*every.values()]


def _limits_beside(chain: Chain, bad: Tensor, moved: Iterable[Tensor]) -> Tensor:
    """What a result tends to if these tensors are moved a little; NaN if that depends on how they are moved."""
    return _common(torch.stack([chain.run(torch.float64, there).result.detach()[bad] for there in _beside(moved)]))


def _beside(tensors: Iterable[Tensor]) -> Iterator[dict[int, Tensor]]:
    """By identity, the tensors with numbers that are moved a little: to all sides, only up, or only down."""
    given = {id(tensor): tensor for tensor in tensors if tensor.is_floating_point()}
    for seed, side in enumerate((Tensor.clone, Tensor.clone, Tensor.abs, Tensor.abs, _down, _down)):
        generator = torch.Generator().manual_seed(seed)
        for step in (1e-3, 1e-5):
            yield {key: tensor + step * side(_drawn(torch.randn, tensor, generator)) for key, tensor in given.items()}


def _down(tensor: Tensor) -> Tensor:
    return -tensor.abs()


def _common(found: Tensor) -> Tensor:
    """What all rows agree on, element by element; NaN where they do not, or where most are no numbers."""
    known = torch.isfinite(found)
    count = known.sum(0)
    mean = torch.where(known, found, 0).sum(0) / count
    spread = torch.where(known, (found - mean).abs(), 0).amax(0)
    largest = torch.where(known, found.abs(), 0).amax(0)
    return torch.where((count > 2) & (spread < 1e-2 * (1 + largest)), mean, torch.nan)


def have_limits(chain: Chain, changed: Chain) -> bool:
    """Whether the slopes of a changed chain are the limits of its own ones, where these have no number but a limit."""
    plain, now = outcome(chain.run(torch.float64)), outcome(changed.run(torch.float64))
    moved = [outcome(chain.run(torch.float64, there)) for there in _beside(_coming_in(chain))]
    for key, slope in plain.gradients.items():
        limits = _common(torch.stack([each.gradients[key] for each in moved]))
        chosen = now.gradients.get(key, torch.zeros_like(slope))
        if bool((not_finite(slope) & ((limits - chosen).abs() > 5e-2 * (1 + chosen.abs()))).any()):
            return False
    return True


def is_steady(chain: Chain) -> bool:
    """Whether float64 has enough digits for a chain: other last digits of each result change it a little at most."""
    generator = torch.Generator().manual_seed(0)

    def rounded(call: Call) -> Call:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = call.func(*args, **kwargs)
            is_float = isinstance(result, Tensor) and result.dtype is torch.float64
            return result * (1 + 1e-15 * _drawn(torch.randn, result, generator)) if is_float else result

        return call._replace(func=run)

    other = outcome(chain.with_calls(rounded).run(torch.float64))
    for was, now in zip(outcome(chain.run(torch.float64)).parts, other.parts, strict=True):
        known = was.isfinite()
        largest = float(was[known].abs().max()) if bool(known.any()) else 0.0
        if not torch.allclose(now, was, rtol=1e-4, atol=1e-4 * largest, equal_nan=True):
            return False
    return True


def kept_away(chain: Chain) -> tuple[str, int] | None:
    """A line that keeps a number away from 0, where the last call of a chain then gives the limit, and its number."""
    plain = chain.run()
    before = outcome(plain)
    bad = before.value.isnan()
    limits = _limits(chain, bad)
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
    """A line with a division that has the limit where it is 0 / 0, and its number; None if there is no common limit."""
    call, before = chain.call, outcome(chain.run())
    bad = before.value.isnan()
    operands = [each for each in in_order(call) if isinstance(each, Tensor)]
    is_real = not before.value.is_complex()
    if call.name != "div" or len(operands) < 2 or call.kwargs or not is_real or not bool(bad.any()):
        return None
    limits = _limits(chain, bad)
    for leaf in _coming_in(chain):
        found = _limit_and_slope(chain, leaf, bad) if leaf.is_floating_point() else None
        if found is None or not _is_all(limits, found[0]):
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


def _is_all(numbers: Tensor, value: float) -> bool:
    """Whether all numbers are near a value; NaN is not."""
    return bool(((numbers - value).abs() < 5e-2 * (1 + abs(value))).all())


def evaluated(code: str, names: Iterable[str], others: Mapping[str, Any] = MappingProxyType({})) -> Callable[..., Any]:
    """A function that evaluates code with its arguments as these names, with others, and with `torch` and `F`."""
    known = list(names)
    return lambda *values: eval(code, {"torch": torch, "F": F, **others, **dict(zip(known, values, strict=True))})


def _limit_and_slope(chain: Chain, leaf: Tensor, bad: Tensor) -> tuple[float, float] | None:
    """What the bad elements of a result tend to from both sides of a leaf, and how steeply; None if they differ."""
    found = []
    for step, sign in ((2e-3, 1), (4e-3, -1)):
        # Neighbours move the same way, and then the other way: they must have no part in a result.
        moves = step * torch.tensor([1.0, sign], dtype=torch.float64, device=leaf.device).repeat(leaf.numel())
        move = moves[: leaf.numel()].reshape(leaf.shape)
        sides = (leaf.double() + move, leaf.double() - move)
        up, down = (chain.run(torch.float64, {id(leaf): side}).result.detach() for side in sides)
        steepness = (up - down) / (2 * (move if move.shape == up.shape else step))
        found.append(torch.stack([((up + down) / 2)[bad], steepness[bad]]))
    near, far = found
    numbers = (4 * near - far) / 3  # Richardson's: the error that grows with the square of the step cancels
    value, slope = (float(each) for each in numbers[:, 0])
    has_kink = bool(((near[0] - value).abs() > 1e-2 * 2e-3 * (1 + abs(slope))).any())
    is_one = torch.allclose(near, far, rtol=1e-3, atol=1e-3)
    is_common = float((numbers - numbers[:, :1]).abs().max()) < 1e-6 * (1 + abs(value))
    if not are_finite(numbers) or has_kink or not is_one or not is_common:
        return None
    return (value if abs(value) > 1e-6 else 0.0), (slope if abs(slope) > 1e-6 else 0.0)


class Guarded(NamedTuple):
    """A line in which `where` leaves a gap out, safe in both branches.

    Attributes:
        remedy, replaces: as in `Advice`.
        has_slope: whether the formula has a slope there that the other branch, and so `ignoring`, does not have.
    """

    remedy: str
    replaces: int
    has_slope: bool


def guarded(chains: Sequence[Chain]) -> Guarded | None:
    """The line of a division that `where` leaves out where it is 0 / 0, if the formula has a limit and a slope there.

    At `where(x == 0, 0, (1 - cos(x)) / x)`, the formula tends to the other branch, and its slope to 1 / 2.
    """
    later = next((each for each in reversed(chains[:-1]) if each.call.name == "where"), None)
    before = [] if later is None else [later.of(tensor) for tensor in later.call.tensors()]
    failed = next((each for each in before if each is not None and each.is_again(chains[-1].call)), None)
    if later is None or failed is None or failed.name != "div" or not later.call.is_beside(failed):
        return None
    chain = replace(later, call=failed)
    bad, value = outcome(chain.run()).value.isnan(), outcome(later.run()).value
    if not bool(bad.any()) or bad.shape != value.shape or not are_finite(value) or value.is_complex():
        return None
    limits = _limits(chain, bad)
    for leaf, text in _named_in(chain):
        found = _limit_and_slope(chain, leaf, bad) if id(leaf) in chain.wanted and leaf.shape == bad.shape else None
        if found is None or not _is_all(limits, found[0]) or not _is_all(value[bad], found[0]):
            continue
        kept = later.with_calls(lambda call: _constant(call) if call.is_again(failed) else call)
        run = kept.run(torch.float64, {id(leaf): leaf})
        one = run.result[bad].sum()
        (ours,) = gradients_of(run, [one], [run.leaves[id(leaf)]], [torch.ones_like(one)])
        has_slope = bool(((ours[bad] - found[1]).abs() > 1e-2 * (1 + abs(found[1]))).any())
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
    outer, inner = expression_at(where.place, "where"), expression_at(division.place, "div")
    if outer is None or inner is None or not outer.is_whole or outer.has_scope:
        return None
    above, below = inner.operands()
    branches = outer.operands()[1:]
    text = ast.unparse(inner.node)
    others = [branch for branch in branches if text not in branch]
    if len(branches) != 2 or len(others) != 1:
        return None
    safe = f"torch.where({below} == 0, 1, {below})"
    written = {text: f"{closed(above)} / {safe}", **({others[0]: f"{others[0]} + {slope}"} if slope else {})}
    line = with_each_in([outer], written)
    return None if line is None else f"{_WITH_SLOPE if slope else _WITHOUT_SLOPE}\n{line}"


_WITHOUT_SLOPE = "# a divisor of 1 in place of 0, in the branch that where leaves out there:"
_WITH_SLOPE = (
    "# beside this point, the formula has another slope than the branch that where takes\n"
    "# there, and ignoring gives the slope of this branch. With the slope of the formula:"
)
