"""What another part of the library may ask `ignoring`: the only file of `ignoring` that `explain` imports.

The functions with names of their own here say what they do. The others are re-exported, and are described where they
are defined. Most of them are about the graph, about one backward pass of `ignoring` and what an `Observer` sees of it,
about tensors, and about what PyTorch does in this process and thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..functions import fills, graph
from ..functions.fills import mark_formulas as mark_formulas
from ..functions.graph import DEEP_GRAPHS, AccumulateGrad
from ..functions.graph import TELLS_OF_HOOKS as TELLS_OF_HOOKS
from ..functions.graph import Edge as Edge
from ..functions.graph import Graph as Graph
from ..functions.graph import can_be_read_again as can_be_read_again
from ..functions.graph import forward_class as forward_class
from ..functions.graph import hooks_of as hooks_of
from ..functions.graph import is_region as is_region
from ..functions.graph import leaves_of as leaves_of
from ..functions.graph import run as run
from ..functions.graph import saved_tensors as saved_tensors
from ..functions.graph import senders_of as senders_of
from ..functions.record import UNKNOWN, record_of
from ..masks.mask import anywhere
from ..masks.mask import was_broadcast as was_broadcast
from ..masks.numbers import form_of as form_of
from ..masks.numbers import is_sparse as is_sparse
from ..masks.numbers import is_wrapped as is_wrapped
from ..masks.numbers import joined as joined
from ..masks.numbers import shared_forms as shared_forms
from ..masks.numbers import stored as stored
from ..masks.numbers import stored_at as stored_at
from ..masks.numbers import total as total
from ..masks.trees import broadcast_to_and_flatten as broadcast_to_and_flatten
from ..masks.trees import tree_flatten as tree_flatten
from ..masks.trees import tree_leaves as tree_leaves
from ..masks.trees import tree_map as tree_map
from ..masks.trees import tree_map_only as tree_map_only
from ..masks.trees import tree_unflatten as tree_unflatten
from ..masks.watching import Mode as Mode
from ..masks.watching import functions_unseen as functions_unseen
from ..masks.watching import is_profiled as is_profiled
from ..masks.watching import modes_on as modes_on
from ..masks.watching import pop_mode as pop_mode
from ..masks.watching import push_mode as push_mode
from ..masks.watching import set_recording as set_recording
from .engine.attach import compiled_autograd_aside as compiled_autograd_aside
from .engine.attach import gpu_in_use as gpu_in_use
from .engine.attach import home as home
from .engine.attach import is_captured as is_captured
from .engine.attach import lead_home as lead_home
from .engine.attach import never_traced as never_traced
from .engine.attach import not_compiled as not_compiled
from .engine.attach import set_compiler as set_compiler
from .engine.masked_pass import Observer as Observer
from .engine.masked_pass import Pass
from .engine.plan import nothing_ignored
from .engine.precheck import is_safe
from .engine.problems import REPORT as REPORT
from .engine.steps.recomputed import CHECKPOINT

graph_from = graph.held_from
saw = DEEP_GRAPHS.saw
free_deep_graphs = DEEP_GRAPHS.sweep


def any_of(elements: Tensor) -> bool:
    """True if one of these bools is True."""
    return bool(anywhere(elements))


def edge_of(tensor: Any) -> Edge | None:
    """Where the gradient of a tensor or graph edge arrives; None if it has none."""
    try:
        return graph.edge_of(tensor)
    except RuntimeError:  # PyTorch asks a view of a leaf, and some layouts have no views
        with torch.enable_grad():
            return tensor.clone().grad_fn.next_functions[0] if tensor.is_leaf else None


def is_leaf(node: Any) -> bool:
    """True if a node adds to the `.grad` of a leaf, its `variable`, and has no derivative."""
    return type(node) is AccumulateGrad


def is_pytorchs(node: Any) -> bool:
    """True if a node is of one forward function of PyTorch. All others may run code of the user's."""
    return type(node) in graph.KINDS


def is_checkpoint(node: Any) -> bool:
    """True if a node is of a reentrant checkpoint, which starts a backward pass of its own."""
    return bool(node.name() == CHECKPOINT)


def is_unknown(node: Any) -> bool:
    """True if nothing is known of the function that a node is of."""
    return record_of(node) is UNKNOWN


def function_of(node: Any) -> str:
    """The forward function of a node, such as "MaskedFill" of `MaskedFillBackward0`."""
    return graph.function_of(node.name())


def unsafe_nodes(graph: Graph, is_contaminated: bool) -> list[Any] | None:
    """The nodes out of which ignored elements may come as other numbers than 0.

    Args:
        graph: the nodes that a pass reaches.
        is_contaminated: whether numbers in the graph are known not to be finite. Then a pass is needed in any case, if
            something in the graph can ignore an element.

    Returns:
        None if a pass of `ignoring` gives what plain PyTorch gives.
    """
    unsafe: list[Any] = []
    if is_safe(graph, unsafe) and not is_contaminated or nothing_ignored(graph):
        return None
    return unsafe


def pass_over(
    roots: Sequence[Any], graph: Graph, keep: Sequence[Edge], unsafe: Sequence[Any], observer: Observer
) -> Pass:
    """A backward pass of `ignoring`. Enter it around the call of PyTorch's engine. It changes nothing of the user's.

    Args:
        roots: the tensors to differentiate.
        graph: all nodes that can be reached from them.
        keep: the edges whose masks the pass has afterwards, in `masks`.
        unsafe: those of `unsafe_nodes`.
        observer: is called with the results of each node.
    """
    return Pass(roots, graph, keep, unsafe=unsafe, observer=observer)


def mark_formula(node: Any, results: Iterable[Any], arriving: Iterable[Any], graph: Graph) -> None:
    """Mark the zeros that a derivative formula filled in, after it ran for a node and was recorded."""
    fills.mark_formula(node, record_of(node).may_select(node), results, arriving, graph)


def part_here(tensor: Tensor) -> Any:
    """The part that this process has of a tensor in several processes. Its elements may be terms of a sum."""
    form = form_of(tensor)
    return form.terms_here(tensor) if form.is_shared else tensor
