"""The user's call that a node of the graph comes from. PyTorch puts nodes in between that nobody called."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any, NamedTuple

from ..functions.graph import Graph, function_of, is_region
from .calls import Call
from .findings import Findings
from .nodes import CALLED
from .places import Place, place_here, users_frame
from .regions import COMPILED, Regions


class Origination(NamedTuple):
    """The call that a node comes from, and the node that knows it: itself, or the nearest one that it works for."""

    node: Any
    name: str
    place: Place

    @property
    def call(self) -> Call:
        """The call, without its function and arguments."""
        return Call(None, self.name, self.place)


class Originations:
    """Those of the nodes of one graph.

    Args:
        graph: the nodes, with their edges.
        findings, regions: those of the watch.
    """

    def __init__(self, graph: Graph, findings: Findings, regions: Regions) -> None:
        self._graph, self._findings, self._regions = graph, findings, regions
        self._callers: dict[Any, Any] = {}

    def of(self, node: Any) -> Origination:
        """The call of the user's that a node comes from."""
        called = node.metadata.get(CALLED)
        if called is not None:
            return Origination(node, *called)
        if is_region(node):
            return Origination(node, COMPILED, self._regions.place_of(node) or place_here(users_frame()))
        if node not in self._callers:
            self._callers[node] = self._caller(node)
        caller = self._callers[node]
        if caller is not None:
            return Origination(caller, *caller.metadata[CALLED])
        return Origination(node, function_of(node.name()), self._findings.compiled_at or place_here(users_frame()))

    def _caller(self, node: Any) -> Any:
        """The nearest node that knows its call, among those that a node sends its gradient for; None if none does."""
        waiting, seen = deque([node]), {node}
        while waiting:
            at = waiting.popleft()
            if not waiting and at in self._callers:  # all paths lead through it
                return self._callers[at]
            if CALLED in at.metadata:
                return at
            new = [
                sender
                for sender in dict.fromkeys(sender for sender, _ in self.senders.get(at, ()))
                if sender not in seen
            ]
            seen.update(new)
            waiting += new
        return None

    @functools.cached_property
    def senders(self) -> dict[Any, list[tuple[Any, int]]]:
        """By node, the nodes whose gradients arrive there, each with the number of the cotangent."""
        senders: dict[Any, list[tuple[Any, int]]] = {}
        for node, edges in self._graph.items():
            for ahead, slot in edges:
                senders.setdefault(ahead, []).append((node, slot))
        return senders
