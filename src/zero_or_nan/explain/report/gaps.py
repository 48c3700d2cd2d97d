"""A gap in a formula that has a limit there: sin(x) / x is 0 / 0 at 0, and near 1 beside it.

A rewrite that chooses another number than the limit is wrong. If none chooses the limit, a number that both operands
come from is kept away from 0: then the formula itself gives the limit, as well as its dtype allows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain
from ..program.source import closed, expression_at, with_each_in
from ..program.tensors import are_finite, not_finite
from .exact import CLOSE, Outcome, measured, outcome, texts_of

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
    chosen = value.detach()[bad].double()
    return not bool(((_limits(chain, bad) - chosen).abs() > 5e-2 * (1 + chosen.abs())).any())


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
    """By identity, the tensors with numbers that are moved a little, in several directions."""
    given = {id(tensor): tensor for tensor in tensors if tensor.is_floating_point()}
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        for step in (1e-3, 1e-5):
            yield {key: tensor + step * _drawn(torch.randn, tensor, generator) for key, tensor in given.items()}


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
    if not bool(bad.any()) or not are_finite(limits):
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
    return measured(before, run) if is_near and is_kept else None


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
