"""The order in which remedies are tried: a rewrite, a wider dtype, a limit, what a mask leaves out, a bound."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch

from ...functions.numerics import numerics_of
from ...functions.rewrites import REWRITES
from ..births.arithmetic import number
from ..births.chain import Chain
from ..births.findings import Mistakes
from ..program.code import Place, printable
from ..program.rerun import extra
from ..program.source import can_come_before, lacks_torch
from ..program.tensors import are_finite, each_in
from .again import Program
from .choices import loss_with_line
from .exact import Lost, lost_on_the_way
from .gaps import filled, guarded, kept_away
from .left_out import masked_before, with_large_numbers, without_them
from .moved import with_moved_arguments
from .remedies import BEYOND, EPSILON, GROWTH
from .trial import AFTER, Tried, holds_elsewhere, results_elsewhere, runs, tried
from .vectors import with_other_values
from .wider import in_a_wider_dtype

MOST_ELEMENTS = 5_000_000
"""The largest size of the operands for which anything is tried."""

_SECONDS = 3.0
"""The seconds after which a terminal shows that remedies are being tried."""


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


class _Failure(NamedTuple):
    """What is known of a failed call.

    Attributes:
        chains: the calls that used the number, and last the call in which it was born.
        program: all known calls.
        lost: the intermediate number that was lost; None if the exact result is no number either.
        found: the rewrites that are right, the best first.
        is_recorded: whether the gradient may be differentiated again. Then no slope is written down as a number.
    """

    chains: Sequence[Chain]
    program: Program
    lost: Lost | None
    found: list[Tried]
    is_recorded: bool

    @property
    def failed(self) -> Chain:
        return self.chains[-1]

    @property
    def best(self) -> Tried | None:
        """The best rewrite that gives the exact numbers, or that chooses where there are none."""
        return next((each for each in self.found if not each.is_bound), None)

    @property
    def needs_a_choice(self) -> bool:
        """Whether no rewrite gives the exact numbers."""
        return self.best is None or bool(self.best.choice)

    @property
    def exact(self) -> str:
        return "" if self.lost is None else str(self.lost)

    @property
    def has_lost_a_constant(self) -> bool:
        """Whether the dtype rounded a constant to 0 that is an operand of the call that lost a number."""
        if self.lost is None or self.lost.key is None:
            return False
        result, call = self.failed.made[self.lost.key]
        numbers = each_in((call.args, call.kwargs), float)
        return any(each > 0 and float(torch.tensor(each, dtype=result.dtype)) == 0 for each in numbers)


def advice_on(
    chains: Sequence[Chain],
    program: Program,
    is_derivative: bool = False,
    asked: Collection[int | None] = (),
    is_recorded: bool = False,
) -> Advice:
    """Try rewrites of the calls in which a number was born, and run the failed call in exact arithmetic.

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
    near = chains[-1 - AFTER :]
    found = [each for chain in near for each in tried(chain, chains, lost, program, is_derivative, asked)]
    found.sort(key=lambda each: (bool(each.choice), each.replaces is None, each.is_far))
    failure = _Failure(chains, program, lost, found, is_recorded)
    return next(advice for way in _WAYS if (advice := way(failure)) is not None)


def _in_a_wider_dtype(failure: _Failure) -> Advice | None:
    best, lost, program = failure.best, failure.lost, failure.program
    if best is not None and best.replaces is not None and not best.is_coarse and (lost is not None or not best.choice):
        return None
    if lost is not None and lost.is_beyond or program.is_rounded_before:
        return None
    wide = in_a_wider_dtype(failure.chains, program)
    if wide is None:
        return None
    known = [] if best is None else [best]
    text = "\n".join([wide.text, *map(_or, known)])
    situation = EPSILON if failure.has_lost_a_constant else ""
    return Advice(text, wide.replaces, wide.until, failure.exact, situation=situation, tried=tuple(known))


def _at_the_limit(failure: _Failure) -> Advice | None:
    if not (failure.program.is_rounded_before and failure.needs_a_choice):
        return None
    moved = with_moved_arguments(failure.failed, failure.program, True)
    return None if moved is None else Advice(*moved)


def _where_nothing_is_chosen(failure: _Failure) -> Advice | None:
    """What follows leaves the element out, or the formula has a limit."""
    if failure.lost is not None or not failure.needs_a_choice:
        return None
    failed, program, best = failure.failed, failure.program, failure.best
    elsewhere = results_elsewhere(failed.call, program)
    found = None if elsewhere else kept_away(failed)
    if found is None and are_finite(elsewhere) and not failure.is_recorded:
        found = filled(failed)  # the new line has the limit of one call as a number
    found = found or masked_before(failure.chains, program) or with_large_numbers(failed.call, program)
    holds = partial(holds_elsewhere, program=program)
    found = found or without_them(failed.call, program, None if best is None else best.line, holds)
    if found is not None:
        return Advice(*found)
    moved = with_moved_arguments(failed, program, False) if best is None or best.replaces is None else None
    return None if moved is None else Advice(*moved)


def _rewritten(failure: _Failure) -> Advice | None:
    best, exact = failure.best, failure.exact
    if best is None:
        return None
    if best.beyond and best.is_whole and failure.lost is None:
        exact = f"and {best.beyond}: this formula gives none, not even in float64"
    other_than = re.sub(r"\d", "", best.line)  # two rewrites may differ in numbers alone
    choices = [each for each in failure.found if each.choice and best.choice]
    others = [each for each in choices if re.sub(r"\d", "", each.line) != other_than][:1]
    text = "\n".join([_told(best, failure.program), *map(_or, others)])
    return Advice(text, best.replaces, exact=exact, tried=(best, *others))


def _bounded(failure: _Failure) -> Advice | None:
    if failure.lost is None or not failure.found:
        return None
    return Advice(
        "\n".join([_BOUND, *(f"# {line}" for line in failure.found[0].line.splitlines())]), exact=failure.exact
    )


def _grown(failure: _Failure) -> Advice | None:
    """How the results of the calls of one line grew up to the last one, if they did each time."""
    failed = failure.failed
    results = [tensor for tensor, call in failed.made.values() if call.is_again(failed.call)]
    sizes = [float(tensor.abs().max()) for tensor in results]
    if not failure.exact or len(sizes) < 3 or not all(1.5 * before < after for before, after in pairwise(sizes)):
        return None
    grown = f"the calls of this line before it gave up to {', '.join(map(number, sizes[-3:]))}"
    return Advice(exact=f"{failure.exact}; {grown}", situation=GROWTH)


def _lost(failure: _Failure) -> Advice | None:
    if failure.has_lost_a_constant:
        return Advice(exact=failure.exact, situation=EPSILON)
    is_beyond = failure.lost is not None and failure.lost.fits and failure.lost.is_beyond
    return Advice(exact=failure.exact, situation=BEYOND) if is_beyond else None


def _refused(failure: _Failure) -> Advice:
    """No remedy, but what was tried."""
    choices = [each for each in REWRITES.get(failure.failed.call.name, ()) if each.choice]
    fit = [each for each in choices if runs(each, failure.failed)]
    refused = tuple(dict.fromkeys(each.code for each in fit or choices))
    return Advice(exact=failure.exact, refused=refused, fits=None if failure.lost is None else failure.lost.fits)


_WAYS: tuple[Callable[[_Failure], Advice | None], ...] = (
    _in_a_wider_dtype,
    _at_the_limit,
    _where_nothing_is_chosen,
    _rewritten,
    _bounded,
    _grown,
    _lost,
    _refused,
)
"""The first that gives advice decides."""


def advice_at_gap(chains: Sequence[Chain], program: Program) -> Advice:
    """The advice for a `where` that leaves out 0 / 0 where the formula has a limit."""
    is_alone = are_finite(results_elsewhere(chains[-1].call, program))
    found = guarded(chains) if is_alone else None  # the new line has the slope of one call as a number
    return NOTHING_TRIED if found is None else Advice(found.remedy, found.replaces, is_only=found.has_slope)


_BOUND = "# its dtype has no room for this number. A bound keeps it finite, and changes what is computed, as in"


def _or(found: Tried) -> str:
    """Another way, as a comment."""
    what = f"{found.choice} ({found.measured})" if found.choice else found.measured
    return "\n".join(f"# {line}" for line in (f"or: {what}", *found.line.splitlines()))


def _told(found: Tried, program: Program) -> str:
    """A rewrite, below comments with what it gives on the user's numbers."""
    what = f"a choice: {found.choice}. Tried on your numbers" if found.choice else "tried on your numbers"
    told = [f"# {what}: {found.measured}{'' if found.choice or found.beyond else ', as in float64'}"]
    after = None if found.replaces is None else loss_with_line(program, found.rewrite, found.call)
    if after is not None and after.outcome.is_finite:
        loss = number(after.outcome.value.max().item())
        told.append(f"# With this line, the loss is {loss}, and every gradient is finite.")
    return "\n".join([*told, found.line])
