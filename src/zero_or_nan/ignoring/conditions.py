"""What must hold of the tensors that a node saved, so that plain backward makes 0 of an ignored element there.

0 times anything finite is 0. A condition says which numbers a derivative may meet in its saved tensors without making
NaN or infinity of a 0. `precheck` measures them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .finite import total


class Condition(NamedTuple):
    """What is measured of a saved tensor in one scan of its memory, and which measures are safe."""

    measure: Callable[[Tensor], tuple[Tensor, ...]]
    accepts: Callable[..., bool]


def _sum(tensor: Tensor) -> tuple[Tensor, ...]:
    return (total(tensor),)


@functools.cache
def bound(dtype: torch.dtype) -> float:
    """Squares and cubes of numbers up to here don't overflow, nor do their inverses."""
    return float(torch.finfo(dtype).max ** 0.25)


def _moderate(dtype: torch.dtype, low: float, high: float) -> bool:
    limit = bound(dtype)
    return -limit <= low and high <= limit


def _away_from_zero(dtype: torch.dtype, low: float, high: float) -> bool:
    limit = bound(dtype)
    return 1 / limit <= low and high <= limit or -limit <= low and high <= -1 / limit


ALWAYS = Condition(lambda tensor: (), lambda dtype: True)
"""No condition. Use it for a function that multiplies only by constants, or reads its saved tensors only to select."""

NEVER = Condition(lambda tensor: (), lambda dtype: False)
"""No condition is enough. Use it for an unknown function, or one that can make NaN of a 0 for every saved tensor."""

FINITE = Condition(_sum, lambda dtype, total: math.isfinite(total))
"""All elements are finite. Use it for a function that multiplies by a saved tensor, or by a bounded function of it."""

MODERATE = Condition(torch.aminmax, _moderate)
"""No absolute value is above the 4th root of the dtype's largest number. Use it if the derivative could overflow."""

AWAY_FROM_ZERO = Condition(torch.aminmax, _away_from_zero)
"""All elements have one sign, and they and their inverses are `MODERATE`. Use it for a divisor."""
