"""Frees deep graphs one node after the other, without recursion.

In newer releases of PyTorch, a node that Python has seen is freed inside its predecessor. If Python has walked along a
chain of some ten thousand nodes, dropping the chain overflows the stack. This module holds the nodes, so that no node
is freed inside another. At the next garbage collection or pass, it frees the nodes that nothing else holds.
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
"""From this number of nodes on, a graph may be too deep to be freed recursively."""

SOME = 499
"""One in so many of the nodes that are seen one by one is held. A prime, because loops have other lengths."""


class _DeepGraphs:
    """Holds the nodes of deep graphs, each once, until nothing else holds them."""

    def __init__(self) -> None:
        self._held: list[deque[Any]] = []
        self._known: set[int] = set()
        self._seen = 0
        self._sweeping = False
        self._lock = threading.RLock()

    def hold(self, graph: Collection[Any]) -> None:
        """Hold the nodes of a graph, ordered from the roots on, until nothing else holds them."""
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
        """Note that Python has seen a new node. Some of these nodes are held, so no chain of them is freed too deep."""
        self._seen += 1
        if self._seen % SOME or not _keeps_its_object():
            return
        self.sweep()
        with self._lock:
            if id(node) not in self._known:
                self._keep(deque([node]))

    def sweep(self) -> None:
        """Free the nodes that nothing else holds. A graph is alive as long as something holds its first node."""
        if not self._held or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._sweeping:  # freeing a node may run the user's code, which may call this again
                self._sweeping = True
                self._let_go()
                self._sweeping = False
        finally:
            self._lock.release()

    def _let_go(self) -> None:
        for nodes in filter(_is_free, self._held[::-1]):  # later graphs hold nodes of earlier ones
            alive: deque[Any] = deque()
            while nodes:
                node = nodes.popleft()
                if sys.getrefcount(node) > _FREE:
                    alive.append(node)
                else:
                    self._known.discard(id(node))
                del node  # frees it here, while its successors are still held
            nodes.extend(alive)
        self._held[:] = [nodes for nodes in self._held if nodes]
        if not self._held and self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def forked(self) -> None:
        """Renew the lock in a forked process: a thread that held it does not exist there."""
        self._lock, self._sweeping = threading.RLock(), False

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """The callback of the garbage collector."""
        if phase == "stop" and any(map(_is_free, self._held)):
            self.sweep()


def _is_free(nodes: deque[Any]) -> bool:
    """True if nothing else holds the first of these nodes."""
    return bool(nodes) and sys.getrefcount(nodes[0]) <= _FREE


_FREE = 2
"""The number of references to a node if only a local variable or a container, and the call that counts, hold it."""

DEEP_GRAPHS = _DeepGraphs()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=DEEP_GRAPHS.forked)


def held_from(roots: Sequence[Any]) -> Graph:
    """Every node that backward can reach from the roots. Deep graphs are held until nothing else holds them."""
    DEEP_GRAPHS.sweep()
    graph = graph_from(roots)
    DEEP_GRAPHS.hold(graph)
    return graph


@functools.cache
def _keeps_its_object() -> bool:
    """True if a node keeps its Python object alive, as it does in newer releases."""
    with torch.enable_grad():  # `explain` may call this while nothing is recorded
        result = torch.ones((), requires_grad=True).neg()  # saves nothing, so that no hook of the user's runs
    node = result.grad_fn
    return sys.getrefcount(node) > _FREE
