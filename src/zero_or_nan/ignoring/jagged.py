"""Jagged tensors: pieces of different lengths, stored one after another in a dense tensor, which has the mask.

PyTorch's operators on a jagged tensor work on this dense tensor of values. So a jagged cotangent is a jagged tensor
whose values are a `Cotangent`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_jagged(thing: Any) -> bool:
    """True if this is a nested tensor with the jagged layout."""
    return type(thing) is not Tensor and isinstance(thing, Tensor) and thing.layout is torch.jagged


def values_of(thing: Any) -> Any:
    """The values of a jagged tensor; any other object unchanged."""
    return thing._values if is_jagged(thing) else thing


def with_values(jagged: Any, values: Any) -> Any:
    """The jagged tensor with other values in its pieces."""
    names, context = jagged.__tensor_flatten__()
    parts = {name: getattr(jagged, name) for name in names}
    return type(jagged).__tensor_unflatten__(parts | {"_values": values}, context, jagged.shape, jagged.stride())
