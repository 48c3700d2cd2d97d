"""The graph that backward goes through: its nodes, and the forward function behind each."""

from __future__ import annotations

import functools
import gc
import re
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch

AccumulateGrad: type = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

DEEP = 1000
"""Nodes from which on a graph may be too deep to be freed one node inside the other."""


Edge = tuple[Any, int]
"""A node ahead, and the number of the cotangent that it gets."""

Graph = dict[Any, Sequence[Edge]]
"""Every node that backward can reach, with its edges; from the roots on, in a chain."""


def graph_from(roots: Sequence[Any]) -> Graph:
    """All that backward from the roots, tensors or graph edges, can reach."""
    stack = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    graph: Graph = {}
    while stack:
        node = stack.pop()
        if node is None or node in graph:
            continue
        graph[node] = edges = node.next_functions
        stack.extend([edge[0] for edge in edges])
    return graph


@functools.cache
def function_of(name: str) -> str:
    """The forward function of a node, by the node's name.

    >>> function_of("MaskedFillBackward0"), function_of("torch::autograd::CopySlices")
    ('MaskedFill', 'CopySlices')
    """
    name = name.rpartition("::")[2]
    found = re.fullmatch(r"(\w+)Backward\d+(_copy)?", name)
    return found[1] if found else name


def can_be_read_again(node: Any, unknown: bool) -> bool:
    """Whether saved tensors can be had without a hook that would compute them again, or fetch them from elsewhere.

    Args:
        node: the node that saved them.
        unknown: the answer where PyTorch does not tell, as 2.6.
    """
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if getattr(compiled, "compiled_autograd_enabled", False):  # runs a graph of its own, in which they are gone by now
        return False
    saved = [getattr(node, name) for name in _saved_by(type(node))]
    packed = [part for part in saved for part in (part if isinstance(part, (tuple, list)) else (part,))]
    return all(part.unpack_hook is None if hasattr(part, "unpack_hook") else unknown for part in packed)


@functools.cache
def _saved_by(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]


NODES = frozenset(function_of(name) for name in dir(torch._C._functions))
"""The forward functions whose nodes are PyTorch's own. Others run code that nobody can look into from here."""


class _Graves:
    """Frees deep graphs one node after the other.

    Since torch 2.10 or so a node that Python has seen is freed inside its predecessor, so that a graph of some ten
    thousand of them, once seen, overflows the stack when it is dropped. Held here, none is freed inside another; and
    one that nothing but this holds is let go, at the next garbage collection or pass.
    """

    def __init__(self) -> None:
        self._held: list[deque[Any]] = []
        self._sweeping = False

    def hold(self, graph: Iterable[Any]) -> None:
        """Keep the nodes of a graph until nothing else does. The order is from the roots on."""
        nodes = tuple(graph)
        if len(nodes) < DEEP or not _keeps_its_object():
            return
        if not self._held:
            gc.callbacks.append(self._collected)
        self._held.append(deque(nodes))

    def sweep(self) -> None:
        """Let go of what nothing else holds."""
        if self._sweeping:
            return
        self._sweeping = True
        try:
            for nodes in self._held:
                alive: deque[Any] = deque()
                while nodes:
                    node = nodes.popleft()
                    if sys.getrefcount(node) > _FREE:
                        alive.append(node)
                    del node  # freed here, and its successors are still held
                nodes.extend(alive)
            self._held = [nodes for nodes in self._held if nodes]
            if not self._held and self._collected in gc.callbacks:
                gc.callbacks.remove(self._collected)
        finally:
            self._sweeping = False

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and any(nodes and sys.getrefcount(nodes[0]) <= _FREE for nodes in self._held):
            self.sweep()


_FREE = 2
"""The references to a node that a local variable, or a container, and a call hold."""

GRAVES = _Graves()


@functools.cache
def _keeps_its_object() -> bool:
    """Whether a node keeps the object by which Python sees it."""
    result = torch.ones((), requires_grad=True).exp()
    node = result.grad_fn
    return sys.getrefcount(node) > _FREE
