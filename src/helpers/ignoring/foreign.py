"""Nodes that run code which is not PyTorch's own operators: plain tensors go in, and a cotangent comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from .cotangent import LOST, AccumulateGrad, Cotangent, entering, ignored_in, plain, wrapped
from .graph import nodes_of
from .harmless import harmless

TRANSPARENT = frozenset({"BackwardHookFunctionBackward", "_DDPSinkBackward"})
"""PyTorch's own functions that only hand a cotangent on."""

CHECKPOINT = "CheckpointFunctionBackward"
"""The reentrant checkpoint: its backward recomputes a part of the graph, and is a pass of its own over that part."""


def guard(nodes: Iterable[Any]) -> list[Any]:
    """Hooks by which a foreign `autograd.Function` or compiled region gets plain tensors and is told of in `LOST`.

    Returns:
        The handles, to be removed after the pass.
    """
    handles: list[Any] = []
    for node in nodes:
        if isinstance(node, AccumulateGrad):  # has no derivative
            continue
        foreign = isinstance(node, BackwardCFunction)
        if not foreign or node.name() in TRANSPARENT:
            handles.append(node.register_prehook(entering(node)))
        else:
            handles += _guard_checkpoint(node) if node.name() == CHECKPOINT else _guard(node)
    return handles


def _guard_checkpoint(node: Any) -> list[Any]:
    """What is recomputed is guarded too; the masks that end at its detached inputs are handed on."""
    recompute: Callable[..., Any] = node.run_function
    handles: list[Any] = []
    masks: dict[int, Tensor | None] = {}
    unused: list[bool] = []
    enter = entering(node)

    def before(cotangents: tuple[Any, ...]) -> tuple[Any, ...] | None:
        unused[:] = [cotangent is None for cotangent in cotangents]
        return enter(cotangents)

    def recomputed(*inputs: Any) -> Any:
        result = recompute(*inputs)
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        handles.extend(guard(nodes_of(outputs)))
        for output, ignored in zip(outputs, unused, strict=True):
            if ignored and getattr(output, "requires_grad", False):
                output.register_hook(_all_ignored)
        for i, tensor in enumerate(filter(torch.is_tensor, inputs)):
            if tensor.requires_grad:
                tensor.register_hook(lambda cotangent, i=i: masks.update({i: ignored_in(cotangent)}))
        return result

    def after(results: tuple[Any, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(Cotangent(r, masks.get(i)) if isinstance(r, Tensor) else r for i, r in enumerate(results))

    def restore() -> None:
        node.run_function = recompute
        for handle in handles:
            handle.remove()

    node.run_function = recomputed
    return [node.register_prehook(before), node.register_hook(after), SimpleNamespace(remove=restore)]


def _all_ignored(zeros: Tensor) -> Cotangent:
    """What PyTorch makes up for an output that was not used."""
    return Cotangent(plain(zeros), torch.ones_like(plain(zeros), dtype=torch.bool))


def _guard(node: Any) -> list[Any]:
    name = node.name().removesuffix("Backward")

    def before(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(type(c) is Cotangent and c.ignored is not None and bool(c.ignored.any()) for c in cotangents):
            LOST.add(name)
        return tuple(plain(c) for c in cotangents)

    def after(results: tuple[Any, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        dense = [r for r in results if isinstance(r, Tensor) and r.layout is torch.strided]
        if not all(bool(r.isfinite().all()) for r in dense):
            LOST.add(name)
        elif any(bool((r == 0).any()) for r in dense) and not _ends_well(node):
            LOST.add(name)  # a zero may be a number or what was not selected inside, and ahead that makes a difference
        return tuple(wrapped(r) for r in results)

    return [node.register_prehook(before), node.register_hook(after)]


def _ends_well(node: Any) -> bool:
    """Whether plain PyTorch's backward can be trusted from this node on."""
    return harmless(nodes_of([GradientEdge(ahead, 0) for ahead, _ in node.next_functions if ahead is not None]))
