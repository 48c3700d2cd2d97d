"""Masks of cotangents: True where the element counts, None where all do.

Most are whole rows or columns. A mask has the shape of its value, but a dimension along which it is constant may be
expanded: of stride 0, one bool in memory. Whatever is computed of it is computed of its *core*, that bool alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Mask = Tensor | None

MANY = 2048
"""Entries from which on it pays to look at a mask as bytes, and at its core: `amax` of bytes is faster than `any`."""


def core(mask: Tensor) -> Tensor:
    """The mask with one element in place of every dimension that is expanded."""
    steps = mask.stride()
    if 0 not in steps:
        return mask
    return mask.as_strided(
        [size if step else min(size, 1) for size, step in zip(mask.shape, steps, strict=True)], steps
    )


def both(a: Mask, b: Mask) -> Mask:
    """A product counts where all its factors do."""
    if a is None or b is None:
        return b if a is None else a
    return _joined(torch.bitwise_and, a, b)


def either(a: Mask, b: Mask) -> Mask:
    """A sum counts where one of its terms does."""
    return None if a is None or b is None else _joined(torch.bitwise_or, a, b)


def _joined(join: Any, a: Tensor, b: Tensor) -> Tensor:
    if a is b:
        return a
    if a.numel() < MANY or (0 not in a.stride() and 0 not in b.stride()):
        result: Tensor = join(a, b)
        return result
    shape = a.shape if a.shape == b.shape else torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    # As bytes they are joined many times faster where one of them is broadcast.
    joined: Tensor = join(core(a).view(torch.uint8), core(b).view(torch.uint8))
    return joined.view(torch.bool).expand(shape)


def anywhere(mask: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether an element along the dimensions counts; along all of them when none is named."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        found = _any(core(mask))
        return found.reshape((1,) * mask.dim()) if keepdim else found
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if mask.numel() < MANY or 0 not in mask.stride():
        return _any(mask, dims, keepdim)
    small, shape = core(mask), list(mask.shape)
    for d in dims:
        shape[d] = 1
    dense = tuple(d for d in dims if small.shape[d] > 1)
    result = (_any(small, dense, True) if dense else small).expand(shape)
    if not keepdim:
        for d in sorted((d % mask.dim() for d in dims), reverse=True):
            result = result.squeeze(d)
    return result


def _any(mask: Tensor, dims: tuple[int, ...] = (), keepdim: bool = False) -> Tensor:
    if mask.numel() >= MANY and mask.is_cpu:
        return mask.view(torch.uint8).amax(dims, keepdim).view(torch.bool)
    return torch.any(mask, dims, keepdim) if dims else mask.any()


def all_count(mask: Mask) -> bool:
    """Whether no element is ignored."""
    if mask is None:
        return True
    small = core(mask)
    if small.numel() >= MANY and small.is_cpu:
        return small.view(torch.uint8).amin().item() != 0
    return bool(small.all())


def nothing_counts(mask: Tensor) -> bool:
    """Whether every element is ignored."""
    return not bool(_any(core(mask)))


def reshaped(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask in another shape of as many elements; the last dimensions stay expanded where they are."""
    shape = tuple(shape)
    if -1 in shape:
        others = 1
        for size in shape:
            others *= size if size != -1 else 1
        shape = tuple(mask.numel() // max(others, 1) if size == -1 else size for size in shape)
    if mask.shape == shape:
        return mask
    steps = mask.stride()
    if 0 not in steps or mask.numel() < MANY:
        return mask.reshape(shape)
    # The last dimensions along which the mask is constant, and as much of the new shape's as divides them.
    kept, alike = mask.dim(), 1
    while kept and (steps[kept - 1] == 0 or mask.shape[kept - 1] == 1):
        kept -= 1
        alike *= mask.shape[kept]
    new, inner, entries = len(shape), 1, 1
    for d in range(len(shape) - 1, -1, -1):
        entries *= shape[d]
        if alike % entries == 0:
            new, inner = d, entries
    if inner > 1:
        outer = mask.as_strided((*mask.shape[:kept], alike // inner), (*steps[:kept], 0))
        return outer.reshape(*shape[:new], *(1,) * (len(shape) - new)).expand(shape)
    if alike > 1 and shape[-1] % alike == 0 and mask.is_cpu:  # heads that became a dimension, and are joined again
        groups = mask.as_strided(mask.shape[:kept], steps[:kept]).reshape(-1, shape[-1] // alike)
        if bool((groups == groups[:, :1]).all()):
            return groups[:, 0].reshape(*shape[:-1], 1).expand(shape)
    return mask.reshape(shape)


def and_whatever_is_not_0(mask: Tensor, values: Tensor) -> Tensor:
    """The mask, and each element that is another number than 0; small, where all of these count anyway."""
    if mask.numel() >= MANY and mask.stride(-1) == 0 and values.stride(-1) == 1 and _bits(values) is not None:
        small = core(mask)
        alike = [d for d in range(mask.dim()) if small.shape[d] != mask.shape[d]]
        found = values.view(torch.uint8).amax(alike, keepdim=True)  # as bytes, -0.0 is found too
        if all_count((found == 0) | small):
            return mask
    return mask | (values != 0)


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(values: Tensor) -> torch.dtype | None:
    """The integers that the values can be taken for, where that pays.

    On a CPU `where` branches at each element. A product with the bits takes a third of the time for masks of whole
    rows, and a fifth for those without any order.
    """
    as_written = values.is_cpu and values.numel() >= MANY and not values.is_conj() and not values.is_neg()
    return _BITS.get(values.element_size()) if as_written else None


def only(counts: Tensor, values: Tensor) -> Tensor:
    """The values that count, and zeros, in memory as they were: kernels don't ask.

    Args:
        counts: of a shape that can be expanded to that of the values.
        values: plain, of any dtype.
    """
    bits = _bits(values)
    if bits is None:
        result = torch.where(counts, values, values.new_zeros(()))
    else:
        result = (values.view(bits) * counts.to(bits)).view(values.dtype)
    return result if result.stride() == values.stride() else torch.empty_like(values).copy_(result)


def put_zeros(values: Tensor, counts: Tensor) -> None:
    """Write zeros over the values that don't count.

    Args:
        values: plain, changed in place.
        counts: of a shape that can be expanded to that of the values.
    """
    bits = _bits(values)
    if bits is None:
        values.masked_fill_(counts.logical_not(), 0)
    else:
        values.view(bits).mul_(counts.to(bits))


def put_where_ignored(values: Tensor, counts: Tensor, others: Tensor) -> None:
    """Write the others over the values that don't count.

    Args:
        values: plain, changed in place.
        counts: of the shape of the values, or one that can be expanded to it.
        others: of the shape and dtype of the values; used up.
    """
    bits = _bits(values)
    if bits is None:
        torch.where(counts, values, others, out=values)
    else:
        here, there = values.view(bits), others.view(bits)
        here.bitwise_xor_(there.bitwise_xor_(here).bitwise_and_(counts.to(bits).sub_(1)))


def full(mask: Mask, like: Tensor) -> Tensor:
    """The mask itself, or one by which all elements count. It may be expanded: masks are never written into."""
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
    if broadcast:
        mask = anywhere(mask, broadcast, keepdim=True)
    return reshaped(mask, shape)


def was_broadcast(shape: torch.Size, to: torch.Size) -> bool:
    """Whether a tensor of the one shape can be expanded to the other."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wide) for size, wide in pairs)


def laid_out(mask: Tensor, value: Tensor) -> Tensor:
    """A copy of the mask that lies in memory as the value does, so that every view of one is a view of the other."""
    memory = torch.zeros(value.storage_offset() + extent(value), dtype=mask.dtype, device=value.device)
    return memory.as_strided(value.size(), value.stride(), value.storage_offset()).copy_(mask)


def extent(value: Tensor) -> int:
    """How many elements there are in memory from the first to the last of a tensor's."""
    if not value.numel():
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(value.size(), value.stride(), strict=True))
