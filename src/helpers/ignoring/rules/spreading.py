"""Constant, non-negative weights: where none of the used entries reaches, the result is ignored.

The operator itself tells: sent through it, a 1 for each used entry arrives as 0 just there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, ignored_in, plain, rule


@rule(
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "_upsample_nearest_exact1d_backward",
    "_upsample_nearest_exact2d_backward",
    "_upsample_nearest_exact3d_backward",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
    "avg_pool2d_backward",
    "avg_pool3d_backward",
    "col2im",
    "cumsum",
    "embedding_dense_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "im2col",
    "masked_scatter_backward",
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "max_unpool2d",
    "max_unpool3d",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "replication_pad1d_backward",
    "replication_pad2d_backward",
    "replication_pad3d_backward",
    "unfold_backward",
    "upsample_bilinear2d_backward",
    "upsample_linear1d_backward",
    "upsample_nearest1d_backward",
    "upsample_nearest2d_backward",
    "upsample_nearest3d_backward",
    "upsample_trilinear3d_backward",
)
def spread(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Pooling, padding, upsampling, looking up: each result a sum of entries with weights."""
    value = op(grad.value, *plain(args), **plain(kwargs))
    return Cotangent(value, op(_used(grad, grad.value), *_finite(args), **kwargs) == 0)


@rule(
    "_upsample_bicubic2d_aa_backward",
    "_upsample_bilinear2d_aa_backward",
    "_upsample_lanczos2d_aa_backward",
    "upsample_bicubic2d_backward",
)
def spread_with_signs(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Weights of both signs can cancel; not for two different cotangents at once."""
    value = op(plain(grad), *args, **kwargs)
    if grad.ignored is None:
        return Cotangent(value)
    used = _used(grad, grad.value)
    ramp = torch.linspace(1, 2, used.numel(), dtype=used.dtype, device=used.device).view(used.shape)
    return Cotangent(value, (op(used, *args, **kwargs) == 0) & (op(used * ramp, *args, **kwargs) == 0))


@rule("index_add", "scatter_add")
def added_into(op: Any, base: Any, dim: int, index: Tensor, source: Any, **kwargs: Any) -> Any:
    """A base to which entries are added."""
    value = op(plain(base), dim, index, plain(source), **kwargs)
    used = op(_used(base, plain(base)), dim, index, _used(source, plain(source)))
    return Cotangent(value, used == 0)


@rule("put")
def put(op: Any, base: Any, index: Tensor, source: Any, accumulate: bool = False) -> Any:
    """As `added_into`, with places counted through."""
    value = op(plain(base), index, plain(source), accumulate)
    return Cotangent(value, op(_used(base, plain(base)), index, _used(source, plain(source)), accumulate) == 0)


def _used(thing: Any, value: Tensor) -> Tensor:
    """1 for each used entry."""
    ignored = ignored_in(thing, zeros=True)
    return torch.ones_like(value) if ignored is None else ignored.logical_not().to(value.dtype)


def _finite(args: Any) -> Any:
    """Saved tensors are there for their shape or their indices; a NaN in them must not reach the mask."""
    return [a.nan_to_num() if isinstance(a, Tensor) and a.is_floating_point() else a for a in plain(args)]
