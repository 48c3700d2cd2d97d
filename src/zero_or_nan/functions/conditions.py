"""Conditions on the saved tensors of a node. If they hold, plain backward keeps an ignored element at 0 there.

0 times a finite number is 0. A condition says which numbers may be in the saved tensors, so that the derivative can't
turn a 0 into NaN or infinity. `precheck` measures the saved tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..masks.numbers import total


class Condition(NamedTuple):
    """What to measure in one scan of a saved tensor, and which results are safe."""

    measure: Callable[[Tensor], tuple[Tensor, ...]]
    accepts: Callable[..., bool]


@functools.cache
def bound(dtype: torch.dtype) -> float:
    """A limit for absolute values: squares and cubes up to it don't overflow, nor do the inverses of these."""
    return float(torch.finfo(dtype).max ** 0.25)


def _moderate(dtype: torch.dtype, low: float, high: float) -> bool:
    """True if a tensor with these extremes is `MODERATE`."""
    limit = bound(dtype)
    return -limit <= low and high <= limit


def _away_from_zero(dtype: torch.dtype, low: float, high: float) -> bool:
    """True if a tensor with these extremes is `AWAY_FROM_ZERO`."""
    limit = bound(dtype)
    return 1 / limit <= low and high <= limit or -limit <= low and high <= -1 / limit


ALWAYS = Condition(lambda tensor: (), lambda dtype: True)
"""No condition. Use it if the derivative multiplies only by constants, or reads its saved tensors only to select."""

NEVER = Condition(lambda tensor: (), lambda dtype: False)
"""No condition is enough. Use it for an unknown function, or one that can turn a 0 into NaN for every saved tensor."""

FINITE = Condition(lambda tensor: (total(tensor),), lambda dtype, total: math.isfinite(total))
"""All elements are finite. Use it if the derivative multiplies by a saved tensor, or by a bounded function of it."""

MODERATE = Condition(torch.aminmax, _moderate)
"""No absolute value is above the 4th root of the dtype's largest number. Use it if the derivative could overflow."""

AWAY_FROM_ZERO = Condition(torch.aminmax, _away_from_zero)
"""All elements have one sign, and they and their inverses are `MODERATE`. Use it for a divisor."""
