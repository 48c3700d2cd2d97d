"""Fourier transforms. Along the transformed dimensions, each element goes into each result, with constant weights."""

from __future__ import annotations

from typing import Any

from ...masks.cotangent import Cotangent
from ...masks.mask import anywhere
from ..registry import function, rule

function("FftR2C", selects=True)


@rule("_fft_c2c", "_fft_r2c", "_fft_c2r")
def fourier(op: Any, grad: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """An element counts if any element along the transformed dimensions counts."""
    value = op(grad.value, dim, *args, **kwargs)
    return Cotangent(value, None if grad.mask is None else anywhere(grad.mask, dim, True).expand(value.shape))
