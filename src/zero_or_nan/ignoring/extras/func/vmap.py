"""`ignoring.grad` inside of a transform of `torch.func`, and what `gradients` needs of these transforms.

A tensor that `torch.vmap` has batched can't carry a mask. If the graph was made outside of `vmap`, and only the vectors
of the vector-Jacobian product are batched, each vector of the batch gets its own pass. A graph that was made inside of
a transform of `torch.func` is refused (`refuse_inside`). `gradients` makes the graph of all samples itself, outside of
all levels of `vmap` (`together`, `under_vmap`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_all_functorch_interpreters,
    retrieve_current_functorch_interpreter,
    temporarily_pop_interpreter_stack,
)

from ....functions.graph import held_from
from ....masks.numbers import has_wrapper, inside_wrapper, is_wrapped
from ...engine.higher import in_forward_mode
from ...engine.passes import each, plain_is_enough, sequence, takes_over, tensors_in
from ...engine.plan import on_any_process

_functorch: Any = torch._C._functorch

outside = temporarily_pop_interpreter_stack
"""A context outside of the innermost transform of `torch.func`."""


def level() -> int:
    """The number of transforms of `torch.func` around this code."""
    return _functorch.maybe_current_level() or 0


@contextlib.contextmanager
def outside_all() -> Iterator[None]:
    """A context outside of all transforms of `torch.func`."""
    with contextlib.ExitStack() as stack:
        while level():
            stack.enter_context(outside())
        yield


@takes_over
def in_a_transform(
    once_more: Callable[[Any, bool | None], Any],
    for_each: Callable[[Sequence[Any], bool | None, bool], Any],
    roots: Sequence[Any],
    inputs: Any,
    vectors: Any,
    retain_graph: bool | None,
    create_graph: bool,
) -> Any:
    """The gradients of `ignoring.grad`, if a transform of `torch.func` is around the call; else None."""
    if not level():
        return None
    batch = _batch_with_masks(roots, inputs, vectors, create_graph)
    if batch:
        with outside():
            gradients = for_each(batch, retain_graph, level() > 0)
        return each(lambda gradient: None if gradient is None else batched_again(gradient), gradients)
    if not any(isinstance(t, Tensor) and is_wrapped(t) for t in (*roots, *tensors_in(inputs), *tensors_in(vectors))):
        with outside_all():
            return once_more(vectors, retain_graph)
    refuse_inside("ignoring.grad", (*roots, *tensors_in(inputs)), vmap_too=True)
    refuse_inside("ignoring.grad", tensors_in(vectors))
    return None


def _batch_with_masks(roots: Sequence[Any], inputs: Any, vectors: Any, recorded: bool) -> list[tuple[Any, ...]]:
    """The vectors of each pass if `torch.vmap` batches them and plain backward is not enough; else an empty list."""
    batch = [] if vectors is None else batched_by_vmap(sequence(vectors), (*roots, *tensors_in(inputs)))
    if not batch:
        return []
    with outside():
        graph = held_from(roots)
        needs_masks = not plain_is_enough(graph, recorded or in_forward_mode(), [])
        return batch if on_any_process(needs_masks, roots, graph) else []


def batched_by_vmap(vectors: Sequence[Any], graph: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The vectors of each pass, if the innermost transform is `vmap` and the graph was made outside of it.

    They are tensors as outside of that `vmap`; no vectors in any other situation. `graph`: the roots and inputs.
    """
    if any(isinstance(thing, Tensor) and is_wrapped(thing) for thing in graph):
        return []
    batched = [isinstance(v, Tensor) and _functorch.is_batchedtensor(v) for v in vectors]
    levels = {_functorch.maybe_get_level(v) for v, b in zip(vectors, batched, strict=True) if b}
    if levels != {_functorch.maybe_current_level()}:
        return []
    with outside():
        rows = [
            inside_wrapper(v).unbind(_functorch.maybe_get_bdim(v)) if b else None
            for v, b in zip(vectors, batched, strict=True)
        ]
        size = next(len(row) for row in rows if row is not None)
        return [tuple(v if row is None else row[i] for v, row in zip(vectors, rows, strict=True)) for i in range(size)]


def batched_again(gradients: Tensor) -> Tensor:
    """The gradients of all passes as a batched tensor of `vmap`. The first dimension has the passes."""
    result: Tensor = _functorch._add_batch_dim(gradients, 0, _functorch.maybe_current_level())
    return result


def together(tensor: Tensor) -> Tensor:
    """A tensor with all samples of all levels of `vmap`, whose first dimensions are these levels, the outermost first.

    A tensor that is the same for all samples is expanded.
    """
    with contextlib.ExitStack() as stack:
        while level():
            transform = retrieve_current_functorch_interpreter()
            stack.enter_context(outside())
            if not isinstance(transform, VmapInterpreter):
                continue
            if _functorch.is_batchedtensor(tensor) and _functorch.maybe_get_level(tensor) == transform.level():
                tensor = inside_wrapper(tensor).movedim(_functorch.maybe_get_bdim(tensor), 0)
            else:
                tensor = tensor.expand(transform.batch_size(), *tensor.shape)
        return tensor


def under_vmap(samples: Tensor) -> Tensor:
    """The inverse of `together`: a batched tensor, from a tensor with all samples."""
    if not level():
        return samples
    transform = retrieve_current_functorch_interpreter()
    with outside():
        inner = under_vmap(samples)
    return batched_again(inner) if isinstance(transform, VmapInterpreter) else inner


_REFUSED = {
    TransformType.Vmap: (
        "torch.vmap",
        "Use torch.vmap over ignoring.func.grad, vjp or jacrev instead, or a loop",
    ),
    TransformType.Grad: (
        "torch.func.grad, vjp or jacrev",
        "Use the function of the same name in ignoring.func instead, which may contain this call",
    ),
    TransformType.Jvp: (
        "torch.func.jvp or jacfwd",
        "Use the forward mode of torch.autograd.forward_ad instead, or ignoring.func.vjp or jacrev",
    ),
    TransformType.Functionalize: ("torch.func.functionalize", "Call it outside"),
}
"""The name of each transform, and what to use in place of it."""


def refuse_inside(name: str, tensors: Iterable[Any], vmap_too: bool = False) -> None:
    """Raise if a transform of `torch.func` has wrapped one of the tensors: their graph and their numbers are hidden.

    `torch.vmap` is refused only with `vmap_too`. The error says what to use in place of the function `name`.
    """
    kinds = [kind for tensor in tensors if isinstance(tensor, Tensor) for kind in _transforms_of(tensor)]
    kinds.sort(key=TransformType.Vmap.__eq__)  # what works in place of the others works in place of `vmap`
    if kinds and (vmap_too or kinds[0] != TransformType.Vmap):
        name_there, instead = _REFUSED[kinds[0]]
        raise RuntimeError(f"{name} was called inside of {name_there}, which hides from it what is ignored. {instead}")


def _transforms_of(tensor: Tensor) -> Iterator[TransformType]:
    """The transforms that have wrapped a tensor."""
    kinds = {transform.level(): transform.key() for transform in retrieve_all_functorch_interpreters()}
    while has_wrapper(tensor):
        yield kinds.get(_functorch.maybe_get_level(tensor), TransformType.Grad)
        tensor = inside_wrapper(tensor)
