"""Fused derivatives: PyTorch's own decompositions turn them into operators that have rules.

That is slow, so it is done only where the fused result has a NaN. Elsewhere the result is right as it is, and its mask
comes from what is mixed with what: normalisation mixes along its *fibres*, rows or channels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cotangent import (
    Cotangent,
    any_nan,
    clear_lost_rows,
    mask_of,
    prefer_exact,
    unwrap,
    wrap,
    write_over,
    write_over_nan,
    zero_ignored,
)
from ..masks import anywhere, full, only
from ..registry import rule
from .products import without_lost_samples

aten = torch.ops.aten

FUSED = (
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
    "smooth_l1_loss_backward",
    "soft_margin_loss_backward",
)


@functools.cache
def _decompositions() -> Any:
    """PyTorch's table, imported when it is first needed."""
    from torch._decomp import get_decompositions

    names = (*FUSED, "_fused_rms_norm_backward")
    return get_decompositions([getattr(aten, name) for name in names if hasattr(aten, name)])


@rule(*FUSED)
def decomposed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Plain PyTorch's result, and the decomposition's where plain PyTorch's is not finite."""
    if all(mask_of(arg) is None for arg in args):
        return wrap(op(*unwrap(args), **unwrap(kwargs)))
    name = op._schema.name.removeprefix("aten::")
    fibres, setting_aside = FIBRES.get(name), SETTING_ASIDE.get(name)
    mask = mask_of(args[0])
    usual = given = unwrap(args)
    if mask is not None and setting_aside is not None:
        given = setting_aside(mask, usual)
    exact = op(*given, **unwrap(kwargs))
    results = exact if isinstance(exact, tuple) else (exact,)
    if fibres is not None and not any_nan(results):
        masks = fibres(full(mask, given[0]), *args[1:])
        mixed = tuple(
            result if result is None else Cotangent(result, mask.expand(result.shape))
            for result, mask in zip(results, masks, strict=False)
        )
        return mixed if isinstance(exact, tuple) else mixed[0]
    if given is not usual:
        exact = op(*usual, **unwrap(kwargs))
    return prefer_exact(exact, _decompositions()[op](*args, **kwargs))


rule("_fused_rms_norm_backward", since="2.13")(decomposed)


def repair_layer_norm(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> None:
    """Zeros in the rows that are ignored as a whole, and sums over the others; if that leaves a NaN, by the rule.

    A row's gradient depends on no other row.
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
        careful = op(*rows[:2], [entries], *rows[2:], *(None if a is None else a.reshape(-1) for a in affine), wanted)
        for result, once_more in zip(sums, careful[1:], strict=True):
            if result is not None:
                write_over_nan(result, once_more.view(result.shape))
        is_left |= any_nan(sums)
    if is_left:
        wanted = [result is not None for result in results]
        careful = decomposed(op, Cotangent(grad, mask), saved, shape, *statistics, *affine, wanted)
        write_over(results, unwrap(careful))


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    op: Any, grad: Any, scores: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int, total: Tensor
) -> Any:
    """Each row selects its target's element; a row whose target is to be ignored selects none."""
    value = op(unwrap(grad), unwrap(scores), target, weight, reduction, ignored, total)
    classes = 1 if scores.dim() > 1 else 0
    picked = target.unsqueeze(classes)
    kept = picked != ignored
    mask = torch.zeros(value.shape, dtype=torch.bool, device=value.device)
    mask.scatter_(classes, picked.where(kept, 0), kept)
    arriving = mask_of(grad)
    if arriving is not None:
        mask = mask & (arriving.unsqueeze(classes) if arriving.dim() else arriving)
    return zero_ignored(value, mask)


def _softmax(mask: Tensor, output: Tensor, dim: int, *args: Any) -> tuple[Tensor, ...]:
    return (anywhere(mask, dim, keepdim=True),)


def _layer_norm(mask: Tensor, saved: Tensor, shape: Any, *args: Any) -> tuple[Tensor, ...]:
    row, batch = range(-len(shape), 0), range(mask.dim() - len(shape))
    weight = anywhere(mask, list(batch)) if batch else mask
    return anywhere(mask, list(row), keepdim=True), weight, weight


def _group_norm(
    mask: Tensor, saved: Tensor, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, groups: int, *args: Any
) -> tuple[Tensor, ...]:
    group = anywhere(mask.reshape(n, groups, -1), -1)
    members = group.repeat_interleave(c // groups, 1).reshape(n, c, *(1,) * (saved.dim() - 2))
    channel = anywhere(mask.reshape(n, c, hxw), (0, 2))
    return members, channel, channel


def _batch_norm(mask: Tensor, saved: Tensor, *args: Any) -> tuple[Tensor, ...]:
    channel = anywhere(mask, [d for d in range(mask.dim()) if d != 1])
    return channel.reshape(1, -1, *(1,) * (mask.dim() - 2)), channel, channel


def _batch_norm_or_frozen(mask: Tensor, saved: Tensor, *args: Any) -> tuple[Tensor, ...]:
    masks = _batch_norm(mask, saved)
    train = args[5]
    return masks if train else (mask, *masks[1:])


FIBRES: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "_fused_rms_norm_backward": _layer_norm,
    "_log_softmax_backward_data": _softmax,
    "_softmax_backward_data": _softmax,
    "native_batch_norm_backward": _batch_norm_or_frozen,
    "native_group_norm_backward": _group_norm,
    "native_layer_norm_backward": _layer_norm,
}
"""The masks of a fused derivative's results, from the cotangent's."""


def _without_lost_rows(mask: Tensor, args: tuple[Any, ...], statistics: tuple[int, ...]) -> tuple[Any, ...]:
    """Layer norm's arguments, harmless in each row that is ignored as a whole, and whose statistics are not finite.

    Plain PyTorch makes NaN of such a row, so no number of its result is another for it.
    """
    kept = anywhere(mask, list(range(-len(args[2]), 0)), keepdim=True)
    finite = functools.reduce(torch.add, [args[place] - args[place] for place in statistics]) == 0
    kept = kept | finite.reshape(kept.shape)
    if bool(kept.all()):
        return args
    given = list(args)
    given[1] = only(kept, args[1])
    for place in statistics:
        given[place] = only(kept.reshape(args[place].shape), args[place])
    return tuple(given)


def _without_lost_fibres(mask: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same for softmax: what is not finite along its dimension."""
    grad, output, dim, *rest = args
    fibre = output.sum(dim, keepdim=True, dtype=torch.promote_types(output.dtype, torch.float32))
    kept = anywhere(mask, dim, keepdim=True) | (fibre - fibre == 0)
    if bool(kept.all()):
        return args
    return (grad, only(kept, output), dim, *rest)


def _without_lost_samples(mask: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same for a batch norm that is frozen; otherwise each sample is in the statistics of all."""
    train = args[7]
    return args if train else (args[0], without_lost_samples(mask, args[1]), *args[2:])


SETTING_ASIDE: dict[str, Callable[..., tuple[Any, ...]]] = {
    "_fused_rms_norm_backward": lambda mask, args: _without_lost_rows(mask, args, (3,)),
    "_log_softmax_backward_data": _without_lost_fibres,
    "_softmax_backward_data": _without_lost_fibres,
    "native_batch_norm_backward": _without_lost_samples,
    "native_layer_norm_backward": lambda mask, args: _without_lost_rows(mask, args, (3, 4)),
}
"""What the loss ignored altogether, replaced by harmless numbers before the fused kernel runs."""
