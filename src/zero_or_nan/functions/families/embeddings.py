"""Rows that are looked up in a table. Rows that were not looked up are ignored.

Row 2 of a table is looked up twice, row 0 once, row 1 never. The loss ignores the last of the three results:

>>> from zero_or_nan.ignoring import Cotangent
>>> g = Cotangent(torch.tensor([[1.0], [2.0], [0.0]]), mask=torch.tensor([[True], [True], [False]]))
>>> to_table = torch.ops.aten.embedding_dense_backward(g, torch.tensor([2, 0, 2]), 3, -1, False)
>>> to_table.value.flatten().tolist(), to_table.mask.flatten().tolist()
([2.0, 0.0, 1.0], [True, False, True])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, zero_ignored
from ...masks.mask import full
from ..conditions import ALWAYS
from ..registry import function, rule
from .products import bilinear
from .spreading import probe

function("Embedding", selects=True, safe_if=ALWAYS)
function("EmbeddingBag", selects=True)


@rule("embedding_dense_backward")
def looked_up(op: Any, grad: Any, indices: Tensor, rows: int, padding: int, *args: Any) -> Any:
    """Rows that were not looked up are ignored. The padding row was looked up: its gradient is 0 by convention."""
    value = op(grad.value, indices, rows, padding, *args)
    return Cotangent(value, op(probe(grad.mask, grad.value), indices, rows, -1, *args).isnan())


@rule("_embedding_bag_backward", "_embedding_bag_dense_backward")
def embedding_bag_backward(op: Any, grad: Any, *args: Any) -> Any:
    """Linear in the cotangent and, if there are any, in the weights of the samples. Other rows are ignored."""
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
