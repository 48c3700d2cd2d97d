"""Moving entries about: the mask moves along."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, full_mask, ignored_in, laid_out, plain, rule


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
def moved(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Views, copies of views and gathers: each entry of the result is one of the cotangent's."""
    value = op(grad.value, *args, **kwargs)
    kwargs.pop("sparse_grad", None)
    return _zip(value, None if grad.ignored is None else op(grad.ignored, *args, **kwargs))


@rule("_reshape_alias", "_unsafe_view", "reshape", "view", "view_copy")
def reshaped(op: Any, grad: Any, size: Any, *args: Any) -> Any:
    """The mask may lie in memory in another order than the value: reshaped, it is copied where a view can't be had."""
    ignored = grad.ignored
    if isinstance(size, torch.dtype):
        return Cotangent(op(grad.value, size))
    return Cotangent(op(grad.value, size, *args), ignored if ignored is None else ignored.reshape(size))


@rule("as_strided")
def strided(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Strides are of the memory: the mask has to lie there as the value does."""
    ignored = grad.ignored
    if ignored is not None:
        ignored = op(laid_out(ignored, grad.value), *args, **kwargs)
    return Cotangent(op(grad.value, *args, **kwargs), ignored)


@rule("cat", "stack", "hstack", "vstack")
def joined(op: Any, parts: Any, *args: Any, **kwargs: Any) -> Any:
    """The zeros that backward makes up for an output that was not used are written, not computed."""
    value = op(plain(parts), *args, **kwargs)
    masks = [ignored_in(part, zeros=True) for part in parts]
    if all(mask is None for mask in masks):
        return Cotangent(value)
    return Cotangent(value, op([full_mask(plain(p), m) for p, m in zip(parts, masks, strict=True)], *args, **kwargs))


@rule("view_as_real", "view_as_real_copy")
def as_real(op: Any, grad: Any) -> Any:
    """Both parts of an ignored entry are ignored."""
    ignored = grad.ignored
    value = op(grad.value)
    return Cotangent(value, ignored if ignored is None else ignored.unsqueeze(-1).expand(value.shape))


@rule("view_as_complex", "view_as_complex_copy")
def as_complex(op: Any, grad: Any) -> Any:
    """An entry is ignored where both its parts are."""
    ignored = grad.ignored
    return Cotangent(op(grad.value), ignored if ignored is None else ignored.all(-1))


@rule("complex", "polar")
def put_together(op: Any, real: Any, imag: Any) -> Any:
    """A complex cotangent is ignored where both its parts are, or where a part was never there."""
    value = op(plain(real), plain(imag))
    masks = [full_mask(plain(p), ignored_in(p, zeros=True)) for p in (real, imag)]
    return Cotangent(value, masks[0] & masks[1])


@rule("constant_pad_nd")
def padded(op: Any, grad: Any, pad: Any, fill: Any = 0) -> Any:
    """Also the derivative of a crop: what was cropped off is ignored."""
    value = op(grad.value, pad, fill)
    return Cotangent(value, op(full_mask(grad.value, grad.ignored), pad, bool(fill == 0)))


@rule(
    "tril", "triu", "diag_embed", "slice_backward", "select_backward", "diagonal_backward", "trace_backward", "diag",
)  # fmt: skip
def surrounded(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Entries keep their places in a larger tensor of written zeros: what the mask of used ones does not reach."""
    value = op(grad.value, *args, **kwargs)
    used = (
        torch.ones((), dtype=torch.bool, device=value.device).expand(grad.shape)
        if grad.ignored is None
        else ~grad.ignored
    )
    return Cotangent(value, op(used, *args, **kwargs).logical_not_())


@rule("_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe", "sparse_coo_tensor")
def made_sparse(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradient of a sparse embedding: what is not in it is zero, and what is ignored in it is."""
    return op(*plain(args), **plain(kwargs))
