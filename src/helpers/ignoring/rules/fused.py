"""Fused derivatives: PyTorch's own decompositions turn them into operators that have rules.

That is slow, so it is done only where the fused result has a NaN. Elsewhere the result is right as it is, and its mask
comes from what is mixed with what: normalisation mixes along its *fibres*, rows or channels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..cotangent import Cotangent, aten, has_nan, ignored_in, merge, plain, rule, wrapped
from .reductions import all_ignored

FUSED = (
    "_fused_rms_norm_backward",
    "_log_softmax_backward_data",
    "_prelu_kernel_backward",
    "_softmax_backward_data",
    "batch_norm_backward",
    "binary_cross_entropy_backward",
    "cudnn_batch_norm_backward",
    "glu_backward",
    "huber_loss_backward",
    "mse_loss_backward",
    "native_batch_norm_backward",
    "native_group_norm_backward",
    "native_layer_norm_backward",
    "nll_loss2d_backward",
    "nll_loss_backward",
    "smooth_l1_loss_backward",
    "soft_margin_loss_backward",
)


@functools.cache
def _decompositions() -> Any:
    """PyTorch's table, imported when it is first needed."""
    from torch._decomp import get_decompositions

    return get_decompositions([getattr(aten, name) for name in FUSED if hasattr(aten, name)])


@rule(*FUSED)
def decomposed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Plain PyTorch's result, and the decomposition's where plain PyTorch's is not finite."""
    exact = op(*plain(args), **plain(kwargs))
    if all(ignored_in(arg) is None for arg in args):
        return wrapped(exact)
    fibres = FIBRES.get(op._schema.name.removeprefix("aten::"))
    results = exact if isinstance(exact, tuple) else (exact,)
    if fibres is not None and not any(isinstance(result, Tensor) and has_nan(result) for result in results):
        masks = fibres(args[0].ignored, *args[1:])
        mixed = tuple(
            result if result is None else Cotangent(result, mask.expand(result.shape))
            for result, mask in zip(results, masks, strict=False)
        )
        return mixed if isinstance(exact, tuple) else mixed[0]
    return merge(exact, _decompositions()[op](*args, **kwargs))


def _softmax(ignored: Tensor, output: Tensor, dim: int, *args: Any) -> tuple[Tensor, ...]:
    return (all_ignored(ignored, dim, keepdim=True),)


def _layer_norm(ignored: Tensor, saved: Tensor, shape: Any, *args: Any) -> tuple[Tensor, ...]:
    row, batch = range(-len(shape), 0), range(ignored.dim() - len(shape))
    weight = all_ignored(ignored, list(batch)) if batch else ignored
    return all_ignored(ignored, list(row), keepdim=True), weight, weight


def _group_norm(
    ignored: Tensor, saved: Tensor, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, groups: int, *args: Any
) -> tuple[Tensor, ...]:
    group = ignored.reshape(n, groups, -1).all(-1)
    members = group.repeat_interleave(c // groups, 1).reshape(n, c, *(1,) * (saved.dim() - 2))
    channel = ignored.reshape(n, c, hxw).all(2).all(0)
    return members, channel, channel


def _batch_norm(ignored: Tensor, saved: Tensor, *args: Any) -> tuple[Tensor, ...]:
    channel = all_ignored(ignored, [d for d in range(ignored.dim()) if d != 1])
    return channel.reshape(1, -1, *(1,) * (ignored.dim() - 2)), channel, channel


def _batch_norm_or_frozen(ignored: Tensor, saved: Tensor, *args: Any) -> tuple[Tensor, ...]:
    masks = _batch_norm(ignored, saved)
    train = args[5]
    return masks if train else (ignored, *masks[1:])


FIBRES: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "_fused_rms_norm_backward": _layer_norm,
    "_log_softmax_backward_data": _softmax,
    "_softmax_backward_data": _softmax,
    "native_batch_norm_backward": _batch_norm_or_frozen,
    "native_group_norm_backward": _group_norm,
    "native_layer_norm_backward": _layer_norm,
}
"""The masks of a fused derivative's results, from the cotangent's."""
