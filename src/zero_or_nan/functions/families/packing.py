"""Packed sequences of different lengths: step 0 of all sequences, then step 1, and so on. Padding is never used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..conditions import ALWAYS
from ..registry import derivative


@derivative("PackPaddedSequence", selects=True, safe_if=ALWAYS)
def pack_padded_sequence(node: Any, grads: Any) -> tuple[Any]:
    """Each element of the pack goes back to its step and sequence."""
    step, sequence = (place.to(grads[0].device) for place in places(node._saved_result1))
    places_there = (sequence, step) if node._saved_batch_first else (step, sequence)
    return (grads[0].new_zeros(node._saved_input_sym_sizes).index_put(places_there, grads[0]),)


def places(lasting: Tensor) -> tuple[Tensor, Tensor]:
    """The step and the sequence of each element of a pack. `lasting` has the number of sequences at each step."""
    step = torch.arange(len(lasting)).repeat_interleave(lasting)
    return step, torch.arange(len(step)) - (lasting.cumsum(0) - lasting)[step]
