"""The same backward pass, run by `ignoring` beforehand: what the loss ignores, and whether gradients exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ..functions.graph import AccumulateGrad, Edge, Graph, held_from
from ..functions.record import UNKNOWN, record_of
from ..ignoring.engine.masked_pass import Observer, Pass
from ..ignoring.engine.steps import CHECKPOINT
from ..masks.mask import Mask
from .arithmetic import without_side_effects
from .nodes import edge_of
from .tensors import are_finite, is_finite, not_finite, numbers_of


class Shadow(Observer):
    """The outcome of a pass of `ignoring` that changes no gradient.

    Attributes:
        finite: by node, whether what `ignoring` passes on there is finite.
        masks: the masks at the edges that were asked for.
        made: the results of nodes that are not finite though, as far as is known, what arrived there was: the node, the
            number of the result, and its elements that are not finite and that the loss uses.
        is_complete: whether `ignoring` could follow each operator.
    """

    def __init__(self, graph: Graph) -> None:
        self.finite: dict[Any, bool] = {}
        self.made: list[tuple[Any, int, Tensor]] = []
        self.is_complete = True
        self._graph = graph
        self._senders: dict[Any, list[Any]] = {}
        self.masks: dict[Edge, Mask] = {}
        self._edges: dict[Edge, bool] = {}
        self._leaves: dict[int, bool] = {}

    def fixed(self, target: Any, edge: Edge) -> bool:
        """Whether `ignoring` gave a finite gradient to a leaf, or to a tensor that a gradient was asked for."""
        return self._edges.get(edge, self._leaves.get(id(target), False))

    def let_go(self) -> None:
        """Forget the graph, which the pass that follows frees."""
        self._graph, self._senders = {}, {}

    def not_followed(self) -> None:
        """Remember that the pass could not follow an operator."""
        self.is_complete = False

    def handed_on(self, node: Any, values: Sequence[Any], masks: Sequence[Mask]) -> None:
        """Remember whether everything that a node hands on is finite."""
        self.finite[node] = are_finite(values)
        if self.finite[node]:
            return
        if not self._senders:
            for sender, edges in self._graph.items():
                for ahead, _ in edges:
                    self._senders.setdefault(ahead, []).append(sender)
        if all(self.finite.get(sender, True) for sender in self._senders.get(node, ())):
            for at, (value, mask) in enumerate(zip(values, masks, strict=False)):
                here = numbers_of(value)
                if here is not None and not is_finite(here):
                    bad = not_finite(here)
                    self.made.append((node, at, bad & mask if mask is not None and mask.shape == bad.shape else bad))


def shadow_of(
    roots: Sequence[Any],
    vectors: Sequence[Any],
    inputs: Sequence[Any],
    graph: Graph,
    keep: Sequence[Edge],
    unsafe: Sequence[Any],
    nested: Callable[[Callable[[Any], None]], None],
) -> Shadow | None:
    """The outcome of a pass of `ignoring` over a graph. `.grad`, random numbers and the graph stay as they are.

    Args:
        roots, vectors, inputs: those of the pass.
        keep: the edges whose masks are asked for.
        unsafe: the nodes out of which ignored elements may come as other numbers than 0.
        nested: takes a function that is then called with the roots of each pass inside of this one.

    Returns:
        None if it could not be run.
    """
    if any(map(_may_run_only_once, graph)):
        return None
    edges: list[Edge] = [(node, 0) for node, _ in leaves_of(graph)]
    edges += [edge for edge in map(edge_of, inputs) if edge is not None and type(edge[0]) is not AccumulateGrad]
    if not edges:
        return None
    shadow = Shadow(graph)
    running = Pass(roots, graph, [*keep, *edges], unsafe=unsafe, observer=shadow)
    shadow.masks = running.masks
    try:
        with without_side_effects(), _Leaves(graph) as leaves, running:
            if any(node.name() == CHECKPOINT for node in graph):  # a reentrant checkpoint refuses to work for `grad`
                nested(lambda more: leaves.set_aside(held_from(more)))
                torch.autograd.backward(roots, vectors, retain_graph=True)
                shadow._leaves = leaves.have_finite()
            else:
                asked = [GradientEdge(node, output) for node, output in edges]
                gradients = torch.autograd.grad(roots, asked, vectors, retain_graph=True, allow_unused=True)
                shadow._edges = dict(zip(edges, map(are_finite, gradients), strict=True))
    except Exception:
        return None
    shadow.let_go()
    return shadow


class _Leaves:
    """While entered, leaves have no `.grad` and no hooks. Afterwards both are back."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.kept: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.hooks: list[tuple[Any, list[tuple[Any, Any]]]] = []

    def __enter__(self) -> _Leaves:
        self.set_aside(self.graph)
        return self

    def set_aside(self, graph: Graph) -> None:
        for _, leaf in leaves_of(graph):
            if id(leaf) not in self.kept:
                self.kept[id(leaf)] = leaf, leaf.grad
                leaf.grad = None
                for hooks in (leaf._backward_hooks, leaf._post_accumulate_grad_hooks):
                    if hooks:
                        self.hooks.append((hooks, list(hooks.items())))
                        hooks.clear()

    def have_finite(self) -> dict[int, bool]:
        return {at: leaf.grad is None or are_finite(leaf.grad) for at, (leaf, _) in self.kept.items()}

    def __exit__(self, *details: Any) -> None:
        for leaf, grad in self.kept.values():
            leaf.grad = grad
        for hooks, items in self.hooks:
            hooks.update(items)


def leaves_of(graph: Graph) -> Iterator[tuple[Any, Tensor]]:
    """The nodes that add to the `.grad` of a leaf, with the leaf."""
    for node in graph:
        if type(node) is AccumulateGrad:
            leaf: Any = node
            yield node, leaf.variable


def _may_run_only_once(node: Any) -> bool:
    """Whether a node is a derivative in Python that may free what it saved, or talk to other processes."""
    forward = getattr(node, "_forward_cls", None)
    if forward is None:
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True  # other processes do not run a shadow, so it would wait for them forever
    return not forward.__module__.startswith("torch.") and record_of(node) is UNKNOWN
