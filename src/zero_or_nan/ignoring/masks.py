"""Masks of cotangents: True where the entry counts, None where all do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Mask = Tensor | None


def both(a: Mask, b: Mask) -> Mask:
    """A product counts where all its factors do."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def either(a: Mask, b: Mask) -> Mask:
    """A sum counts where one of its terms does."""
    return None if a is None or b is None else a | b


def anywhere(mask: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether an entry along the dimensions counts; along all of them when none is named."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return mask.any().reshape((1,) * mask.dim()) if keepdim else mask.any()
    return torch.any(mask, (dim,) if isinstance(dim, int) else tuple(dim), keepdim)


def full(mask: Mask, like: Tensor) -> Tensor:
    """The mask itself, or one by which all entries count. It may be expanded: masks are never written into."""
    return everywhere(True, like) if mask is None else mask


def everywhere(counts: bool, like: Tensor) -> Tensor:
    """A mask of one byte, expanded to the shape of a tensor."""
    return torch.tensor(counts, device=like.device).expand(like.shape)


def expanded(mask: Mask, shape: Sequence[int]) -> Mask:
    """The mask in a shape that it can be broadcast to."""
    return mask if mask is None or mask.shape == shape else mask.expand(shape)


def reduced(counts: Tensor, shape: Sequence[int]) -> Tensor:
    """A mask from what a derivative made of one: sums where it added, in the shape before it was broadcast."""
    mask = counts if counts.dtype is torch.bool else counts != 0
    if mask.shape == torch.Size(shape):
        return mask
    extra = mask.dim() - len(shape)
    broadcast = [d for d in range(mask.dim()) if d < extra or mask.shape[d] != shape[d - extra]]
    return torch.any(mask, broadcast, keepdim=True).reshape(tuple(shape))


def laid_out(mask: Tensor, value: Tensor) -> Tensor:
    """A copy of the mask that lies in memory as the value does, so that every view of one is a view of the other."""
    steps = zip(value.size(), value.stride(), strict=True)
    extent = value.storage_offset() + 1 + sum((size - 1) * step for size, step in steps) if value.numel() else 0
    memory = torch.zeros(extent, dtype=torch.bool, device=value.device)
    return memory.as_strided(value.size(), value.stride(), value.storage_offset()).copy_(mask)
