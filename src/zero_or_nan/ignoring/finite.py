"""Checks whether the numbers of plain tensors are finite, in one scan of their memory.

A sum with a NaN or an infinity in it is never finite. A sum is therefore a quick check: it is several times faster than
`isnan().any()`. A sum of finite numbers may overflow, so a check may call finite numbers "not finite". It never calls
NaN or infinity "finite".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .masks import core, extent


def total(tensor: Tensor, *dim: int, keepdim: bool = False) -> Tensor:
    """The sum over some dimensions, or over all. Half precision is summed in float32, because it overflows early."""
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
    return tensor.sum(dim, keepdim, dtype=wide) if dim else tensor.sum(dtype=wide)


def is_number(scalar: Tensor) -> bool:
    """True if a tensor of one element is neither NaN nor infinite."""
    value = scalar.item()
    return bool(value - value == 0)  # inf - inf is NaN


def all_finite(tensor: Tensor) -> bool:
    """True if all elements are finite, and so is their sum."""
    return is_number(total(tensor))


def has_nan(tensor: Tensor) -> bool:
    """True if an element may be NaN. Elements inf and -inf together also give True."""
    number = tensor.sum().item()
    return number != number


def any_nan(results: Iterable[Any]) -> bool:
    """True if one of a derivative's results may have a NaN. None stands for a result that is not needed."""
    return any(isinstance(result, Tensor) and has_nan(result) for result in results)


def finite_part(tensor: Tensor) -> Tensor:
    """The tensor with 0 in place of each element that is not finite. The strides stay the same if possible."""
    if tensor.is_conj():  # it stays conjugate: a kernel may choose by that, too, in which order it adds
        return finite_part(tensor.conj()).conj()
    small = core(tensor)
    finite = small.nan_to_num(0.0, 0.0, 0.0) if not tensor.is_complex() else small.where(small.isfinite(), 0)
    if finite.stride() != small.stride() and extent(small) >= small.numel():
        finite = small.new_empty_strided(small.size(), small.stride()).copy_(finite)
    return finite if small is tensor else finite.expand(tensor.shape)
