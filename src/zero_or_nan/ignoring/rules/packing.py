"""Sequences of several lengths, packed one step of all behind the other: what pads them is never used."""

from __future__ import annotations

from typing import Any

import torch

from ..looks import NOTHING
from ..registry import derivative


@derivative("PackPaddedSequence", selects=True, look=NOTHING)
def pack_padded_sequence(node: Any, grads: Any) -> tuple[Any]:
    """Each step of the packed ones goes back to its place; how many sequences last so long is known for each step."""
    grad, lasting = grads[0], node._saved_result1
    step = torch.arange(len(lasting)).repeat_interleave(lasting)
    sequence = torch.arange(len(step)) - (lasting.cumsum(0) - lasting)[step]
    places = [place.to(grad.device) for place in ((sequence, step) if node._saved_batch_first else (step, sequence))]
    return (grad.new_zeros(node._saved_input_sym_sizes).index_put(places, grad),)
