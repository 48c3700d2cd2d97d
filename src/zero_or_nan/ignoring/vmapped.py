"""`torch.vmap` over a pass: a mask can't go along with a batch, so there is one pass for each vector of it.

That is possible where the graph was made outside of `vmap`, and only the vectors of the vector-Jacobian product are
batched. A graph made inside of a transform of `torch.func` can't be followed, and the pass says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

_functorch: Any = torch._C._functorch

outside = temporarily_pop_interpreter_stack
"""Leaves the innermost transform of `torch.func` while it is entered."""


def in_transform() -> bool:
    """Whether this runs inside of a transform of `torch.func`, such as `vmap`."""
    return _functorch.maybe_current_level() is not None


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor stands for others: those of a batch, or one that a transform of `torch.func` follows."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor) or _functorch.is_legacy_batchedtensor(tensor))


def unwrapped(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stands for; itself where they can't be had."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def batched_by_vmap(vectors: Sequence[Any], graph: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The vectors of each pass, where the innermost transform is `vmap`, and the graph is from outside of it.

    Args:
        vectors: one for each root, or None.
        graph: the roots and inputs.

    Returns:
        Tensors as they are outside of that `vmap`; nothing where this is another situation.
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
    """What `vmap` goes on with: one tensor for the gradients of all passes, which are its first dimension."""
    result: Tensor = _functorch._add_batch_dim(gradients, 0, _functorch.maybe_current_level())
    return result
