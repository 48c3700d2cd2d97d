"""Norms of layers, groups, batches and weights: each mixes the elements that share their statistics.

A layer norm takes the mean and the spread of each row. The gradient of a row depends on this row alone, and the
gradients of weight and bias are sums over rows. A row that the loss ignores as a whole is left out of both, even if it
is NaN:

>>> from zero_or_nan.ignoring import Cotangent
>>> x = torch.tensor([[1.0, 3.0], [torch.nan, 2.0]])
>>> y, mean, spread = torch.native_layer_norm(x, [2], torch.ones(2), None, 0.0)
>>> g = Cotangent(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), mask=torch.tensor([[True, True], [False, False]]))
>>> given = x, [2], mean, spread, torch.ones(2), None, [True, True, False]
>>> to_x, to_weight, _ = torch.ops.aten.native_layer_norm_backward(g, *given)
>>> to_x.mask.tolist(), to_weight.value.tolist()
([[True, True], [False, False]], [-1.0, 1.0])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import prefer_exact, unwrap
from ...masks.mask import Mask, anywhere, only
from ...masks.numbers import all_finite
from ..conditions import ALWAYS, AWAY_FROM_ZERO, MODERATE
from ..numerics import numerics
from ..registry import function, fused, rule, transfer
from ..rewrites import advice, rewrite
from .products import without_lost_samples

# The mean of moderate numbers is moderate, and the bias is only added.
function("NativeGroupNorm NativeLayerNorm", safe_if=MODERATE, safe_if_saved={"result1": ALWAYS, "bias": ALWAYS})
function(
    "CudnnBatchNorm MiopenBatchNorm NativeBatchNorm", safe_if=MODERATE, safe_if_saved={"running_var": AWAY_FROM_ZERO}
)  # fmt: skip
function("WeightNormInterface", safe_if=MODERATE, safe_if_saved={"result1": AWAY_FROM_ZERO})

numerics("normalize", like="layer_norm", no_direction=True)
numerics("rms_norm group_norm instance_norm batch_norm", like="layer_norm")

advice(
    "undefined",
    "layer_norm",
    "# it divides by a spread or a length that is 0, and eps is 0 as well: take a\n"
    "# larger eps. In float16, eps=1e-8 is rounded to 0",
    "atlas#norms-and-distances",
)
advice(
    "undefined",
    "_weight_norm",
    "# weight_norm divides a direction by its norm, which is 0. To initialize a row\n"
    "# with 0, or to prune it, set its magnitude to 0, and not its direction:\n"
    "g = layer.parametrizations.weight.original0  # weight_g of the older function\n"
    "v = layer.parametrizations.weight.original1  # weight_v of the older function\n"
    "empty = (v == 0).flatten(1).all(1)  # with dim=0\n"
    "with torch.no_grad():\n"
    "    v[empty], g[empty] = 1.0, 0.0",
    "atlas#norms-and-distances",
)
rewrite("normalize(x, dim=d)", "F.normalize(x, dim=d, eps=1e-3)", "a vector of 0 stays 0, with a slope of 1000")

aten = torch.ops.aten


def _of_layer(mask: Tensor, saved: Tensor, shape: Any, *args: Any) -> tuple[Tensor, ...]:
    """The masks of the gradients of input, weight and bias, for statistics of each row."""
    row, batch = range(-len(shape), 0), range(mask.dim() - len(shape))
    weight = anywhere(mask, list(batch)) if batch else mask
    return anywhere(mask, list(row), keepdim=True), weight, weight


def _of_group(
    mask: Tensor, saved: Tensor, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, groups: int, *args: Any
) -> tuple[Tensor, ...]:
    """The same for statistics of each group of channels of a sample."""
    channel = anywhere(mask.reshape(n, c, hxw), (0, 2))
    members = anywhere(mask.reshape(n, groups, -1), -1).repeat_interleave(c // groups, 1)
    return members.reshape(n, c, *(1,) * (saved.dim() - 2)), channel, channel


def _of_batch(mask: Tensor, saved: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """The same for statistics of each channel of the batch. Frozen statistics mix no elements of the input."""
    channel, is_training = anywhere(mask, [d for d in range(mask.dim()) if d != 1]), args[5]
    return channel.reshape(1, -1, *(1,) * (mask.dim() - 2)) if is_training else mask, channel, channel


def _without_lost(
    masks: Callable[..., tuple[Tensor, ...]], *statistics: int, replaced_by: int = 0
) -> Callable[..., tuple[Any, ...]]:
    """Make a function that puts 0 into each part of the input that is ignored as a whole and has no finite statistics.

    Plain PyTorch's result is NaN in such a part, so no finite number changes. The function takes the mask of the
    cotangent and the arguments, of which the second is the input. `statistics` are the places of the statistics, and
    `replaced_by` is a number for those that are not finite.
    """

    def set_aside(mask: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
        counts = masks(mask, *args[1:])[0]
        kept = functools.reduce(torch.add, [args[place] - args[place] for place in statistics]) == 0
        parts = counts.reshape(*kept.shape, counts.numel() // max(kept.numel(), 1))  # a group has several channels
        kept |= parts.any(-1)
        if bool(kept.all()):
            return args
        there = kept.unsqueeze(-1).expand(parts.shape).reshape(counts.shape)
        cleaned = {1: only(there, args[1])} | {p: torch.where(kept, args[p], replaced_by) for p in statistics}
        return tuple(cleaned.get(place, arg) for place, arg in enumerate(args))

    return set_aside


def _without_lost_samples(mask: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """In training, all samples share the statistics of a channel. In a frozen batch norm, each element is by itself."""
    if args[7]:
        return _without_lost(_of_batch, 5, 6)(mask, args)
    images = without_lost_samples(mask, args[1])
    if not all_finite(images):
        images = only(images.isfinite().logical_or_(mask), images)
    return (args[0], images, *args[2:])


fused("native_layer_norm_backward", masks=_of_layer, set_aside=_without_lost(_of_layer, 3, 4))
fused("_fused_rms_norm_backward", since="2.13", masks=_of_layer, set_aside=_without_lost(_of_layer, 3))
fused("native_group_norm_backward", masks=_of_group, set_aside=_without_lost(_of_group, 2, 3))
fused("native_batch_norm_backward", masks=_of_batch, set_aside=_without_lost_samples)
fused("batch_norm_backward", "cudnn_batch_norm_backward")


@transfer("NativeLayerNorm")
def _layer_norm(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> Sequence[Mask]:
    return _of_layer(mask, grad, node._saved_normalized_shape)


def _of_weight(mask: Tensor, saved: Tensor, sizes: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, ...]:
    """The masks of the gradients of directions and sizes. A norm mixes the elements of a row, or of a column."""
    row = anywhere(mask, [d for d in range(mask.dim()) if d != dim], keepdim=True)
    return row, row


fused(
    "_weight_norm_interface_backward",
    masks=_of_weight,
    set_aside=_without_lost(_of_weight, 3, replaced_by=1),  # a norm, which divides
    formula=aten._weight_norm_differentiable_backward,
)


@rule("miopen_batch_norm_backward")
def batch_norm_backward(op: Any, images: Tensor, grad: Any, weight: Tensor, *statistics: Any) -> Any:
    """The same as PyTorch's own batch norm in training."""
    exact = op(images, unwrap(grad), weight, *statistics)
    *known, epsilon = statistics
    return prefer_exact(exact, aten.native_batch_norm_backward(grad, images, weight, *known, True, epsilon, [True] * 3))
