"""Finds the limit of a chain where its result is NaN: sin(x) / x is 0 / 0 at 0, but near 1 beside it.

The chain runs in float64 on numbers beside those of the program, on all sides. If the runs agree, that is the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..births.call import Call
from ..births.chain import Chain
from ..program.tensors import are_finite, not_finite
from .exact import outcome


def ordinary(given: Mapping[int, Tensor], seed: int, most: float = 1.8) -> dict[int, Tensor]:
    """Tensors of the same shapes, with random numbers between 0.05 and `most` + 0.05."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: drawn(torch.rand, tensor, generator) * most + 0.05 if tensor.is_floating_point() else tensor
        for key, tensor in given.items()
    }


def drawn(draw: Callable[..., Tensor], like: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers in the shape of a tensor. They are drawn on the CPU, so they are the same on every device."""
    return draw(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like.device)


def is_limit(chain: Chain, value: Tensor) -> bool:
    """Whether a chosen value is the limit of the chain where it is not finite. True without a limit."""
    bad = not_finite(chain.run(torch.float64).result.detach())
    limits = limits_of(chain, bad)
    chosen = value.detach()[bad].to(limits.dtype)
    return not bool(((limits - chosen).abs() > 5e-2 * (1 + chosen.abs())).any())


def limits_of(chain: Chain, bad: Tensor) -> Tensor:
    """The limits of the elements of a result; NaN if there is none.

    An input of the chain may be at the end of a domain. Then the tensors two calls before the last are moved instead.
    """
    near = chain.call.tensors()
    for _ in range(2):
        before = [(tensor, chain.of(tensor)) for tensor in near]
        near = [each for tensor, call in before for each in ([tensor] if call is None else call.tensors())]
    first, second = (_limits_beside(chain, bad, moved) for moved in (coming_in(chain), near))
    return torch.where(first.isnan(), second, first)


def coming_in(chain: Chain) -> list[Tensor]:
    """The tensors of a chain that no call in it has made."""
    every = {id(each): each for call in chain.calls() for each in call.tensors() if id(each) not in chain.made}
    return [*every.values()]


def _limits_beside(chain: Chain, bad: Tensor, moved: Iterable[Tensor]) -> Tensor:
    """What a result tends to if these tensors are moved a little; NaN if that depends on how they are moved."""
    return _common(torch.stack([chain.run(torch.float64, there).result.detach()[bad] for there in beside(moved)]))


NEAR = 6
"""How many of the neighbours from `beside` are the nearest ones."""


def beside(tensors: Iterable[Tensor]) -> Iterator[dict[int, Tensor]]:
    """By identity, copies of the tensors with slightly moved numbers: to all sides, only up, or only down.

    The first `NEAR` copies are moved less than the others.
    """
    given = {id(tensor): tensor for tensor in tensors if tensor.is_floating_point()}
    generator = torch.Generator().manual_seed(0)
    sizes = {key: size_of(tensor) for key, tensor in given.items()}
    for step in (1e-5, 1e-3):
        for side in (Tensor.clone, Tensor.clone, Tensor.abs, Tensor.abs, _down, _down):
            moves = {key: side(drawn(torch.randn, tensor, generator)) for key, tensor in given.items()}
            yield {key: tensor + step * sizes[key] * moves[key] for key, tensor in given.items()}


_MOST_WRITTEN = 1000
"""The largest number of elements of a tensor that may be written in the code."""


def as_written(tensor: Tensor) -> Tensor:
    """A tensor in float64, with the numbers that the code may have: the shortest that float32 rounds to its numbers."""
    if tensor.dtype is not torch.float32 or tensor.numel() > _MOST_WRITTEN:
        return tensor
    ways = [[float(f"{each:.{digits}g}") for each in tensor.flatten().tolist()] for digits in range(6, 10)]
    rounded = torch.tensor(ways, dtype=torch.float64)
    same = rounded.float() == tensor.detach().flatten().cpu()
    first = same.int().argmax(0, keepdim=True)  # nine digits are always enough
    return rounded.gather(0, first).reshape(tensor.shape).to(tensor.device)


def size_of(tensor: Tensor) -> float:
    """The largest number of a tensor if it is below 1, as of microscopic lengths in metres; otherwise 1."""
    largest = float(tensor.detach().abs().nan_to_num(0, 0).max()) if tensor.numel() else 0.0
    return largest if 0 < largest < 1 else 1.0


def _down(tensor: Tensor) -> Tensor:
    return -tensor.abs()


def _common(found: Tensor) -> Tensor:
    """What the nearest rows agree on, element by element, if the others are not far from that.

    NaN where they do not, or where most are no numbers.
    """
    known = torch.isfinite(found)
    near = known[:NEAR]
    mean = torch.where(near, found[:NEAR], 0).sum(0) / near.sum(0)
    away, largest = (torch.where(known, each.abs(), 0) for each in (found - mean, found))
    size = largest.amax(0)
    agree = (away[:NEAR].amax(0) < 1e-2 * (1 + size)) & (away.amax(0) < 1e-2 + 2e-1 * size)
    return torch.where((known.sum(0) > 2) & agree, mean, torch.nan)


def _differ(found: Tensor) -> bool:
    """Whether the rows differ in each element by so much that they have no limit in common, whatever rows are added.

    If none of the nearest rows has a number, no limit is looked for.
    """
    known = torch.isfinite(found)
    if len(found) == NEAR and not bool(known.any()):
        return True
    largest = torch.where(known, found.abs(), 0).amax(0)
    spread = torch.where(known, found, -torch.inf).amax(0) - torch.where(known, found, torch.inf).amin(0)
    most = 4e-2 * (1 + largest) if len(found) <= NEAR else 2e-2 + 4e-1 * largest
    return bool((spread > most).all())


Slopes = Mapping[Any, Tensor]
"""Slopes, each with the variable of the derivative as its key. A value may be among them."""


def limits_of_slopes(plain: Slopes, moved: Iterable[Slopes]) -> dict[Any, tuple[Tensor, Tensor]]:
    """Where slopes are not finite, and their limits there: NaN without a limit. Empty if no slope has a limit.

    Args:
        plain: the slopes.
        moved: the slopes at the neighbours from `beside`, in the same order.
    """
    missing = {key: bad for key, slope in plain.items() if bool((bad := not_finite(slope)).any())}
    if any(plain[key].is_complex() for key in missing):
        return {}
    found: dict[Any, list[Tensor]] = {key: [] for key in missing}
    for slopes in moved if missing else ():
        for key, bad in missing.items():
            found[key].append(slopes[key][bad])
        if all(_differ(torch.stack(rows)) for rows in found.values()):
            return {}  # most lengths need two runs
    if not all(found.values()):
        return {}  # the numbers beside could not run
    return {key: (bad, _common(torch.stack(found[key]))) for key, bad in missing.items()}


def are_limits(chosen: Slopes, limits: Mapping[Any, tuple[Tensor, Tensor]]) -> bool:
    """Whether chosen slopes are the limits, wherever there are limits. An unknown slope counts as 0."""
    for key, (bad, limit) in limits.items():
        here = chosen[key][bad] if key in chosen else torch.zeros_like(limit)
        if bool(((limit - here).abs() > 1e-2 + 5e-2 * here.abs()).any()):
            return False
    return True


def have_limits(chain: Chain, changed: Chain) -> bool:
    """Whether a changed chain has the limits of the chain's slopes as its slopes, where these are not finite."""
    moved = (outcome(chain.run(torch.float64, there)).gradients for there in beside(coming_in(chain)))
    limits = limits_of_slopes(outcome(chain.run(torch.float64)).gradients, moved)
    return not limits or are_limits(outcome(changed.run(torch.float64)).gradients, limits)


def is_steady(chain: Chain) -> bool:
    """Whether float64 has enough digits for a chain: changes in the last digits of each result hardly change it."""
    generator = torch.Generator().manual_seed(0)

    def rounded(call: Call) -> Call:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = call.func(*args, **kwargs)
            is_rounded = isinstance(result, Tensor) and result.dtype is torch.float64 and rounds(call)
            return result * (1 + 1e-15 * drawn(torch.randn, result, generator)) if is_rounded else result

        return call._replace(func=run)

    other = outcome(chain.with_calls(rounded).run(torch.float64))
    for was, now in zip(outcome(chain.run(torch.float64)).parts, other.parts, strict=True):
        known = was.isfinite()
        largest = float(was[known].abs().max()) if bool(known.any()) else 0.0
        if not torch.allclose(now, was, rtol=1e-4, atol=1e-4 * largest, equal_nan=True):
            return False
    return True


def rounds(call: Call) -> bool:
    """Whether a call may round its result: it has operands that are no integers, and does more than to move them."""
    return any(each.is_floating_point() for each in call.tensors()) and not call.plan.numerics.moves


def is_all(numbers: Tensor, value: float) -> bool:
    """Whether all numbers are near a value; NaN is not."""
    return bool(((numbers - value).abs() < 5e-2 * (1 + abs(value))).all())


def limit_and_slope(chain: Chain, leaf: Tensor, bad: Tensor) -> tuple[float, float] | None:
    """The limit and the slope of the bad elements of a result, from both sides of a leaf; None if they differ."""
    found, size = [], size_of(leaf)
    for step, sign in ((2e-3 * size, 1), (4e-3 * size, -1)):
        # Neighbours first move in the same direction, then apart. A result must not depend on its neighbours.
        moves = step * torch.tensor([1.0, sign], dtype=torch.float64, device=leaf.device).repeat(leaf.numel())
        move = moves[: leaf.numel()].reshape(leaf.shape)
        sides = (leaf.double() + move, leaf.double() - move)
        up, down = (chain.run(torch.float64, {id(leaf): side}).result.detach() for side in sides)
        steepness = (up - down) / (2 * (move if move.shape == up.shape else step))
        found.append(torch.stack([((up + down) / 2)[bad], steepness[bad]]))
    near, far = found
    numbers = (4 * near - far) / 3  # Richardson's: the error that grows with the square of the step cancels
    value, slope = (float(each) for each in numbers[:, 0])
    has_kink = bool(((near[0] - value).abs() > 1e-2 * 2e-3 * (1 + size * abs(slope))).any())
    is_one = torch.allclose(near, far, rtol=1e-3, atol=1e-3)
    is_common = float((numbers - numbers[:, :1]).abs().max()) < 1e-6 * (1 + abs(value))
    if not are_finite(numbers) or has_kink or not is_one or not is_common:
        return None
    return (value if abs(value) > 1e-6 else 0.0), (slope if abs(slope) > 1e-6 else 0.0)
