"""Sequences of several lengths, packed one step of all behind the other: what pads them is never used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..conditions import ALWAYS
from ..registry import derivative


@derivative("PackPaddedSequence", selects=True, safe_if=ALWAYS)
def pack_padded_sequence(node: Any, grads: Any) -> tuple[Any]:
    """Each step of the packed ones goes back to its place."""
    step, sequence = (place.to(grads[0].device) for place in places(node._saved_result1))
    places_there = (sequence, step) if node._saved_batch_first else (step, sequence)
    return (grads[0].new_zeros(node._saved_input_sym_sizes).index_put(places_there, grads[0]),)


def places(lasting: Tensor) -> tuple[Tensor, Tensor]:
    """The step and the sequence of each element of a pack, by how many sequences last so long, for each step."""
    step = torch.arange(len(lasting)).repeat_interleave(lasting)
    return step, torch.arange(len(step)) - (lasting.cumsum(0) - lasting)[step]
