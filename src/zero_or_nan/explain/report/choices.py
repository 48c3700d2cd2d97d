"""Finds out whether a number that a rewrite chooses fits with what follows: the calls after it, and the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...functions.rewrites import Rewrite
from ..births.call import Call
from ..births.chain import Chain
from ..program.tensors import are_finite
from .again import Again, Program, agree, once_more, position_of
from .exact import CLOSE, agrees, exactly, exists, outcome
from .gaps import rewritten
from .limits import are_limits, have_limits
from .matching import Match, matches

_LARGE = 1e3
"""A factor that makes a number much larger, and the least number that may be the rest of an infinity."""


def keeps(later: Chain, call: Call, value: Tensor) -> bool:
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


def has_limits(near: Sequence[Chain], rewrite: Rewrite, call: Call, program: Program) -> bool:
    """Whether the slopes that a rewrite of a call chooses are the limits, where these exist: the square of a norm.

    The loss decides, if it can be computed again, and nothing else fails. Otherwise the calls that follow do, also for
    second derivatives.
    """
    is_first = all(later.order == 1 for later in near)
    now = loss_with_rewrite(program, rewrite, call, torch.float64) if is_first and program.fails_again else None
    is_known = now is not None and now.outcome.is_finite
    if now is not None and is_known and not are_limits(now.slopes, program.limits):
        return False
    if is_known and program.at_limits is not None:
        return True
    if any(_is_open(later, call) for later in near):
        return is_first and _tends_to_a_limit(rewrite, call, program)
    pairs = () if is_known else ((later, with_rewrite(later, rewrite, call)) for later in near)
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


def gives_the_exact_end(rewrite: Rewrite, call: Call, chains: Sequence[Chain]) -> bool:
    """Whether the last result that the dtype has room for, and its gradients, are exact with a rewrite of a call.

    A mask of -65504 leaves out the same elements as the mask of -1e9 that float16 has no room for.
    """
    for later in chains:
        before = outcome(later.run())
        exact = exactly(later, before).found
        if not later.call.is_again(call) and exists(before, exact):
            changed = with_rewrite(later, rewrite, call)
            return changed is not None and agrees(outcome(changed.run()), before, exact, False)
    return False


def loss_with_rewrite(program: Program, rewrite: Rewrite, call: Call, dtype: torch.dtype | None) -> Again | None:
    """The loss and its gradients, with a rewrite in place of a call; None if they are not known."""
    found = _in_place_of(call, rewrite, program)
    return None if found is None else once_more(program, dtype=dtype, changed={found[0]: found[1].call})


def loss_with_line(program: Program, rewrite: Rewrite, call: Call) -> Again | None:
    """The loss and its gradients, with a rewrite in place of all calls of a call's line; None if they are not known."""
    if not program.loss or not program.fails_again:
        return None
    chains = {at: Chain(each, program.made) for at, (_, each) in enumerate(program.calls) if each.is_again(call)}
    changed = {at: with_rewrite(chain, rewrite, chain.call) for at, chain in chains.items()}
    known = {at: chain.call for at, chain in changed.items() if chain is not None}
    return once_more(program, changed=known) if known and len(known) == len(chains) else None


def _in_place_of(call: Call, rewrite: Rewrite, program: Program) -> tuple[int, Chain] | None:
    """The position of a call in the program, and a chain with a rewrite in its place; None if they are not known."""
    at = position_of(call, program.calls)
    chain = None if at is None else with_rewrite(Chain(program.calls[at][1], program.made), rewrite, call)
    return None if at is None or chain is None else (at, chain)


def with_rewrite(chain: Chain, rewrite: Rewrite, call: Call) -> Chain | None:
    """The chain with a rewrite in place of a call in it; None if the rewrite does not fit there."""
    again = next((each for each in chain.calls() if each.is_same(call)), None)
    match = next(matches(rewrite.pattern, again, chain, Match({}, ())), None)
    if again is None or match is None:
        return None
    put = rewritten(again, rewrite, match)
    return chain.with_calls(lambda each: put if each is again else each)
