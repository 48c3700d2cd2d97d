"""Sums skip ignored elements; a sum counts where one of its terms does."""

from __future__ import annotations

from typing import Any

from ..cotangent import Cotangent
from ..masks import anywhere
from ..registry import rule


@rule("sum", "mean")
def summed(op: Any, grad: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """The ignored terms are zeros, so the plain sum skips them."""
    if op._overloadname in ("dim_IntList", "dim"):
        value = op(grad.value, dim, keepdim, **kwargs)
    else:
        value = op(grad.value, **kwargs)
    return Cotangent(value, None if grad.mask is None else anywhere(grad.mask, dim, keepdim))
