"""Along some dimensions everything goes into everything, by constants: ignored where all was."""

from __future__ import annotations

from typing import Any

from ..cotangent import Cotangent, rule
from .reductions import all_ignored


@rule("_fft_c2c", "_fft_r2c", "_fft_c2r")
def fourier(op: Any, grad: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """The other dimensions are a batch."""
    value = op(grad.value, dim, *args, **kwargs)
    return Cotangent(value, None if grad.ignored is None else all_ignored(grad.ignored, dim, True).expand(value.shape))
