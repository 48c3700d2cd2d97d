"""Jagged tensors: pieces of several lengths, one behind the other in a dense tensor. Their masks are that one's.

What PyTorch does with them it does with those values, so a jagged cotangent is one whose values are a `Cotangent`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_jagged(thing: Any) -> bool:
    """Whether this is a nested tensor of the jagged layout."""
    return type(thing) is not Tensor and isinstance(thing, Tensor) and thing.layout is torch.jagged


def values_of(thing: Any) -> Any:
    """The values of a jagged tensor; whatever else there is, itself."""
    return thing._values if is_jagged(thing) else thing


def with_values(jagged: Any, values: Any) -> Any:
    """The jagged tensor with other values in its pieces."""
    names, context = jagged.__tensor_flatten__()
    parts = {name: getattr(jagged, name) for name in names}
    return type(jagged).__tensor_unflatten__(parts | {"_values": values}, context, jagged.shape, jagged.stride())
