"""Tries rewrites on the numbers of the failed call. A rewrite with a wrong number, or none, is not printed.

The chain of calls runs in float64, which has room for numbers that were too large, too small or rounded in the program.
If this run has a finite value and gradient, a rewrite must have the same. If not, the rewrite must say which number it
chooses. On ordinary numbers, the rewrite must agree with the program's own computation.

A rewrite fits if its pattern matches a call and the calls before it. The new code is the line of the failed call with
the rewrite in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functions.numerics import numerics_of
from ...functions.rewrites import REWRITES, Rewrite
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain, Run
from ..program.rerun import without_side_effects
from ..program.source import expression_at
from ..program.tensors import address, are_finite, not_finite
from .again import FAR, Program, agree
from .choices import gives_the_exact_end, has_limits, keeps, loss_with_rewrite
from .exact import Lost, Outcome, agrees, cured, exactly, failed_at, is_near, measured, outcome
from .limits import is_limit, ordinary
from .matching import Match, line_of, matches, numbers_of

AFTER = 4
"""How many calls after a call may be part of the same formula."""

_ORDINARY = 2
"""How often ordinary numbers are drawn."""

_COARSE = 5e-3
"""The relative error of a loss in a 16-bit dtype from which on other ways are tried."""


class Tried(NamedTuple):
    """A rewrite that gave the right numbers.

    Attributes:
        rewrite, call: the rewrite, and the call that it replaces.
        line, replaces: as in `Advice`.
        choice, value, gradient: as in `Measured`.
        is_bound: whether its number differs from the exact number, because the dtype has no room for the exact number.
        beyond: the number that it has but float64 does not, as a phrase; empty if float64 has the same number.
        is_whole: whether the value is that of the failed call, and not of a later call.
        is_far: whether its result is 0 where the call's result was an infinity.
        is_coarse: whether the loss is not near the exact loss, because a 16-bit dtype rounds the result.
    """

    rewrite: Rewrite
    call: Call
    line: str
    replaces: int | None
    choice: str
    value: float
    gradient: float
    is_bound: bool = False
    beyond: str = ""
    is_whole: bool = False
    is_far: bool = False
    is_coarse: bool = False

    @property
    def measured(self) -> str:
        return f"value {number(self.value)}, gradient {number(self.gradient)}"


def tried(
    chain: Chain,
    chains: Sequence[Chain],
    lost: Lost | None,
    program: Program,
    is_derivative: bool,
    asked: Collection[int | None],
) -> Iterator[Tried]:
    """The rewrites of the last call of a chain that give the right numbers, and that replace the failed call.

    The failed call is the last of the last chain. If its exact result is finite, there is nothing to choose.
    """
    for each in REWRITES.get(chain.call.name, ()):
        for match in matches(each.pattern, chain.call, chain, Match({}, ())):
            is_cut = len({call.is_recorded for call in match.replaced}) > 1  # the line would get the gradient back
            inner = [made for made, call in chain.made.values() if any(map(call.is_same, match.replaced[1:]))]
            is_cut |= any(address(made) in asked for made in inner)
            operands = match.replaced[0].tensors()
            is_cut |= any(id(each) in chain.wanted for each in operands) and _overwrites(match.replaced[0])
            if not is_cut and any(call.is_again(chains[-1].call) for call in match.replaced):
                found = _try(each, match, chain, chains, lost, program, is_derivative)
                if found is not None and holds_elsewhere(each, match, program):
                    yield found


def _overwrites(call: Call) -> bool:
    """Whether the user's line writes the result over an operand. Backward of a rewrite may need the old numbers."""
    expression = expression_at(call.place, call.name)
    return expression is not None and expression.overwrites() is not None


def _try(
    rewrite: Rewrite,
    match: Match,
    chain: Chain,
    chains: Sequence[Chain],
    lost: Lost | None,
    program: Program,
    is_derivative: bool,
) -> Tried | None:
    """What a rewrite gives, if it is right: in the program's dtype, in float64, and on ordinary numbers."""
    names = match.names
    given = {id(thing): thing for thing in names.values() if isinstance(thing, Tensor)}
    try:
        plain = chain.run(given=given)
        before = outcome(plain, given)
        exact, _, in_float64 = exactly(chain, before, given)
        exact, beyond = exact.defined() if rewrite.choice else exact, ""
        if rewrite.of_rounding:  # the operands are wrong, so those before them decide
            right = exactly(chain, outcome(chain.run())).found.value
            exact = Outcome(torch.where(not_finite(before.value), right, before.value.to(right.dtype)), exact.gradients)
        elif not rewrite.choice and are_finite([*given.values()]) and not _is_outside(chain, plain):
            wide = _by_rewrite(rewrite, names, chain, given, torch.float64)
            exact = exact.filled(outcome(wide))
            beyond, _ = cured(in_float64, exact, wide)
        rewritten = _by_rewrite(rewrite, names, chain, given, None)
        after = outcome(rewritten)
        if before.is_finite:
            return None  # it does not fail by itself: what arrived in backward was too large
        if rewritten.result.dtype is not plain.result.dtype:
            return None  # what follows may refuse another dtype
        kept = after.value
        is_meant = chain.call.infinite_number() is not None  # (1 - keep) * -torch.inf
        if (
            is_meant or numerics_of(chain.call.name).ignores_infinity
        ):  # the value is -inf, and only its slope is missing
            after = Outcome(after.value.masked_fill((kept == before.value) & kept.isinf(), 0), after.gradients)
        is_harmless = False
        is_exact = after.value.shape == before.value.shape and agrees(after, before, exact, False)
        if not is_exact:
            may_choose = rewrite.choice and (lost is None or not lost.fits or exact.is_finite)
            if not may_choose or after.value.shape != before.value.shape or not agrees(after, before, exact, True):
                return None
            is_harmless = lost is not None and not lost.fits and gives_the_exact_end(rewrite, chain.call, chains)
            if is_derivative and not is_harmless:
                return None
            near = chains[-1 - AFTER :]
            if not is_harmless and not all(keeps(later, chain.call, kept) for later in near):
                return None
            decides = () if is_harmless else near
            if not is_limit(chain, kept) or not has_limits(decides, rewrite, chain.call, program):
                return None
        for seed in range(_ORDINARY):
            numbers = ordinary(given, seed)
            if seed % 2:  # sqrt(1 - exp(x)) exists for negative x alone
                floats = [key for key, each in numbers.items() if each.is_floating_point()]
                numbers |= {key: numbers[key].copysign(given[key]) for key in floats}
            usual = outcome(chain.run(torch.float64, numbers), numbers).defined()
            if not is_near(outcome(_by_rewrite(rewrite, names, chain, numbers, torch.float64)), usual):
                return None
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError):  # the code does not fit the arguments
        return None
    is_half = is_exact and plain.result.dtype.itemsize == 2
    wanted = program.right if is_half else None
    loss = None if wanted is None else loss_with_rewrite(program, rewrite, chain.call, None)
    if loss is not None and not agree(loss, wanted, FAR):
        return None  # the operands were rounded too much before this call
    value, gradient = measured(before, rewritten)
    return Tried(
        rewrite,
        chain.call,
        *line_of(rewrite, match),
        "" if is_exact else f"{rewrite.choice}. What follows is exact" if is_harmless else rewrite.choice,
        value,
        gradient,
        not (is_exact or is_harmless) and lost is not None and not lost.fits,
        beyond,
        chain.call.is_again(chains[-1].call),
        value == 0 and bool(before.value.isinf()[failed_at(before)]),
        is_half and (_is_unknown(program) or loss is not None and not agree(loss, wanted, _COARSE)),
    )


def _is_unknown(program: Program) -> bool:
    """Whether there is a loss that can't be computed again."""
    return bool(program.loss) and not program.fails_again


def _is_outside(chain: Chain, plain: Run) -> bool:
    """Whether the function of the last call has no value at one of its numbers: log(-4) is no rounding of a number."""
    least, most = numerics_of(chain.call.name).domain
    numbers = [plain.values[id(each)] for each in chain.call.tensors()[:1]]
    return any(bool(((each < least) | (each > most)).any()) for each in numbers if each.is_floating_point())


def results_elsewhere(call: Call, program: Program) -> list[Tensor]:
    """The results of the other calls of a call's line."""
    return [Chain(other).run().result for other in program.elsewhere(call)]


def holds_elsewhere(rewrite: Rewrite, match: Match, program: Program) -> bool:
    """Whether a rewrite agrees with the other calls of its line, wherever they have numbers: the line is for all."""
    constants = [name for name, text in numbers_of(match).items() if text is None]
    for call in program.elsewhere(match.replaced[0]):
        again = next(matches(rewrite.pattern, call, Chain(call, program.made), Match({}, ())), None)
        if again is None or any(repr(again.names[name]) != repr(match.names[name]) for name in constants):
            return False
        given = {id(thing): thing for thing in again.names.values() if isinstance(thing, Tensor)}
        chain = Chain(call, program.made, {key for key, tensor in given.items() if tensor.is_floating_point()})
        try:
            before = outcome(chain.run(given=given), given)
            exact = outcome(chain.run(torch.float64, given), given).defined()
            after = outcome(_by_rewrite(rewrite, again.names, chain, given, None))
            known = [torch.where(it.isfinite(), now, 0) for now, it in zip(after.parts, exact.parts, strict=True)]
            if not agrees(Outcome(known[0], dict(zip(after.gradients, known[1:], strict=True))), before, exact, True):
                return False
        except (AttributeError, RuntimeError, TypeError, ValueError, IndexError):
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
        for name, thing in names.items() if dtype is not None else ():
            values[name] = dtype if isinstance(thing, torch.dtype) and thing.is_floating_point else values[name]
        run.result = eval(rewrite.code, {"torch": torch, "F": F}, values)
    return run


def runs(rewrite: Rewrite, chain: Chain) -> bool:
    """Whether a rewrite fits the last call of a chain, and can run on its operands."""
    for names, _ in matches(rewrite.pattern, chain.call, chain, Match({}, ())):
        given = {id(thing): thing for thing in names.values() if isinstance(thing, Tensor)}
        with contextlib.suppress(AttributeError, RuntimeError, TypeError, ValueError, IndexError):
            _by_rewrite(rewrite, names, chain, given, None)
            return True
    return False
