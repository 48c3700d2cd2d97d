"""Segments, bags and rows: a cotangent's entry goes to each member of its segment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, plain, rule, settle
from .products import bilinear


@rule("_segment_reduce_backward")
def segment_reduce_backward(op: Any, grad: Any, output: Tensor, data: Tensor, reduce: str, **kwargs: Any) -> Any:
    """A member is ignored where its segment is."""
    value = op(plain(grad), output, data, reduce, **kwargs)
    if grad.ignored is None:
        return Cotangent(value)
    # A sum hands each segment's cotangent to its members as it is.
    used = grad.ignored.logical_not().to(value.dtype)
    spread = op(used, torch.zeros_like(output), torch.zeros_like(data), "sum", **kwargs)
    return settle(value, spread == 0)


@rule("_embedding_bag_backward", "_embedding_bag_dense_backward")
def embedding_bag_backward(op: Any, grad: Any, *args: Any) -> Any:
    """Linear in the cotangent and in the weights of the samples, where there are any."""
    names = [argument.name for argument in op._schema.arguments[1:]]
    if dict(zip(names, args, strict=False)).get("sparse"):
        return op(grad.value, *args)
    value = op(grad.value, *args)
    if grad.ignored is None:
        return Cotangent(value)
    place = names.index("per_sample_weights")

    def apply(cotangent: Tensor, weights: Tensor | None) -> Tensor:
        result: Tensor = op(cotangent, *args[:place], weights, *args[place + 1 :])
        return result

    weights = args[place]
    used = grad.ignored.logical_not().to(grad.value.dtype)
    ignored = apply(used, None if weights is None else torch.ones_like(weights)) == 0
    return Cotangent(value if weights is None else bilinear(apply, grad, weights), ignored)


@rule("_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(op: Any, grad: Any, table: Tensor, indices: Tensor, *args: Any) -> Any:
    """The product of a bag's cotangent with the row that was looked up."""

    def apply(cotangent: Tensor, rows: Tensor) -> Tensor:
        result: Tensor = op(cotangent, rows, indices, *args)
        return result

    if grad.ignored is None:
        return Cotangent(apply(grad.value, table))
    used = grad.ignored.logical_not().to(grad.value.dtype)
    return Cotangent(bilinear(apply, grad, table), apply(used, torch.ones_like(table)) == 0)


@rule("_ctc_loss_backward")
def ctc_loss_backward(op: Any, grad: Any, log_probs: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Each sequence of the batch has a loss of its own."""
    value = op(plain(grad), log_probs, *args, **kwargs)
    if grad.ignored is None:
        return Cotangent(value)
    return settle(value, grad.ignored.reshape(1, -1, 1).expand(value.shape))


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_loss_backward(op: Any, grad: Any, saved: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Each row of the batch has a loss of its own."""
    value = op(plain(grad), saved, *args, **kwargs)
    if grad.ignored is None:
        return Cotangent(value)
    rows = grad.ignored.unsqueeze(-1) if grad.ignored.dim() else grad.ignored
    return settle(value, rows.expand(value.shape))
