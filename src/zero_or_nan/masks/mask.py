"""Masks of cotangents: True at each element that counts. None means that all elements count.

Most masks are constant along rows or columns. A mask has the shape of its value, but a dimension along which the mask
is constant may be expanded: it has stride 0 and takes one bool in memory. Mask arithmetic works on the *core*, which
has size 1 in each expanded dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Mask = Tensor | None

MANY = 2048
"""From this number of elements on, it pays to use a mask's core and its bytes: `amax` of bytes is faster than `any`."""


def core(mask: Tensor) -> Tensor:
    """The mask with one element in place of every dimension that is expanded."""
    steps = mask.stride()
    if 0 not in steps:
        return mask
    return mask.as_strided(
        [size if step else min(size, 1) for size, step in zip(mask.shape, steps, strict=True)], steps
    )


def both(a: Mask, b: Mask) -> Mask:
    """The mask of a product: an element counts if it counts in both factors."""
    if a is None or b is None:
        return b if a is None else a
    return _joined(torch.bitwise_and, a, b)


def either(a: Mask, b: Mask) -> Mask:
    """The mask of a sum: an element counts if it counts in one of the terms."""
    return None if a is None or b is None else _joined(torch.bitwise_or, a, b)


def _joined(join: Any, a: Tensor, b: Tensor) -> Tensor:
    """Two masks, joined by a bitwise operator."""
    if a is b:
        return a
    if a.numel() < MANY or (0 not in a.stride() and 0 not in b.stride()):
        result: Tensor = join(a, b)
        return result
    shape = a.shape if a.shape == b.shape else torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    # If one of the masks is broadcast, joining bytes is many times faster than joining bools.
    joined: Tensor = join(core(a).view(torch.uint8), core(b).view(torch.uint8))
    return joined.view(torch.bool).expand(shape)


def anywhere(mask: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Reduce a mask over some dimensions, or over all: True if one of the reduced elements counts."""
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
    """True if no element is ignored."""
    if mask is None:
        return True
    small = core(mask)
    if small.numel() >= MANY and small.is_cpu:
        return small.view(torch.uint8).amin().item() != 0
    return bool(small.all())


def reshaped(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask in another shape with as many elements. If possible, the last dimensions stay expanded."""
    shape = tuple(shape)
    if mask.shape == shape:
        return mask
    steps = mask.stride()
    if 0 not in steps or mask.numel() < MANY:
        return mask.reshape(shape)
    # The last dimensions along which the mask is constant, and the last new dimensions that fit into these.
    kept, constant = mask.dim(), 1
    while kept and (steps[kept - 1] == 0 or mask.shape[kept - 1] == 1):
        kept -= 1
        constant *= mask.shape[kept]
    new, inner, entries = len(shape), 1, 1
    for d in range(len(shape) - 1, -1, -1):
        entries *= shape[d]
        if constant % entries == 0:
            new, inner = d, entries
    if inner > 1:
        outer = mask.as_strided((*mask.shape[:kept], constant // inner), (*steps[:kept], 0))
        return outer.reshape(*shape[:new], *(1,) * (len(shape) - new)).expand(shape)
    return mask.reshape(shape)


def and_whatever_is_not_0(mask: Tensor, values: Tensor) -> Tensor:
    """The mask, with True at each element that is not 0. If these elements count anyway, the mask stays expanded."""
    as_written = values.is_cpu and not values.is_conj() and not values.is_neg()
    if as_written and mask.numel() >= MANY and mask.stride(-1) == 0 and values.stride(-1) == 1:
        small = core(mask)
        alike = [d for d in range(mask.dim()) if small.shape[d] != mask.shape[d]]
        found = values.view(torch.uint8).amax(alike, keepdim=True)  # as bytes, -0.0 is found too
        if all_count((found == 0) | small):
            return mask
    return mask | (values != 0)


def only(counts: Tensor, values: Tensor) -> Tensor:
    """The values that count, and 0 in place of the others. Values that don't overlap in memory keep their strides.

    Kernels don't check the strides, and some choose by the strides in which order they add.

    Args:
        counts: a mask whose shape expands to that of the values.
        values: plain, of any dtype.
    """
    result = torch.where(counts, values, values.new_zeros(()))
    if result.stride() == values.stride():
        return result
    if _overlaps(values):
        return torch.empty_like(values).copy_(result)
    return torch.empty_strided(values.shape, values.stride(), dtype=values.dtype, device=values.device).copy_(result)


def _overlaps(values: Tensor) -> bool:
    """True if elements may share memory, as in an expanded tensor or in windows that slide by less than their size."""
    last = 0
    for step, size in sorted(zip(values.stride(), values.shape, strict=True)):
        if size > 1 and step <= last:
            return True
        last += (size - 1) * step
    return False


def full(mask: Mask, like: Tensor) -> Tensor:
    """The mask itself, or for None one by which all elements count. It may be expanded: never write into a mask."""
    return everywhere(True, like) if mask is None else mask


def everywhere(counts: bool, like: Tensor) -> Tensor:
    """A mask with the same bool at every element: one byte, expanded to the shape of a tensor."""
    return torch.full((), counts, dtype=torch.bool, device=like.device).expand(like.shape)


def expanded(mask: Mask, shape: Sequence[int]) -> Mask:
    """The mask, expanded to a shape."""
    return mask if mask is None or mask.shape == shape else mask.expand(shape)


def reduced(counts: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of a derivative's result, in the shape of the input, from what the derivative made of a mask.

    A number other than 0 counts. Dimensions that the forward pass broadcast are reduced.
    """
    mask = counts if counts.dtype is torch.bool else counts != 0
    if mask.shape == torch.Size(shape):
        return mask
    extra = mask.dim() - len(shape)
    broadcast = [d for d in range(mask.dim()) if d < extra or mask.shape[d] != shape[d - extra]]
    if broadcast:
        mask = anywhere(mask, broadcast, keepdim=True)
    return reshaped(mask, shape)


def was_broadcast(shape: torch.Size, to: torch.Size) -> bool:
    """True if a tensor of `shape` can be expanded to the shape `to`."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wide) for size, wide in pairs)


def laid_out(mask: Tensor, value: Tensor) -> Tensor:
    """A copy of the mask with the strides and offset of the value: each view of the value fits the mask, too."""
    if not value.storage_offset() and value.is_contiguous():
        return mask.clone(memory_format=torch.contiguous_format)
    memory = torch.zeros(value.storage_offset() + extent(value), dtype=mask.dtype, device=value.device)
    return memory.as_strided(value.size(), value.stride(), value.storage_offset()).copy_(mask)


def extent(value: Tensor) -> int:
    """The number of elements in memory from a tensor's first element to its last."""
    if not value.numel():
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(value.size(), value.stride(), strict=True))
