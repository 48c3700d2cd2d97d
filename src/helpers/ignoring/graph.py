"""The graph that backward goes through: its nodes, and the forward function behind each."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any


def nodes_of(roots: Sequence[Any]) -> Iterator[Any]:
    """Every node that backward from the roots can reach, once."""
    stack = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    seen = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(edge[0] for edge in node.next_functions)


@functools.cache
def function_of(name: str) -> str:
    """The forward function of a node, by the node's name.

    >>> function_of("MaskedFillBackward0"), function_of("torch::autograd::CopySlices")
    ('MaskedFill', 'CopySlices')
    """
    name = name.rpartition("::")[2]
    function, found, number = name.rpartition("Backward")
    return function if found and number.isdigit() else name
