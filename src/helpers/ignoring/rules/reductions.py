"""Sums skip ignored entries; a sum is ignored when all its terms are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, rule


@rule("sum", "mean")
def summed(op: Any, grad: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """The ignored terms are zeros, so the plain sum skips them."""
    if op._overloadname in ("dim_IntList", "dim"):
        value = op(grad.value, dim, keepdim, **kwargs)
    else:
        value = op(grad.value, **kwargs)
    return Cotangent(value, None if grad.ignored is None else all_ignored(grad.ignored, dim, keepdim))


def all_ignored(ignored: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether every entry along the dimensions is ignored."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return ignored.all().reshape((1,) * ignored.dim()) if keepdim else ignored.all()
    if isinstance(dim, int):
        dim = (dim,)
    return torch.all(ignored, tuple(dim), keepdim)
