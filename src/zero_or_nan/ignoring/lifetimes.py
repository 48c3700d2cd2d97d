"""Deep graphs are freed one node after the other.

In newer releases of PyTorch a node that Python has seen is freed inside its predecessor, so that a chain of some ten
thousand nodes, once Python has walked along it, overflows the stack when it is dropped. Held here, none is freed inside
another; and one that nothing but this holds is let go, at the next garbage collection or pass.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import torch

from .graph import Graph, graph_from

DEEP = 1000
"""Nodes from which on a graph may be too deep to be freed one node inside the other."""

SOME = 499
"""Of nodes that are seen one by one, how many there are to each that is kept. A prime: loops have other lengths."""


class _DeepGraphs:
    """The nodes of deep graphs, each once, until nothing else holds them."""

    def __init__(self) -> None:
        self._held: list[deque[Any]] = []
        self._known: set[int] = set()
        self._seen = 0
        self._sweeping = False
        self._lock = threading.RLock()

    def hold(self, graph: Collection[Any]) -> None:
        """Keep the nodes of a graph until nothing else does. The order is from the roots on."""
        if len(graph) < DEEP or not _keeps_its_object():
            return
        with self._lock:
            nodes = deque(node for node in graph if id(node) not in self._known)
            if nodes:
                self._keep(nodes)

    def _keep(self, nodes: deque[Any]) -> None:
        if not self._held:
            gc.callbacks.append(self._collected)
        self._known.update(map(id, nodes))
        self._held.append(nodes)

    def saw(self, node: Any) -> None:
        """Python has seen a node as it was made. Of these some are kept: then no chain of them is freed too deep."""
        self._seen += 1
        if self._seen % SOME or not _keeps_its_object():
            return
        self.sweep()
        with self._lock:
            if id(node) not in self._known:
                self._keep(deque([node]))

    def sweep(self) -> None:
        """Let go of what nothing else holds; a graph whose first node is alive is alive."""
        if not self._held or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._sweeping:  # what is freed may run code of the user's
                self._sweeping = True
                self._let_go()
                self._sweeping = False
        finally:
            self._lock.release()

    def _let_go(self) -> None:
        for nodes in filter(_is_free, self._held[::-1]):  # the later lead to the earlier
            alive: deque[Any] = deque()
            while nodes:
                node = nodes.popleft()
                if sys.getrefcount(node) > _FREE:
                    alive.append(node)
                else:
                    self._known.discard(id(node))
                del node  # freed here, and its successors are still held
            nodes.extend(alive)
        self._held[:] = [nodes for nodes in self._held if nodes]
        if not self._held and self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def forked(self) -> None:
        """In a new process nobody else has the lock, whoever had it."""
        self._lock, self._sweeping = threading.RLock(), False

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and any(map(_is_free, self._held)):
            self.sweep()


def _is_free(nodes: deque[Any]) -> bool:
    """Whether nothing else holds the first of these."""
    return bool(nodes) and sys.getrefcount(nodes[0]) <= _FREE


_FREE = 2
"""The references to a node that a local variable, or a container, and a call hold."""

DEEP_GRAPHS = _DeepGraphs()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=DEEP_GRAPHS.forked)


def held_from(roots: Sequence[Any]) -> Graph:
    """All that backward from the roots can reach, to be let go of when nobody else holds it."""
    DEEP_GRAPHS.sweep()
    graph = graph_from(roots)
    DEEP_GRAPHS.hold(graph)
    return graph


@functools.cache
def _keeps_its_object() -> bool:
    """Whether a node keeps the object by which Python sees it."""
    with torch.enable_grad():  # a watch asks where nothing is recorded
        result = torch.ones((), requires_grad=True).neg()  # saves nothing, so that no hook of the user's runs
    node = result.grad_fn
    return sys.getrefcount(node) > _FREE
