"""What a watch writes on a node of the graph, and what it can read from the node. A note lives as long as its node."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..functions import graph
from ..functions.graph import DEEP_GRAPHS, KINDS, TELLS_OF_HOOKS, Edge, can_be_read_again, saved_tensors
from .places import Place
from .provenance import Birth, Provenance, all_births

CALLED = "zero_or_nan.called"
"""The key in a node's metadata for the function and the place of its forward call."""

_CARRIES = "zero_or_nan.carries"
"""The key for the elements of each output that are not finite, with their births."""

_PASSES = "zero_or_nan.passes"
"""The key for the provenances of the call's operands, by watch."""

_READABLE = "zero_or_nan.readable"
"""The key for whether its saved tensors can be read without running a hook. Newer releases of PyTorch know this."""

_REGION = "zero_or_nan.region"
"""The key for the call of a compiled region that the node comes from."""

HOOKS: list[Any] = []
"""The hooks on saved tensors that are active now, on releases of PyTorch that do not know a node's hooks."""

Carried = dict[int, list[tuple[Birth, Tensor]]]
"""By output of a node: births, each with a mask of its elements."""


def node_of(tensor: Tensor) -> Any:
    """The node of a tensor in the graph, or None.

    Under `no_grad`, a view of a leaf may be written to. PyTorch then refuses to say whether the view has a node.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def edge_of(tensor: Any) -> Edge | None:
    """Where the gradient of a tensor or graph edge arrives; None for what has none."""
    try:
        return graph.edge_of(tensor)
    except RuntimeError:  # PyTorch asks a view of a leaf, and some layouts have no views
        with torch.enable_grad():
            return (tensor.clone().grad_fn.next_functions[0]) if tensor.is_leaf else None


def note_call(node: Any, name: str, place: Place) -> None:
    """Write on a node which call it comes from. The first call counts."""
    known = node.metadata
    if CALLED not in known:
        known[CALLED] = name, place
        DEEP_GRAPHS.saw(node)
        if not TELLS_OF_HOOKS:
            known[_READABLE] = not HOOKS


def note_carried(tensor: Tensor, carried: list[tuple[Birth, Tensor]]) -> None:
    """Write on the node of a result which of its elements are not finite."""
    node = node_of(tensor)
    node.metadata.setdefault(_CARRIES, {}).setdefault(tensor.output_nr, []).extend(carried)


def note_passed(node: Any, provenances: Iterable[Provenance]) -> None:
    """Write on a node what the operands of its call come from. The first note of each watch counts."""
    known = [provenance for provenance in provenances if provenance.kinds]
    if known:
        node.metadata.setdefault(_PASSES, {}).setdefault(known[0].first.watch, known)


def note_region(node: Any, region: Any) -> None:
    """Write on the node of a compiled region which call of the region it comes from."""
    node.metadata[_REGION] = region


def region_of(node: Any) -> Any:
    """The call of a compiled region that a node comes from, or None."""
    return None if node is None else node.metadata.get(_REGION)


def share_readable(node: Any, caller: Any) -> None:
    """Let a node that PyTorch made inside of a call know what the node of the call knows about hooks."""
    node.metadata.setdefault(_READABLE, caller.metadata.get(_READABLE, False))


def carried_by(node: Any) -> Carried:
    """The elements of a node's outputs that were not finite in the forward pass."""
    carried: Carried = node.metadata.get(_CARRIES) or {}
    return carried


def passed_by(node: Any) -> tuple[Birth, ...]:
    """The births that came with the operands of a node's call."""
    return tuple(all_births(itertools.chain(*node.metadata.get(_PASSES, {}).values())))


def can_run_again(node: Any) -> bool:
    """Whether a node's derivative may be run once more. PyTorch's own can; others may have any side effect."""
    return type(node) in KINDS and can_be_read_again(node, node.metadata.get(_READABLE, False))


def saved_by(node: Any) -> Iterator[Tensor]:
    """The tensors that a node saved, as far as they can be read without running a user's hook."""
    return saved_tensors(node, node.metadata.get(_READABLE, False))
