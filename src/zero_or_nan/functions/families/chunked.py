"""A linear layer and its cross entropy, chunk by chunk: two of PyTorch's operators, with backwards in Python.

Both backwards write into memory of their own, where no mask can follow. So each has a second formula here.
"""

from __future__ import annotations

from typing import Any

import torch

from ...masks.cotangent import Cotangent, mask_of
from ...masks.mask import everywhere
from ..record import GENERATED
from ..registry import derivative

OPERATOR = f"{GENERATED}torch_nn__linear_cross_entropy_batch_chunked"


@derivative(f"{OPERATOR}_default")
def of_all_rows(node: Any, grads: Any) -> tuple[Any, ...]:
    """The mean or the sum. The forward pass has computed all gradients, so all of their elements count, or none.

    The saved gradients can be read only once, by PyTorch's own backward. So the gradients here are NaN, or 0 if they
    are ignored; they replace elements that are not finite.
    """
    mask = mask_of(grads[0])
    counts = mask is None or bool(mask)

    def gradient(place: int) -> Cotangent:
        ahead, number = node.next_functions[place]
        metadata = ahead._input_metadata[number]
        value = torch.full(
            tuple(metadata.shape), torch.nan if counts else 0.0, dtype=metadata.dtype, device=metadata.device
        )
        return Cotangent(value, everywhere(counts, value))

    places = (0, 1, 3)  # rows, layer, bias
    wanted = [place in places and needed for place, needed in enumerate(node.needs_input_grad)]
    return tuple(gradient(place) if each else None for place, each in enumerate(wanted))


@derivative(f"{OPERATOR}_no_reduction_default")
def of_each_row(node: Any, grads: Any) -> tuple[Any, ...]:
    """Softmax minus one-hot target, times the weight of the target, which is 0 for `ignore_index`."""
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
