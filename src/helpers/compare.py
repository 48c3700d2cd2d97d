"""Whether an observed element equals the expected element, exactly or within a stated number of ulps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from zero_or_nan.selfcheck.words import ROUNDED as ROUNDED  # re-exported: both judge a gradient by the same words

from .entries import Absent, Entries, Outcome, Raised

_INTEGER_VIEW = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


WIDEST = 0.2
"""The largest tolerance of a claim, as a part of the largest expected element."""


@dataclass(frozen=True)
class Tolerance:
    """How much an observed element may differ from the expected element.

    By default, the two must be equal. NaN equals NaN, masked equals masked, and `-0.0` equals `0.0` unless
    `signed_zero` is set. With a tolerance, the difference may be `ulps` units in the last place of the observed dtype,
    or `atol + rtol * |expected|`, whichever is larger. An infinity equals only the same infinity. `because` tells
    readers the reason for a wide tolerance.
    """

    ulps: int = 0
    rtol: float = 0.0
    atol: float = 0.0
    signed_zero: bool = False
    because: str = ""

    def __post_init__(self) -> None:
        for name in ("ulps", "rtol", "atol"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number, at least 0; got {value}")

    def __str__(self) -> str:
        parts = [f"within {self.ulps} ulp{'s' if self.ulps > 1 else ''}"] if self.ulps else []
        parts += [f"{name} {value:g}" for name, value in (("rtol", self.rtol), ("atol", self.atol)) if value]
        parts += ["sign of zero counts"] if self.signed_zero else []
        parts += [f"because {self.because}"] if self.because else []
        return ", ".join(parts) or "exactly"

    def fault(self, expected: Outcome) -> str:
        """Why no claim may have this tolerance about this expected result; empty if a claim may."""
        if self.ulps > ROUNDED:
            return f"more than {ROUNDED} ulps are not rounding; state rtol or atol, and the reason"
        if (self.rtol or self.atol) and not self.because:
            return 'state ulps, or the reason, for readers: because="the draws are random"'
        numbers = expected.data[expected.mask].double().abs().tolist() if isinstance(expected, Entries) else []
        largest = max(filter(math.isfinite, numbers), default=0)
        if largest and self.atol + self.rtol * largest > largest * WIDEST:
            return f"no reason allows more than {WIDEST:.0%} of the largest expected element"
        return ""


def ulp_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The distance from `a` to `b` in units in the last place (ulps), element by element.

    One ulp is the step from one representable number to the next.

    Args:
        a, b: tensors with the same shape and the same dtype: float16, bfloat16, float32 or float64. Their elements
            should be finite: NaN and infinite elements are compared by their bits, so leave them out before you count.

    Returns:
        An int64 tensor. It is 0 if the two elements are equal (`-0.0` equals `0.0`), and positive if `b` is larger.

    Raises:
        TypeError: if the dtypes differ, or are not floating-point dtypes.

    The bits of an IEEE 754 number, read as a sign and an integer, count the representable numbers from zero. So the
    difference of two such counts is the distance (Goldberg 1991, doi:10.1145/103162.103163). The distance between two
    float64 numbers of opposite sign may be too large for int64. The result is then the largest int64 number, with the
    right sign.

    >>> one = torch.tensor([1.0])
    >>> ulp_distance(one, torch.nextafter(one, torch.tensor([2.0])))
    tensor([1])
    """
    if a.dtype is not b.dtype or a.dtype not in _INTEGER_VIEW:
        raise TypeError(f"ulp_distance needs two tensors of one floating-point dtype, got {a.dtype} and {b.dtype}")
    first, second = _rank(a), _rank(b)
    distance = second - first
    # If the signs are opposite, the distance may be larger than int64, and the subtraction has wrapped around.
    wrapped = (second >= 0) != (first >= 0)
    wrapped &= (distance >= 0) != (second >= 0)
    limit = torch.iinfo(torch.int64).max
    # The lowest int64 has no absolute value. Without the clamp, the distance of -2.0 from 2.0 would count as "within an
    # ulp".
    return torch.where(wrapped, torch.where(second >= 0, limit, -limit), distance).clamp(min=-limit)


def _rank(x: torch.Tensor) -> torch.Tensor:
    """The position of each element among all numbers of its dtype, counted from zero."""
    integer = _INTEGER_VIEW[x.dtype]
    bits = x.detach().resolve_neg().contiguous().view(integer).to(torch.int64)
    magnitude = bits & torch.iinfo(integer).max
    return torch.where(bits < 0, -magnitude, magnitude)


def differing(expected: Outcome, observed: Outcome, tolerance: Tolerance = Tolerance()) -> list[int] | None:
    """The flat indices at which `observed` differs from `expected`. The list is empty if they agree.

    The result is None if the two can't be compared element by element. This is so if they have different shapes, or if
    one of them is an exception or absent. Two exceptions agree if they have the same type and, if the expected
    exception has a message, the observed message contains it.

    >>> from helpers.entries import outcome
    >>> differing(outcome([0.0, 1.0]), outcome([float("nan"), 1.0]))
    [0]
    """
    if isinstance(expected, Raised) and isinstance(observed, Raised):
        return [] if expected.type == observed.type and expected.message in observed.message else None
    if isinstance(expected, Absent) and isinstance(observed, Absent):
        return []
    if not (isinstance(expected, Entries) and isinstance(observed, Entries)) or expected.shape != observed.shape:
        return None
    if not len(observed):
        return []
    same = _same(expected.data.flatten(), observed.data.flatten(), tolerance)
    both, either = expected.mask & observed.mask, expected.mask | observed.mask
    holds = torch.where(both.flatten(), same, ~either.flatten())
    return (~holds).nonzero().flatten().tolist()


def _same(expected: torch.Tensor, observed: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    wide, seen = expected.double(), observed.double()
    near = torch.zeros_like(observed, dtype=torch.bool)
    if tolerance.rtol or tolerance.atol:
        near = wide.isfinite() & ((wide - seen).abs() <= tolerance.atol + tolerance.rtol * wide.abs())
    if not observed.is_floating_point():
        # Compared twice: as float64, so that no fraction is cut off, and as int64, so that no large integer is rounded.
        return near | ((wide == seen) & (expected.to(torch.int64) == observed.to(torch.int64)))
    rounded = expected.to(observed.dtype)
    # If a finite number overflows the observed dtype, it does not equal the infinity: the claim expects no infinity.
    kept = expected.isfinite() == rounded.isfinite()
    exact = (rounded == observed) | (rounded.isnan() & observed.isnan())
    if tolerance.signed_zero:
        exact &= (rounded != 0) | (observed != 0) | (rounded.signbit() == observed.signbit())
    finite = rounded.isfinite() & observed.isfinite()
    if tolerance.ulps:
        near |= ulp_distance(rounded, observed).abs() <= tolerance.ulps
    if tolerance.signed_zero:
        near &= (rounded != 0) | (observed != 0)
    return kept & (exact | (finite & near))
