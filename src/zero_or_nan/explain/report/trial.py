"""Tries rewrites on the numbers of the call that failed. What gives a wrong number there, or none, is not printed.

The chain of calls runs in float64, which has room for what was too large, too small or rounded in the program. Where
that gives a number and a gradient, a rewrite must give the same ones. Where it gives none, the rewrite must say what it
chooses. On ordinary numbers beside the reader's, the rewrite must agree with the program's own computation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functions.rewrites import REWRITES, Rewrite
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain, Run
from ..births.findings import Mistakes
from ..program.tensors import extra, not_finite, without_side_effects
from .exact import CLOSE, Lost, Outcome, cured, exactly, lost_on_the_way, measured, outcome
from .matching import Match, line_of, matches
from .remedies import BEYOND, EPSILON, GROWTH
from .widening import constant_lost, floor_under, larger_constant, widened

MOST_ELEMENTS = 5_000_000
"""The size of the operands from which on nothing is tried."""

AFTER = 3
"""The number of calls after one of which each may be part of the same formula."""

_ORDINARY = 2
"""How often ordinary numbers are drawn."""


class Tried(NamedTuple):
    """A rewrite that gave the right numbers.

    Attributes:
        line: the code to write.
        replaces: the line that it replaces; None if it is only a part of it.
        choice: what it chooses, or empty.
        value, gradient: the first element of its result that was not finite before, and the gradient there.
        is_bound: whether it gives another number than exact arithmetic, because the dtype has no room for that.
        beyond: what it gives and float64 does not, as a phrase; empty if float64 gives the same.
        is_whole: whether it is the failed call that gives the value, and not one after it.
    """

    line: str
    replaces: int | None
    choice: str
    value: float
    gradient: float
    is_bound: bool = False
    beyond: str = ""
    is_whole: bool = False


class Advice(NamedTuple):
    """What running a call again has shown.

    Attributes:
        remedy: the code to write, with what was measured as a comment; empty if nothing that was tried is right.
        replaces: the line that the code replaces; None if it is only a part of a line, or if there is no code.
        exact: the exact value, and the number on the way that was lost; empty if exact arithmetic has no value either.
        refused: the code that was tried, if none of it is right.
        situation: what the calls say about advice that is not tried.
        fits: whether the dtype has room for the exact number; None if exact arithmetic has no number.
        tried: the rewrites in the remedy.
    """

    remedy: str = ""
    replaces: int | None = None
    exact: str = ""
    refused: tuple[str, ...] = ()
    situation: str = ""
    fits: bool | None = None
    tried: tuple[Tried, ...] = ()


NOTHING_TRIED = Advice()


def tried_on(chains: Sequence[Chain], advise: Callable[[Sequence[Chain]], Advice]) -> Advice:
    """The advice on chains of calls, as far as these can run again."""
    if not chains or sum(tensor.numel() for tensor in chains[0].call.tensors()) > MOST_ELEMENTS:
        return NOTHING_TRIED
    try:
        with extra(), torch.enable_grad():
            return advise([chain.checked() for chain in chains])
    except Exception as error:  # code of the user's may be in the chain, and may refuse to run again
        if Mistakes.are_raised and isinstance(error, (NameError, AttributeError, KeyError, AssertionError)):
            raise  # it is ours
        return NOTHING_TRIED


def advice_on(chains: Sequence[Chain], module: str) -> Advice:
    """Try rewrites of the calls with which a number was born, and run the call in exact arithmetic.

    In this order: a rewrite, the same formula in a wider dtype, a larger eps if the dtype rounds it to 0, a bound that
    keeps the numbers finite.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
        module: the path of the module that made this call; empty if it is not known.
    """
    failed = chains[-1]
    lost = lost_on_the_way(failed)
    exact = "" if lost is None else str(lost)
    near = chains[-1 - AFTER :]
    found = [each for chain in near for each in tried(chain, near, lost)]
    best = next((each for each in found if not each.is_bound), None)
    if best is not None:
        if best.beyond and best.is_whole and lost is None:
            exact = f"and {best.beyond}: float64 rounds a number before it, too"
        others = [each for each in found if each.choice and best.choice and not _is_alike(each, best)]
        text = "\n".join([_told(best), *map(_or, others[:1])])
        return Advice(text, best.replaces, exact, tried=(best, *others[:1]))
    constant = constant_lost(lost, failed)
    situation = "" if constant is None else EPSILON
    wider = widened(chains, len(near), module)
    if wider is None and lost is not None and constant is not None:
        wider = larger_constant(constant, lost, failed)
    if wider is not None:
        return Advice(*wider, exact, situation=situation)
    bound = "" if lost is None else floor_under(lost, failed) or next((each.line for each in found), "")
    if bound:
        return Advice("\n".join([_BOUND, *(f"# {line}" for line in bound.splitlines())]), None, exact)
    if exact and (grown := _grown(failed)):
        return Advice(exact=f"{exact}; {grown}", situation=GROWTH)
    if constant is not None or lost is not None and lost.fits and lost.is_beyond:
        return Advice(exact=exact, situation=situation or BEYOND)
    refused = tuple(dict.fromkeys(each.code for each in REWRITES.get(failed.call.name, ()) if each.choice))
    return Advice(exact=exact, refused=refused, fits=None if lost is None else lost.fits)


_BOUND = "# its dtype has no room for this number. A bound keeps it finite, and changes what is computed, as in"


def _grown(chain: Chain) -> str:
    """How the results of the calls of one line grew up to the last one; empty if they did not, each time."""
    results = [tensor for tensor, call in chain.made.values() if call.is_again(chain.call)]
    sizes = [float(tensor.abs().max()) for tensor in results]
    if len(sizes) < 3 or not all(1.5 * before < after for before, after in pairwise(sizes)):
        return ""
    return f"the calls of this line before it gave up to {', '.join(map(number, sizes[-3:]))}"


def _is_alike(one: Tried, other: Tried) -> bool:
    """Whether two rewrites differ in numbers alone."""
    return re.sub(r"\d", "", one.line) == re.sub(r"\d", "", other.line)


def _or(found: Tried) -> str:
    """Another choice, as a comment."""
    measured = f"value {number(found.value)}, gradient {number(found.gradient)}"
    return "\n".join(f"# {line}" for line in (f"or: {found.choice} ({measured})", *found.line.splitlines()))


def _told(found: Tried) -> str:
    measured = f"value {number(found.value)}, gradient {number(found.gradient)}"
    if found.choice:
        return f"# a choice: {found.choice}. Tried on your numbers: {measured}\n{found.line}"
    return f"# tried on your numbers: {measured}{'' if found.beyond else ', as in float64'}\n{found.line}"


def tried(chain: Chain, chains: Sequence[Chain], lost: Lost | None) -> Iterator[Tried]:
    """The rewrites of the last call of a chain that give the right numbers, and that replace the failed call.

    Args:
        chain: the calls.
        chains: all chains, the last of which ends with the failed call.
        lost: what the failed call gives in exact arithmetic. Then there is nothing to choose.
    """
    for each in REWRITES.get(chain.call.name, ()):
        for match in matches(each.pattern, chain.call, chain, Match({}, ())):
            is_cut = len({call.is_recorded for call in match.replaced}) > 1  # the line would get the gradient back
            if not is_cut and any(call.is_again(chains[-1].call) for call in match.replaced):
                found = _try(each, match, chain, chains, lost)
                if found is not None:
                    yield found


def _try(rewrite: Rewrite, match: Match, chain: Chain, chains: Sequence[Chain], lost: Lost | None) -> Tried | None:
    names = match.names
    given = {id(thing): thing for thing in names.values() if isinstance(thing, Tensor)}
    try:
        before = outcome(chain.run(given=given), given)
        exact, _, in_float64 = exactly(chain, before, given)
        beyond = ""
        if not rewrite.choice and not any(bool(not_finite(tensor).any()) for tensor in given.values()):
            wide = _by_rewrite(rewrite, names, chain, given, torch.float64)
            exact = exact.filled(outcome(wide))
            beyond, _ = cured(in_float64, exact, wide)
        rewritten = _by_rewrite(rewrite, names, chain, given, None)
        after = outcome(rewritten)
        if all(bool(torch.isfinite(part).all()) for part in before.parts):
            return None  # it does not fail by itself: what arrived in backward was too large
        is_exact = after.value.shape == before.value.shape and _agrees(after, before, exact, False)
        if not is_exact:
            is_known = all(bool(torch.isfinite(part).all()) for part in exact.parts)
            may_choose = rewrite.choice and (lost is None or not lost.fits or is_known)
            if not may_choose or after.value.shape != before.value.shape or not _agrees(after, before, exact, True):
                return None
            if not all(_keeps(later, chain.call, after.value) for later in chains) or not _is_limit(chain, after.value):
                return None
        for seed in range(_ORDINARY):
            numbers = ordinary(given, seed)
            if seed % 2:  # sqrt(1 - exp(x)) exists for negative x alone
                numbers = {key: _with_signs(each, given[key]) for key, each in numbers.items()}
            program = outcome(chain.run(torch.float64, numbers), numbers)
            once_more = _by_rewrite(rewrite, names, chain, numbers, torch.float64)
            if not _is_near(outcome(once_more), program):
                return None
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError):  # the code does not fit the arguments
        return None
    return Tried(
        *line_of(rewrite, match),
        "" if is_exact else rewrite.choice,
        *measured(before, rewritten),
        not is_exact and lost is not None and not lost.fits,
        beyond,
        chain.call.is_again(chains[-1].call),
    )


def _keeps(later: Chain, call: Call, value: Tensor) -> bool:
    """Whether another value of a call leaves a later result what it is in exact arithmetic: atan of inf is a number."""
    key = next((key for key, (_, made) in later.made.items() if made.is_again(call)), None)
    if key is None:
        return True
    exact, now = later.run(torch.float64).result.detach(), later.run(given={key: value}).result.detach()
    known = torch.isfinite(exact.to(now.dtype))
    close = max(CLOSE.get(tensor.dtype, 1e-4) for tensor in (now, value))  # what follows half may be float32
    return bool(torch.allclose(now[known].double(), exact[known], rtol=close))


def _two_calls_before(chain: Chain) -> dict[int, Tensor]:
    """The tensors that the operands of a call were computed from, two calls before it."""
    found = chain.call.tensors()
    for _ in range(2):
        before = [(tensor, chain.of(tensor)) for tensor in found]
        found = [each for tensor, call in before for each in ([tensor] if call is None else call.tensors())]
    return {id(tensor): tensor for tensor in found if tensor.is_floating_point()}


def _is_limit(chain: Chain, value: Tensor) -> bool:
    """Whether a value that was chosen is the limit there, if there is one: sin(x) / x has the limit 1 at 0."""
    bad = not_finite(chain.run(torch.float64).result.detach())
    given = _two_calls_before(chain)
    near: list[Tensor] = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        for step in (1e-3, 1e-5):
            moved = {key: tensor + step * _drawn(torch.randn, tensor, generator) for key, tensor in given.items()}
            near.append(chain.run(torch.float64, moved).result.detach()[bad])
    for here, chosen in zip(torch.stack(near).T, value.detach()[bad].double(), strict=True):
        known = here[torch.isfinite(here)]
        is_limit = len(known) > 2 and bool((known - known.mean()).abs().max() < 1e-2 * (1 + known.abs().max()))
        if is_limit and abs(float(known.mean() - chosen)) > 5e-2 * (1 + abs(float(chosen))):
            return False
    return True


def _by_rewrite(
    rewrite: Rewrite,
    names: Mapping[str, object],
    chain: Chain,
    given: Mapping[int, Tensor],
    dtype: torch.dtype | None,
) -> Run:
    run = Run({}, {}, None, chain.order)
    for key, tensor in given.items():
        run.take(key, tensor, dtype, key in chain.wanted)
    with without_side_effects(), torch.enable_grad():
        values = {name: run.values.get(id(thing), thing) for name, thing in names.items()}
        run.result = eval(rewrite.code, {"torch": torch, "F": F}, values)
    return run


def ordinary(given: Mapping[int, Tensor], seed: int, most: float = 1.8) -> dict[int, Tensor]:
    """Tensors of the same shapes, with numbers between 0.05 and so much more."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: _drawn(torch.rand, tensor, generator) * most + 0.05 if tensor.is_floating_point() else tensor
        for key, tensor in given.items()
    }


def _with_signs(numbers: Tensor, of: Tensor) -> Tensor:
    return numbers.copysign(of) if numbers.is_floating_point() else numbers


def _drawn(draw: Callable[..., Tensor], like: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers in the shape of a tensor. They are drawn on the CPU, so they are the same on every device."""
    return draw(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like.device)


def _is_near(after: Outcome, program: Outcome) -> bool:
    """Whether a rewrite gives what the program gives, where that gives numbers. Both are in float64."""
    pairs = [(after.value, program.value), *((after.gradients[key], found) for key, found in program.gradients.items())]
    for now, was in pairs:
        known = torch.isfinite(was)
        if not torch.allclose(now[known], was[known], rtol=1e-7, atol=1e-9):
            return False
    return True


def _agrees(after: Outcome, before: Outcome, exact: Outcome, chooses: bool) -> bool:
    """Whether what a rewrite gives is finite, and is what exact arithmetic gives, if that gives a number."""
    pairs = [(after.value, before.value, exact.value)]
    pairs += [(after.gradients[name], before.gradients[name], exact.gradients[name]) for name in exact.gradients]
    for now, was, right in pairs:
        if bool(not_finite(now).any()):
            return False
        known = torch.isfinite(right.to(was.dtype))
        # There is no such number, or the dtype has none. The program had none either, and the rewrite chooses one.
        if not chooses and not bool(known.all()):
            return False
        rtol, atol = CLOSE.get(was.dtype, 1e-4), _least(was, right)
        if not torch.allclose(now.double()[known], right[known], rtol=rtol, atol=atol):
            return False
    return True


def _least(was: Tensor, right: Tensor) -> float:
    """The absolute difference that rounding the largest number explains."""
    finite = right[torch.isfinite(right)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.finfo(was.dtype).eps * min(largest, 1.0)
