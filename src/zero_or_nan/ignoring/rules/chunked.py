"""A linear layer and its cross entropy, chunk by chunk: PyTorch's own operators in Python, with backwards of their own.

The sum or mean of the losses keeps its gradients from the forward pass, and multiplies them. Without a reduction the
logits are computed again, into memory of the operator's own, which no mask can follow; here they are by operators that
have rules.
"""

from __future__ import annotations

from typing import Any

import torch

from ..registry import GENERATED, derivative, function

OPERATOR = f"{GENERATED}torch_nn__linear_cross_entropy_batch_chunked"

function(f"{OPERATOR}_default")


@derivative(f"{OPERATOR}_no_reduction_default")
def linear_cross_entropy(node: Any, grads: Any) -> tuple[Any, ...]:
    """The softmax less 1 at the target, times the target's weight, which is 0 where the target is to be ignored."""
    rows, layer, target, bias, weight = node.saved_tensors
    wide = torch.promote_types(rows.dtype, torch.float32)
    rows, layer = rows.to(wide), layer.to(wide)
    kept = target != node._ignore_index
    picked = target.where(kept, 0)
    logits = rows @ layer.mT if bias is None else rows @ layer.mT + bias.to(wide)
    difference = logits.softmax(1) - torch.nn.functional.one_hot(picked, len(layer))
    weights = kept.to(wide) if weight is None else kept * weight.to(wide)[picked]
    to_logits = (grads[0].to(wide) * weights).unsqueeze(1) * difference
    to_bias = None if bias is None else to_logits.sum(0)
    return to_logits @ layer, to_logits.mT @ rows, None, to_bias, None, None, None, None, None
