"""Tries rewrites on the numbers of the failed call. A rewrite with a wrong number, or none, is not printed.

The chain of calls runs in float64, which has room for numbers that were too large, too small or rounded in the program.
If this run has a finite value and gradient, a rewrite must have the same. If not, the rewrite must say which number it
chooses. On ordinary numbers, the rewrite must agree with the program's own computation.

A rewrite fits if its pattern matches a call and the calls before it. The new code is the line of the failed call with
the rewrite in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functions.numerics import numerics_of
from ...functions.rewrites import REWRITES, Rewrite
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import Chain, Run
from ..births.findings import Mistakes
from ..program.code import Place, printable
from ..program.rerun import extra, without_side_effects
from ..program.source import can_come_before, expression_at, lacks_torch
from ..program.tensors import address, are_finite, each_in, not_finite
from .again import FAR, Again, Program, agree, once_more, position_of
from .exact import CLOSE, Lost, Outcome, cured, exactly, exists, failed_at, lost_on_the_way, measured, outcome
from .gaps import filled, guarded, kept_away, rewritten
from .left_out import masked_before, with_large_numbers, without_them
from .limits import are_limits, have_limits, is_limit, ordinary
from .matching import Match, line_of, matches, numbers_of
from .moved import with_moved_arguments
from .remedies import BEYOND, EPSILON, GROWTH
from .vectors import with_other_values
from .wider import in_a_wider_dtype

MOST_ELEMENTS = 5_000_000
"""The largest size of the operands for which anything is tried."""

AFTER = 4
"""How many calls after a call may be part of the same formula."""

_SECONDS = 3.0
"""The seconds after which a terminal shows that remedies are being tried."""

_ORDINARY = 2
"""How often ordinary numbers are drawn."""

_LARGE = 1e3
"""A factor that makes a number much larger, and the least number that may be the rest of an infinity."""

_COARSE = 5e-3
"""The relative error of a loss in a 16-bit dtype from which on other ways are tried."""


class Tried(NamedTuple):
    """A rewrite that gave the right numbers.

    Attributes:
        line, replaces: as in `Advice`.
        choice, value, gradient: as in `Measured`.
        is_bound: whether its number differs from the exact number, because the dtype has no room for the exact number.
        beyond: the number that it has but float64 does not, as a phrase; empty if float64 has the same number.
        is_whole: whether the value is that of the failed call, and not of a later call.
        is_far: whether its result is 0 where the call's result was an infinity.
        is_coarse: whether the loss is not near the exact loss, because a 16-bit dtype rounds the result.
    """

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


class Advice(NamedTuple):
    """The advice that comes from running a call again.

    Attributes:
        remedy: the code to write, with the measured numbers as a comment; empty if no rewrite that was tried is right.
        replaces: the line that the code replaces; None if it is only a part of a line, or if there is no code.
        until: the last line that the code replaces, if it replaces several.
        exact: the exact value, and the intermediate number that was lost; empty if the exact value is no number.
        refused: the code that was tried, if all of it is wrong.
        situation: the situation, as in `remedies`, if the calls show it, for advice that is not tried.
        fits: whether the dtype has room for the exact number; None if the exact result is not finite.
        tried: the rewrites in the remedy.
        is_only: whether `ignoring`, which does not change the code, would return another gradient.
    """

    remedy: str = ""
    replaces: int | None = None
    until: int | None = None
    exact: str = ""
    refused: tuple[str, ...] = ()
    situation: str = ""
    fits: bool | None = None
    tried: tuple[Tried, ...] = ()
    is_only: bool = False

    def importing(self) -> Advice:
        """The advice with `import torch` before the code that replaces a line and uses this name."""
        if self.replaces is None or not re.search(r"^[^#\n]*\btorch\.", self.remedy, re.MULTILINE):
            return self
        return self._replace(remedy=re.sub(r"^(?!#)", "import torch\n", self.remedy, count=1, flags=re.MULTILINE))


NOTHING_TRIED = Advice()


def tried_on(chains: Sequence[Chain], advise: Callable[[Sequence[Chain]], Advice]) -> Advice:
    """The advice about chains of calls, if these calls can run again."""
    if not chains or sum(tensor.numel() for tensor in chains[0].call.tensors()) > MOST_ELEMENTS:
        return NOTHING_TRIED
    try:
        with told_if_long(chains[-1].call.place), extra(), torch.enable_grad():
            found = advise([chain.checked() for chain in chains])
            place = chains[-1].call.place
            return found.importing() if lacks_torch(place) and can_come_before(place) else found
    except Exception as error:  # code of the user's may be in the chain, and may refuse to run again
        if Mistakes.are_raised and isinstance(error, (NameError, AttributeError, KeyError, AssertionError)):
            raise  # it is ours
        return NOTHING_TRIED


@contextlib.contextmanager
def told_if_long(place: Place) -> Iterator[None]:
    """If the block takes more than a few seconds, a terminal shows for which line remedies are tried."""
    told = f"explain: trying remedies for line {place.line} of {os.path.basename(place.filename)}"
    timer = threading.Timer(_SECONDS, lambda: print(printable(told), file=sys.stderr, flush=True))
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def advice_on(
    chains: Sequence[Chain],
    program: Program,
    is_derivative: bool = False,
    asked: Collection[int | None] = (),
    is_recorded: bool = False,
) -> Advice:
    """Try rewrites of the calls in which a number was born, and run the failed call in exact arithmetic.

    The remedies, in this order: a rewrite, the same function in a wider dtype, a limit, and a bound that keeps the
    numbers finite.

    Args:
        chains: the calls that used the number, and last the call in which it was born.
        program: all known calls.
        is_derivative: whether the call is in a derivative that the user wrote. Then there is nothing to choose, because
            the derivative must be that of the forward function.
        asked: the memory of the tensors for which the user requested a gradient. A rewrite must keep them in the graph.
        is_recorded: whether the gradient may be differentiated again. Then no slope is written down as a number.
    """
    failed = chains[-1]
    if numerics_of(failed.call.name).is_open:
        line = with_other_values(chains, program) or with_moved_arguments(failed, program, True)
        line = line or in_a_wider_dtype(chains, program)
        return NOTHING_TRIED if line is None else Advice(*line)
    lost = lost_on_the_way(failed)
    exact = "" if lost is None else str(lost)
    near = chains[-1 - AFTER :]
    found = [each for chain in near for each in tried(chain, chains, lost, program, is_derivative, asked)]
    found.sort(key=lambda each: (bool(each.choice), each.replaces is None, each.is_far))
    best = next((each for each in found if not each.is_bound), None)

    if best is None or best.choice or best.replaces is None or best.is_coarse:
        is_known = best is not None and best.replaces is not None and not best.is_coarse and lost is not None
        is_known |= lost is not None and lost.is_beyond or program.is_rounded_before
        wide = None if is_known else in_a_wider_dtype(chains, program)
        if wide is not None:
            text, replaces, until = wide
            known = [] if best is None else [best]
            text = "\n".join([text, *map(_or, known)])
            situation = "" if _constant_lost(lost, failed) is None else EPSILON
            return Advice(text, replaces, until, exact, situation=situation, tried=tuple(known))
    if program.is_rounded_before and (best is None or best.choice):
        moved = with_moved_arguments(failed, program, True)
        if moved is not None:
            return Advice(*moved)
    if lost is None and (best is None or best.choice):
        elsewhere = _results_elsewhere(failed.call, program)
        at_gap: Sequence[Any] | None = None if elsewhere else kept_away(failed)
        if at_gap is None and are_finite(elsewhere) and not is_recorded:
            at_gap = filled(failed)  # the new line has the limit of one call as a number
        at_gap = at_gap or masked_before(chains, program) or with_large_numbers(failed.call, program)
        holds = partial(_holds_elsewhere, program=program)
        at_gap = at_gap or without_them(failed.call, program, None if best is None else best.line, holds)
        at_gap = at_gap or (
            with_moved_arguments(failed, program, False) if best is None or best.replaces is None else None
        )
        if at_gap is not None:
            return Advice(*at_gap)  # there is nothing to choose: a mask leaves it out, or the formula has a limit
    if best is not None:
        if best.beyond and best.is_whole and lost is None:
            exact = f"and {best.beyond}: this formula gives none, not even in float64"
        other_than = re.sub(r"\d", "", best.line)  # two rewrites may differ in numbers alone
        others = [each for each in found if each.choice and best.choice and re.sub(r"\d", "", each.line) != other_than]
        text = "\n".join([_told(best), *map(_or, others[:1])])
        return Advice(text, best.replaces, exact=exact, tried=(best, *others[:1]))
    constant = _constant_lost(lost, failed)
    situation = "" if constant is None else EPSILON
    bound = "" if lost is None else next((each.line for each in found), "")
    if bound:
        return Advice("\n".join([_BOUND, *(f"# {line}" for line in bound.splitlines())]), exact=exact)
    if exact and (grown := _grown(failed)):
        return Advice(exact=f"{exact}; {grown}", situation=GROWTH)
    if constant is not None or lost is not None and lost.fits and lost.is_beyond:
        return Advice(exact=exact, situation=situation or BEYOND)
    choices = [each for each in REWRITES.get(failed.call.name, ()) if each.choice]
    fit = [each for each in choices if _runs(each, failed)]
    refused = tuple(dict.fromkeys(each.code for each in fit or choices))
    return Advice(exact=exact, refused=refused, fits=None if lost is None else lost.fits)


def advice_at_gap(chains: Sequence[Chain], program: Program) -> Advice:
    """The advice for a `where` that leaves out 0 / 0 where the formula has a limit."""
    is_alone = are_finite(_results_elsewhere(chains[-1].call, program))
    found = guarded(chains) if is_alone else None  # the new line has the slope of one call as a number
    return NOTHING_TRIED if found is None else Advice(found.remedy, found.replaces, is_only=found.has_slope)


_BOUND = "# its dtype has no room for this number. A bound keeps it finite, and changes what is computed, as in"


def _constant_lost(lost: Lost | None, chain: Chain) -> float | None:
    """The constant that the dtype rounded to 0, if it is an operand of the call that lost a number."""
    if lost is None or lost.key is None:
        return None
    result, call = chain.made[lost.key]
    numbers = each_in((call.args, call.kwargs), float)
    return next((each for each in numbers if each > 0 and float(torch.tensor(each, dtype=result.dtype)) == 0), None)


def _grown(chain: Chain) -> str:
    """How the results of the calls of one line grew up to the last one; empty if they did not, each time."""
    results = [tensor for tensor, call in chain.made.values() if call.is_again(chain.call)]
    sizes = [float(tensor.abs().max()) for tensor in results]
    if len(sizes) < 3 or not all(1.5 * before < after for before, after in pairwise(sizes)):
        return ""
    return f"the calls of this line before it gave up to {', '.join(map(number, sizes[-3:]))}"


def _or(found: Tried) -> str:
    """Another way, as a comment."""
    what = f"{found.choice} ({found.measured})" if found.choice else found.measured
    return "\n".join(f"# {line}" for line in (f"or: {what}", *found.line.splitlines()))


def _told(found: Tried) -> str:
    if found.choice:
        return f"# a choice: {found.choice}. Tried on your numbers: {found.measured}\n{found.line}"
    return f"# tried on your numbers: {found.measured}{'' if found.beyond else ', as in float64'}\n{found.line}"


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
                if found is not None and _holds_elsewhere(each, match, program):
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
        is_exact = after.value.shape == before.value.shape and _agrees(after, before, exact, False)
        if not is_exact:
            may_choose = rewrite.choice and (lost is None or not lost.fits or exact.is_finite)
            if not may_choose or after.value.shape != before.value.shape or not _agrees(after, before, exact, True):
                return None
            is_harmless = lost is not None and not lost.fits and _gives_the_exact_end(rewrite, chain.call, chains)
            if is_derivative and not is_harmless:
                return None
            near = chains[-1 - AFTER :]
            if not is_harmless and not all(_keeps(later, chain.call, kept) for later in near):
                return None
            decides = () if is_harmless else near
            if not is_limit(chain, kept) or not _has_limits(decides, rewrite, chain.call, program):
                return None
        for seed in range(_ORDINARY):
            numbers = ordinary(given, seed)
            if seed % 2:  # sqrt(1 - exp(x)) exists for negative x alone
                floats = [key for key, each in numbers.items() if each.is_floating_point()]
                numbers |= {key: numbers[key].copysign(given[key]) for key in floats}
            usual = outcome(chain.run(torch.float64, numbers), numbers).defined()
            if not _is_near(outcome(_by_rewrite(rewrite, names, chain, numbers, torch.float64)), usual):
                return None
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError):  # the code does not fit the arguments
        return None
    is_half = is_exact and plain.result.dtype.itemsize == 2
    wanted = program.right if is_half else None
    loss = None if wanted is None else _loss_with_rewrite(program, rewrite, chain.call, None)
    if loss is not None and not agree(loss, wanted, FAR):
        return None  # the operands were rounded too much before this call
    value, gradient = measured(before, rewritten)
    return Tried(
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


def _is_outside(chain: Chain, plain: Run) -> bool:
    """Whether the function of the last call has no value at one of its numbers: log(-4) is no rounding of a number."""
    least, most = numerics_of(chain.call.name).domain
    numbers = [plain.values[id(each)] for each in chain.call.tensors()[:1]]
    return any(bool(((each < least) | (each > most)).any()) for each in numbers if each.is_floating_point())


def _results_elsewhere(call: Call, program: Program) -> list[Tensor]:
    """The results of the other calls of a call's line."""
    return [Chain(other).run().result for other in program.elsewhere(call)]


def _holds_elsewhere(rewrite: Rewrite, match: Match, program: Program) -> bool:
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
            if not _agrees(Outcome(known[0], dict(zip(after.gradients, known[1:], strict=True))), before, exact, True):
                return False
        except (AttributeError, RuntimeError, TypeError, ValueError, IndexError):
            return False
    return True


def _keeps(later: Chain, call: Call, value: Tensor) -> bool:
    """Whether another value of a call leaves a later result what it is in exact arithmetic: atan of inf is a number."""
    key = next((key for key, (_, made) in later.made.items() if made.is_same(call)), None)
    if key is None:
        return True
    exact, now = later.run(torch.float64).result.detach(), later.run(given={key: value}).result.detach()
    known = torch.isfinite(exact.to(now.dtype))
    close = max(CLOSE.get(tensor.dtype, 1e-4) for tensor in (now, value))  # what follows half may be float32
    largest = float(exact[known].abs().max()) if bool(known.any()) else 0.0
    atol = 1e-2 * close * largest  # a sum is rounded as its terms are
    return bool(torch.allclose(now[known].to(exact.dtype), exact[known], rtol=close, atol=atol))


def _has_limits(near: Sequence[Chain], rewrite: Rewrite, call: Call, program: Program) -> bool:
    """Whether the slopes that a rewrite of a call chooses are the limits, where these exist: the square of a norm.

    The loss decides, if it can be computed again, and nothing else fails. Otherwise the calls that follow do, also for
    second derivatives.
    """
    is_first = all(later.order == 1 for later in near)
    now = _loss_with_rewrite(program, rewrite, call, torch.float64) if is_first and program.fails_again else None
    is_known = now is not None and now.outcome.is_finite
    if now is not None and is_known and not are_limits(now.slopes, program.limits):
        return False
    if is_known and program.at_limits is not None:
        return True
    if any(_is_open(later, call) for later in near):
        return is_first and _tends_to_a_limit(rewrite, call, program)
    pairs = () if is_known else ((later, _with_rewrite(later, rewrite, call)) for later in near)
    return all(changed is None or have_limits(later, changed) for later, changed in pairs)


def _is_open(later: Chain, call: Call) -> bool:
    """Whether a later call subtracts or divides infinities that a call led to, or multiplies one by 0.

    Then its result may have a limit, to which no number in place of the infinity leads. A 0 that was not computed is a
    mask: no number in place of the infinity changes what it gives.
    """
    operands = later.call.tensors()
    if not any(made.is_same(call) for made in later.calls()[1:]) or any(bool(each.isnan().any()) for each in operands):
        return False
    finite = [each for each in operands if are_finite(each)]
    is_by_0 = later.call.name == "mul" and all(id(each) in later.wanted for each in finite)
    return len(operands) > 1 and (not finite or is_by_0) and bool(later.run().result.isnan().any())


def _tends_to_a_limit(rewrite: Rewrite, call: Call, program: Program) -> bool:
    """Whether the loss hardly depends on how large the number is that a rewrite gives in place of an infinity."""
    infinite = Chain(call).run().result.isinf()
    found = _in_place_of(call, rewrite, program)
    if found is None or bool((found[1].run().result[infinite].abs() < _LARGE).any()):
        return False
    at, chain = found

    def larger(*args: Any, **kwargs: Any) -> Tensor:
        result = chain.call.func(*args, **kwargs)
        return torch.where(infinite, _LARGE * result, result)

    ways = chain.call, chain.call._replace(func=larger)
    one, other = (once_more(program, dtype=torch.float64, changed={at: each}) for each in ways)
    return agree(other, one, 1e-3)


def _is_unknown(program: Program) -> bool:
    """Whether there is a loss that can't be computed again."""
    return bool(program.loss) and not program.fails_again


def _loss_with_rewrite(program: Program, rewrite: Rewrite, call: Call, dtype: torch.dtype | None) -> Again | None:
    """The loss and its gradients, with a rewrite in place of a call; None if they are not known."""
    found = _in_place_of(call, rewrite, program)
    return None if found is None else once_more(program, dtype=dtype, changed={found[0]: found[1].call})


def _in_place_of(call: Call, rewrite: Rewrite, program: Program) -> tuple[int, Chain] | None:
    """The position of a call in the program, and a chain with a rewrite in its place; None if they are not known."""
    at = position_of(call, program.calls)
    chain = None if at is None else _with_rewrite(Chain(program.calls[at][1], program.made), rewrite, call)
    return None if at is None or chain is None else (at, chain)


def _gives_the_exact_end(rewrite: Rewrite, call: Call, chains: Sequence[Chain]) -> bool:
    """Whether the last result that the dtype has room for, and its gradients, are exact with a rewrite of a call.

    A mask of -65504 leaves out the same elements as the mask of -1e9 that float16 has no room for.
    """
    for later in chains:
        before = outcome(later.run())
        exact = exactly(later, before).found
        if not later.call.is_again(call) and exists(before, exact):
            changed = _with_rewrite(later, rewrite, call)
            return changed is not None and _agrees(outcome(changed.run()), before, exact, False)
    return False


def _with_rewrite(chain: Chain, rewrite: Rewrite, call: Call) -> Chain | None:
    """The chain with a rewrite in place of a call in it; None if the rewrite does not fit there."""
    again = next((each for each in chain.calls() if each.is_same(call)), None)
    match = next(matches(rewrite.pattern, again, chain, Match({}, ())), None)
    if again is None or match is None:
        return None
    put = rewritten(again, rewrite, match)
    return chain.with_calls(lambda each: put if each is again else each)


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


def _runs(rewrite: Rewrite, chain: Chain) -> bool:
    """Whether a rewrite fits the last call of a chain, and can run on its operands."""
    for names, _ in matches(rewrite.pattern, chain.call, chain, Match({}, ())):
        given = {id(thing): thing for thing in names.values() if isinstance(thing, Tensor)}
        with contextlib.suppress(AttributeError, RuntimeError, TypeError, ValueError, IndexError):
            _by_rewrite(rewrite, names, chain, given, None)
            return True
    return False


def _is_near(after: Outcome, program: Outcome) -> bool:
    """Whether a rewrite gives what the program gives, where that gives numbers. Both are in float64, or of integers."""
    for now, was in zip(after.parts, program.parts, strict=True):
        known = torch.isfinite(was)
        if not torch.allclose(now[known].to(was.dtype), was[known], rtol=1e-7, atol=1e-9):
            return False
    return True


def _agrees(after: Outcome, before: Outcome, exact: Outcome, chooses: bool) -> bool:
    """Whether what a rewrite gives is finite, and is what exact arithmetic gives, if that gives a number."""
    for now, was, right in zip(after.parts, before.parts, exact.parts, strict=True):
        known = torch.isfinite(right.to(was.dtype))
        # Other elements have no such number, or it does not fit the dtype. The program had none, so a rewrite chooses.
        if not are_finite(now) or not chooses and not bool(known.all()):
            return False
        finite = right[torch.isfinite(right)]
        largest = min(float(finite.abs().max()), 1.0) if finite.numel() else 0.0
        rtol, atol = CLOSE.get(was.dtype, 1e-4), torch.finfo(was.dtype).eps * largest  # of rounding
        rounded = (was.to(right.dtype)[known] - right[known]).abs().nan_to_num(0, 0)  # that of the program is no better
        size = right[known].abs()
        allowed = atol + rtol * size + torch.minimum(4 * rounded, 1e-2 * size)
        if bool(((now.to(right.dtype)[known] - right[known]).abs() > allowed).any()):
            return False
    return True
