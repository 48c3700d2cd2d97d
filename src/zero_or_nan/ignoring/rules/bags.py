"""Segments, bags and rows: a cotangent's element goes to each member of its segment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import mask_of, unwrap, zero_ignored
from ..masks import both, expanded, full
from ..registry import rule
from .products import bilinear


@rule("_segment_reduce_backward")
def segment_reduce_backward(op: Any, grad: Any, output: Tensor, data: Tensor, reduce: str, **kwargs: Any) -> Any:
    """A member counts where its segment does; of a largest or smallest, where it is that."""
    value = op(unwrap(grad), output, data, reduce, **kwargs)

    def to_members(segments: Tensor) -> Tensor:
        """A sum hands each segment's cotangent to its members as it is."""
        zeros = torch.zeros(segments.shape, dtype=torch.float32, device=data.device)
        members = torch.zeros(data.shape, dtype=torch.float32, device=data.device)
        result: Tensor = op(segments.float(), zeros, members, "sum", **{**kwargs, "initial": None})
        return result

    mask = to_members(full(mask_of(grad), output)) != 0
    if reduce in ("max", "min"):
        largest = to_members(output.nan_to_num())
        mask &= (data.nan_to_num().float() == largest) | (to_members(output.isnan()) != 0)
    return zero_ignored(value, mask)


@rule("_embedding_bag_backward", "_embedding_bag_dense_backward")
def embedding_bag_backward(op: Any, grad: Any, *args: Any) -> Any:
    """Linear in the cotangent and in the weights of the samples, where there are any. Other rows are ignored."""
    names = [argument.name for argument in op._schema.arguments[1:]]
    named = dict(zip(names, args, strict=False))
    if named.get("sparse"):
        return op(grad.value, *args)
    place = names.index("per_sample_weights")

    def apply(cotangent: Tensor, weights: Tensor | None) -> Tensor:
        result: Tensor = op(cotangent, *args[:place], weights, *args[place + 1 :])
        return result

    weights = args[place]
    counted = full(grad.mask, grad.value).to(grad.value.dtype)
    mask = apply(counted, None if weights is None else torch.ones_like(weights)) != 0
    value = apply(grad.value, None) if weights is None else bilinear(apply, grad, weights)
    return zero_ignored(value, mask)


@rule("_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(op: Any, grad: Any, table: Tensor, indices: Tensor, *args: Any) -> Any:
    """The product of a bag's cotangent with the row that was looked up."""

    def apply(cotangent: Tensor, rows: Tensor) -> Tensor:
        result: Tensor = op(cotangent, rows, indices, *args)
        return result

    counted = full(grad.mask, grad.value).to(grad.value.dtype)
    return zero_ignored(bilinear(apply, grad, table), apply(counted, torch.ones_like(table)) != 0)


@rule("_ctc_loss_backward")
def ctc_loss_backward(
    op: Any,
    grad: Any,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Each sequence has a loss of its own, of the frames up to its length, and of its target's classes and the blank.

    PyTorch's gradient by another class is its probability, as of a log_softmax. It stays, where it is a number.
    """
    saved = unwrap((log_probs, targets, input_lengths, target_lengths, likelihood, log_alpha))
    value = op(unwrap(grad), *saved, blank, *args, **kwargs)
    frames, sequences, _ = value.shape
    lengths = torch.as_tensor(input_lengths, device=value.device).reshape(1, -1, 1)
    inside = torch.arange(frames, device=value.device).reshape(-1, 1, 1) < lengths
    sizes = torch.as_tensor(target_lengths, device=value.device)
    number = torch.arange(sequences, device=value.device)
    if targets.dim() == 1:  # one after the other
        number = number.repeat_interleave(sizes)
    else:  # padded to one length
        within = torch.arange(targets.shape[1], device=value.device) < sizes.unsqueeze(1)
        number, targets = number.unsqueeze(1).expand(targets.shape)[within], targets[within]
    read = torch.zeros(value.shape[1:], dtype=torch.bool, device=value.device)
    read[number, targets] = True
    read[:, blank] = True
    arriving = mask_of(grad)
    mask = both(inside, None if arriving is None else arriving.reshape(1, -1, 1))
    counts = read | value.isfinite()
    return zero_ignored(value.masked_fill_(counts.logical_not(), 0), mask & counts)


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_loss_backward(op: Any, grad: Any, saved: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Each row of the batch has a loss of its own. An element beyond the margin is not in it, unless its row is NaN."""
    value = op(unwrap(grad), saved, *args, **kwargs)
    unordered = saved.isnan().any(-1, keepdim=True) if saved.dim() else saved.isnan()
    with_ones = op(torch.ones_like(unwrap(grad)), saved, *args, **kwargs)
    mask = (with_ones != 0) | unordered
    arriving = mask_of(grad)
    if arriving is not None:
        mask = mask & (arriving.unsqueeze(-1) if saved.dim() > 1 and arriving.dim() else arriving.any())
    return zero_ignored(value, expanded(mask, value.shape))
