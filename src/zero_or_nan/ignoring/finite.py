"""Whether the numbers of plain tensors are finite, in one pass over their memory.

NaN and infinity get into every sum. A sum is therefore a quick check: it is several times faster than `isnan().any()`.
A sum of finite numbers may overflow, so a check may say "not finite" of finite numbers, but never the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .masks import core, extent


def total(tensor: Tensor, *dim: int, keepdim: bool = False) -> Tensor:
    """The sum over some dimensions, or over all. Half precision is summed in float32, as it overflows too early."""
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
    return tensor.sum(dim, keepdim, dtype=wide) if dim else tensor.sum(dtype=wide)


def is_number(scalar: Tensor) -> bool:
    """Whether a tensor of one element is neither NaN nor infinite."""
    value = scalar.item()
    return bool(value - value == 0)


def all_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite, and so is their sum."""
    return is_number(total(tensor))


def has_nan(tensor: Tensor) -> bool:
    """Whether an element may be NaN."""
    number = tensor.sum().item()
    return number != number


def any_nan(results: Iterable[Any]) -> bool:
    """Whether one of a derivative's results may have a NaN; None stands for those that nobody wants."""
    return any(isinstance(result, Tensor) and has_nan(result) for result in results)


def finite_part(tensor: Tensor) -> Tensor:
    """A tensor's finite elements, and 0 in place of the others; in memory as it was, if that is possible."""
    small = core(tensor)
    finite = small.nan_to_num(0.0, 0.0, 0.0) if not tensor.is_complex() else small.where(small.isfinite(), 0)
    if finite.stride() != small.stride() and extent(small) >= small.numel():
        finite = small.new_empty_strided(small.size(), small.stride()).copy_(finite)
    return finite if small is tensor else finite.expand(tensor.shape)
