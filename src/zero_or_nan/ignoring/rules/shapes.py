"""Moving elements about: the mask moves along."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, unwrap, written_mask
from ..masks import everywhere, full, laid_out
from ..registry import rule


def _zip(value: Any, mask: Any) -> Any:
    if isinstance(value, Tensor):
        return Cotangent(value, mask)
    masks = [None] * len(value) if mask is None else mask
    return type(value)(Cotangent(v, m) for v, m in zip(value, masks, strict=True))


@rule(
    "channel_shuffle",
    "diagonal",
    "diagonal_copy",
    "expand",
    "expand_copy",
    "flip",
    "gather",
    "index",
    "_unsafe_index",
    "index_select",
    "movedim",
    "native_channel_shuffle",
    "permute",
    "permute_copy",
    "pixel_shuffle",
    "pixel_unshuffle",
    "repeat",
    "roll",
    "rot90",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "squeeze_copy",
    "t",
    "take",
    "transpose",
    "unbind",
    "unfold",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "unsqueeze",
)
def carried(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Views, copies of views and gathers: each element of the result is one of the cotangent's."""
    value = op(grad.value, *args, **kwargs)
    kwargs.pop("sparse_grad", None)
    return _zip(value, None if grad.mask is None else op(grad.mask, *args, **kwargs))


@rule("_reshape_alias", "_unsafe_view", "reshape", "view", "view_copy")
def reshaped(op: Any, grad: Any, size: Any, *args: Any) -> Any:
    """The mask may lie in memory in another order than the value: reshaped, it is copied where a view can't be had."""
    if isinstance(size, torch.dtype):
        return Cotangent(op(grad.value, size))
    return Cotangent(op(grad.value, size, *args), None if grad.mask is None else grad.mask.reshape(size))


@rule("as_strided")
def strided(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Strides are of the memory: the mask has to lie there as the value does."""
    mask = grad.mask
    if mask is not None:
        mask = op(laid_out(mask, grad.value), *args, **kwargs)
    return Cotangent(op(grad.value, *args, **kwargs), mask)


@rule("cat", "stack", "hstack", "vstack")
def joined(op: Any, parts: Any, *args: Any, **kwargs: Any) -> Any:
    """Cotangents beside each other, and zeros for an output that was not used."""
    value = op(unwrap(parts), *args, **kwargs)
    beside = next(part for part in parts if type(part) is Cotangent)
    masks = [written_mask(part, beside) for part in parts]
    if all(mask is None for mask in masks):
        return Cotangent(value)
    return Cotangent(value, op([full(m, unwrap(p)) for p, m in zip(parts, masks, strict=True)], *args, **kwargs))


@rule("view_as_real", "view_as_real_copy")
def as_real(op: Any, grad: Any) -> Any:
    """Both parts of an element count, or none."""
    value = op(grad.value)
    return Cotangent(value, None if grad.mask is None else grad.mask.unsqueeze(-1).expand(value.shape))


@rule("view_as_complex", "view_as_complex_copy")
def as_complex(op: Any, grad: Any) -> Any:
    """An element counts where one of its parts does."""
    return Cotangent(op(grad.value), None if grad.mask is None else grad.mask.any(-1))


@rule("complex", "polar")
def put_together(op: Any, real: Any, imag: Any) -> Any:
    """A complex cotangent counts where one of its parts does; a part may never have been there."""
    value = op(unwrap(real), unwrap(imag))
    beside = real if type(real) is Cotangent else imag
    masks = [written_mask(part, beside) for part in (real, imag)]
    return Cotangent(value, None if None in masks else masks[0] | masks[1])  # type: ignore[operator]


@rule("constant_pad_nd")
def padded(op: Any, grad: Any, pad: Any, fill: Any = 0) -> Any:
    """Also the derivative of a crop: what was cropped off is ignored."""
    value = op(grad.value, pad, fill)
    return Cotangent(value, op(full(grad.mask, grad.value), pad, bool(fill != 0)))


@rule(
    "tril", "triu", "diag_embed", "slice_backward", "select_backward", "diagonal_backward", "trace_backward", "diag",
)  # fmt: skip
def surrounded(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Entries keep their places in a larger tensor of written zeros."""
    value = op(grad.value, *args, **kwargs)
    mask = everywhere(True, grad.value) if grad.mask is None else grad.mask
    return Cotangent(value, op(mask, *args, **kwargs))
