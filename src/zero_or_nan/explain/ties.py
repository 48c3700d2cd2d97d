"""Whether the loss uses or ignores an element by a convention alone: the element is at a tie.

At 0 the slope of `relu` may be anything between 0 and 1. PyTorch chooses 0, so the loss ignores the element; `maximum`
chooses a half, so the loss uses it. `clamp` with a number chose 1 before PyTorch 2.14, and chooses 0 since
(pytorch#191142). The kind of an origin follows the convention. The report says so.

A tie is found if the function that takes the element is at most some views and multiplications away. Through a sum, or
a layer, the value that arrives at the function is not known, and nothing is said.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..functions.graph import function_of
from .nodes import CALLED, can_run_again

_CLAMPS: dict[str, Callable[[Any], tuple[float, ...]]] = {
    "Clamp": lambda node: (node._saved_min, node._saved_max),
    "ClampMin": lambda node: (node._saved_min,),
    "ClampMax": lambda node: (node._saved_max,),
}
_CLAMPS_USE = torch.__version__ < "2.14"  # compared as versions

_IGNORES: dict[str, Callable[[Any], tuple[float, ...]]] = {
    "Relu": lambda node: (0.0,),
    "Threshold": lambda node: (node._saved_threshold,),
    "Hardtanh": lambda node: (node._saved_min_val, node._saved_max_val),
    "Hardsigmoid": lambda node: (-3.0, 3.0),
    **({} if _CLAMPS_USE else _CLAMPS),
}
"""Functions whose slope at a kink is 0 by convention, with the kinks."""

_USES = _CLAMPS if _CLAMPS_USE else {}
"""Functions whose slope at a kink is 1 by convention, with the kinks."""

_CHOOSES = frozenset("""
Max0 Min0 Sort Topk Kthvalue Mode MaxPool2DWithIndices MaxPool3DWithIndices AdaptiveMaxPool2D AdaptiveMaxPool3D
FractionalMaxPool2D FractionalMaxPool3D
""".split())  # fmt: skip
"""Functions that take one of equal elements."""

_SHARES = frozenset("Maximum Minimum Fmax Fmin Amax Amin Max1 Min1 Median0 Nanmedian0".split())
"""Functions that share a gradient out among equal elements."""

_MOVES = frozenset("""
View UnsafeView Reshape ReshapeAlias Transpose T Permute Squeeze Unsqueeze Expand Select Slice Clone Alias Unbind Split
Stack Cat Index Gather Movedim
""".split())  # fmt: skip

_KEEPS_ZERO = frozenset("Mul Div Neg".split())


def value_of(node: Any, index: tuple[int, ...], shape: Sequence[int]) -> float | None:
    """The element that a function of one tensor gave in the forward pass, as far as its node knows."""
    if not can_run_again(node):
        return None
    with contextlib.suppress(Exception):
        result = getattr(node, "_saved_result", None)
        if isinstance(result, Tensor):
            return float(result[index]) if result.shape == shape else None
        here = node._saved_self.detach()[index]
        exponent = getattr(node, "_saved_exponent", None)
        name = function_of(node.name()).lower()
        with torch._C.DisableTorchFunction():
            return float(getattr(torch, name)(here, *([] if exponent is None else [exponent])))
    return None


def tie_of(node: Any, value: float | None, is_used: bool, senders: Mapping[Any, Sequence[tuple[Any, int]]]) -> str:
    """How PyTorch treats an element, in half a sentence, if it is at a tie; else empty.

    Args:
        node: the node of the function that gave the element.
        value: the element.
        is_used: whether the loss uses it.
        senders: by node, the nodes whose gradients arrive there, each with the number of the cotangent.
    """
    if value is None or not math.isfinite(value):
        return ""
    waiting, seen = [node], {node}
    while waiting:
        for consumer, _ in senders.get(waiting.pop(0), ()):
            if consumer in seen:
                continue
            seen.add(consumer)
            found = _convention(consumer, value, is_used)
            if found:
                return found
            name = function_of(consumer.name())
            if name in _MOVES or (value == 0 and name in _KEEPS_ZERO):
                waiting.append(consumer)
    return ""


def _convention(node: Any, value: float, is_used: bool) -> str:
    kind, _, number = node.name().partition("Backward")
    called = node.metadata.get(CALLED)
    name = called[0].strip("_") if called is not None else kind.lower().removesuffix("withindices")
    kinks = (_USES if is_used else _IGNORES).get(kind)
    if kinks is not None and any(kink is not None and float(kink) == value for kink in kinks(node)):
        if is_used:
            return f"at a tie: by PyTorch's convention {name} uses the element, and relu does not"
        return f"at a tie: by PyTorch's convention {name} does not use the element, and maximum does"
    if {kind, kind + number} & _CHOOSES:
        return f"perhaps at a tie: of equal elements, {name} takes one by PyTorch's convention"
    if is_used and {kind, kind + number} & _SHARES:
        return f"perhaps at a tie: of equal elements, {name} uses all by PyTorch's convention"
    return ""
