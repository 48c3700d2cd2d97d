"""`torch.vmap` over a pass: a batched tensor can't carry a mask, so each vector of the batch gets its own pass.

This works if the graph was made outside of `vmap`, and only the vectors of the vector-Jacobian product are batched. A
graph that was made inside of a transform of `torch.func` can't be followed, and the pass warns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

_functorch: Any = torch._C._functorch

outside = temporarily_pop_interpreter_stack
"""A context outside of the innermost transform of `torch.func`."""


def in_transform() -> bool:
    """True inside of a transform of `torch.func`, such as `vmap`."""
    return _functorch.maybe_current_level() is not None


def is_wrapped(tensor: Tensor) -> bool:
    """True if a tensor is a wrapper that a transform of `torch.func` made, such as the batched tensors of `vmap`."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor) or _functorch.is_legacy_batchedtensor(tensor))


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor inside of all wrappers of `torch.func`; the tensor itself if it has none."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def batched_by_vmap(vectors: Sequence[Any], graph: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The vectors of each pass, if the innermost transform is `vmap` and the graph was made outside of it.

    Args:
        vectors: one for each root, or None.
        graph: the roots and inputs.

    Returns:
        Tensors as they are outside of that `vmap`; an empty list in any other situation.
    """
    if any(isinstance(thing, Tensor) and is_wrapped(thing) for thing in graph):
        return []
    batched = [isinstance(v, Tensor) and _functorch.is_batchedtensor(v) for v in vectors]
    levels = {_functorch.maybe_get_level(v) for v, b in zip(vectors, batched, strict=True) if b}
    if levels != {_functorch.maybe_current_level()}:
        return []
    with outside():
        rows = [
            _functorch.get_unwrapped(v).unbind(_functorch.maybe_get_bdim(v)) if b else None
            for v, b in zip(vectors, batched, strict=True)
        ]
        size = next(len(row) for row in rows if row is not None)
        return [tuple(v if row is None else row[i] for v, row in zip(vectors, rows, strict=True)) for i in range(size)]


def batched_again(gradients: Tensor) -> Tensor:
    """The gradients of all passes as a batched tensor of `vmap`. The first dimension has the passes."""
    result: Tensor = _functorch._add_batch_dim(gradients, 0, _functorch.maybe_current_level())
    return result
