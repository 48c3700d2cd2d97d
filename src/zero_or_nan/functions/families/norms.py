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
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, clear_lost_rows, prefer_exact, unwrap, write_over, write_over_nan
from ...masks.mask import Mask, anywhere, only, reduced
from ...masks.numbers import all_finite, any_nan
from ..conditions import ALWAYS, AWAY_FROM_ZERO, MODERATE
from ..numerics import numerics
from ..registry import function, fused, rule, transfer
from ..rewrites import rewrite
from .products import without_lost_samples

# The mean of moderate numbers is moderate, and the bias is only added.
function("NativeGroupNorm NativeLayerNorm", safe_if=MODERATE, safe_if_saved={"result1": ALWAYS, "bias": ALWAYS})
function(
    "CudnnBatchNorm MiopenBatchNorm NativeBatchNorm", safe_if=MODERATE, safe_if_saved={"running_var": AWAY_FROM_ZERO}
)  # fmt: skip
function("WeightNormInterface", safe_if=MODERATE, safe_if_saved={"result1": AWAY_FROM_ZERO})

numerics("normalize rms_norm group_norm instance_norm batch_norm", like="layer_norm")

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
    return _members(anywhere(mask.reshape(n, groups, -1), -1), saved), channel, channel


def _members(groups: Tensor, saved: Tensor) -> Tensor:
    """A mask of channels from a mask of groups."""
    channels = groups.repeat_interleave(saved.shape[1] // groups.shape[1], 1)
    return channels.reshape(*channels.shape, *(1,) * (saved.dim() - 2))


def _of_batch(mask: Tensor, saved: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """The same for statistics of each channel of the batch. Frozen statistics mix no elements of the input."""
    channel, is_training = anywhere(mask, [d for d in range(mask.dim()) if d != 1]), args[5]
    return channel.reshape(1, -1, *(1,) * (mask.dim() - 2)) if is_training else mask, channel, channel


def _without_lost(
    args: tuple[Any, ...], statistics: tuple[int, ...], counts: Tensor, spread: Callable[[Tensor], Tensor]
) -> tuple[Any, ...]:
    """The arguments with 0 in each part of the input that is ignored as a whole, and whose statistics are not finite.

    Plain PyTorch's result is NaN in such a part, so no finite number changes.

    Args:
        args: the arguments. The second is the input.
        statistics: the places of the statistics among the arguments.
        counts: the parts that count.
        spread: gives a mask of parts the shape with which it expands to the input.
    """
    kept = functools.reduce(torch.add, [args[place] - args[place] for place in statistics]) == 0
    kept |= counts.reshape(kept.shape)
    if bool(kept.all()):
        return args
    cleaned = {place: only(kept, args[place]) for place in statistics} | {1: only(spread(kept), args[1])}
    return tuple(cleaned.get(place, arg) for place, arg in enumerate(args))


def _without_lost_rows(mask: Tensor, args: tuple[Any, ...], statistics: tuple[int, ...] = (3, 4)) -> tuple[Any, ...]:
    counts = anywhere(mask, list(range(-len(args[2]), 0)), keepdim=True)
    return _without_lost(args, statistics, counts, lambda kept: kept.reshape(counts.shape))


def _without_lost_groups(mask: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
    counts = anywhere(mask.reshape(*args[2].shape, -1), -1)
    return _without_lost(args, (2, 3), counts, lambda kept: _members(kept, args[1]))


def _without_lost_samples(mask: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """In training, all samples share the statistics of a channel. In a frozen batch norm, each element is by itself."""
    if not args[7]:
        images = without_lost_samples(mask, args[1])
        if not all_finite(images):
            images = only(images.isfinite().logical_or_(mask), images)
        return (args[0], images, *args[2:])
    counts, *_ = _of_batch(mask, *args[1:])
    return _without_lost(args, (5, 6), counts, lambda kept: kept.reshape(counts.shape))


layer_norm_backward = fused("native_layer_norm_backward", masks=_of_layer, set_aside=_without_lost_rows)
fused(
    "_fused_rms_norm_backward",
    since="2.13",
    masks=_of_layer,
    set_aside=lambda mask, args: _without_lost_rows(mask, args, (3,)),
)
fused("native_group_norm_backward", masks=_of_group, set_aside=_without_lost_groups)
fused("native_batch_norm_backward", masks=_of_batch, set_aside=_without_lost_samples)
fused("batch_norm_backward", "cudnn_batch_norm_backward")


def repair_layer_norm(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> None:
    """Write 0 over rows that are ignored as a whole, and sum over the other rows. If that leaves a NaN, use the rule.

    The gradient of a row depends on no other row.
    """
    to_input, *sums = results
    shape = node._saved_normalized_shape
    row = list(range(-len(shape), 0))
    kept = anywhere(mask, row, keepdim=True)
    is_left = to_input is not None and clear_lost_rows(to_input, kept, row)
    op, saved = aten.native_layer_norm_backward.default, node._saved_input
    statistics, affine = (node._saved_result1, node._saved_result2), (node._saved_weight, node._saved_bias)
    if any_nan(sums):
        wanted = [False, *(result is not None for result in sums)]
        places, entries = kept.reshape(-1).nonzero()[:, 0], math.prod(shape)
        rows = [part.reshape(kept.numel(), -1).index_select(0, places) for part in (grad, saved, *statistics)]
        repaired = op(*rows[:2], [entries], *rows[2:], *(None if a is None else a.reshape(-1) for a in affine), wanted)
        for result, once_more in zip(sums, repaired[1:], strict=True):
            if result is not None:
                write_over_nan(result, once_more.view(result.shape))
        is_left |= any_nan(sums)
    if is_left:
        wanted = [result is not None for result in results]
        repaired = layer_norm_backward(op, Cotangent(grad, mask), saved, shape, *statistics, *affine, wanted)
        write_over(results, unwrap(repaired))


@transfer(
    "NativeLayerNorm",
    repair=repair_layer_norm,
    repair_reads=tuple(f"_raw_saved_{name}" for name in ("input", "result1", "result2", "weight", "bias")),
)
def _layer_norm(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    """Each row is mixed. The gradients of weight and bias are sums over rows."""
    if mask is None:
        return [None] * len(results)
    row = len(node._saved_normalized_shape)
    rows = anywhere(mask, list(range(-row, 0)), keepdim=True)
    found: list[Mask] = [None if results[0] is None else rows.expand(grad.shape)]
    return found + [None if result is None else reduced(mask, result.shape) for result in results[1:]]


@rule("_weight_norm_interface_backward")
def weight_norm_backward(op: Any, grad: Any, *saved: Any) -> Any:
    """By the formula that PyTorch uses for second derivatives."""
    return prefer_exact(op(unwrap(grad), *saved), aten._weight_norm_differentiable_backward(grad, *saved))


@rule("miopen_batch_norm_backward")
def batch_norm_backward(op: Any, images: Tensor, grad: Any, weight: Tensor, *statistics: Any) -> Any:
    """The same as PyTorch's own batch norm in training."""
    exact = op(images, unwrap(grad), weight, *statistics)
    *known, epsilon = statistics
    return prefer_exact(exact, aten.native_batch_norm_backward(grad, images, weight, *known, True, epsilon, [True] * 3))
