"""Jagged tensors: pieces of different lengths, stored one after another in a dense tensor, which has the mask.

PyTorch's operators on a jagged tensor work on this dense tensor of values. So a jagged cotangent is a jagged tensor
whose values are a `Cotangent`.
"""

from __future__ import annotations

from typing import Any

import torch

from ...masks.cotangent import Cotangent, NotFollowed, Run
from ...masks.mask import Mask
from ...masks.numbers import Form, register


@register
class Jagged(Form):
    """The form of nested tensors with the jagged layout."""

    can_be_recorded = False  # the values would lose their record

    def has(self, tensor: Any) -> bool:
        return tensor.layout is torch.jagged

    def values(self, tensor: Any) -> Any:
        return tensor._values

    def with_values(self, tensor: Any, values: Any) -> Any:
        names, context = tensor.__tensor_flatten__()
        parts = {name: getattr(tensor, name) for name in names}
        return type(tensor).__tensor_unflatten__(parts | {"_values": values}, context, tensor.shape, tensor.stride())

    def cotangent(self, value: Any, mask: Mask, step: Run) -> Any:
        return self.with_values(value, Cotangent(value._values, mask, step))

    def reader(self, node: Any) -> Any:
        raise NotFollowed("gets a nested tensor")
