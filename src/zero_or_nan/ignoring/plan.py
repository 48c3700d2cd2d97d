"""What a pass does at each node of a graph, decided before PyTorch's engine starts.

A node is one of three:

- *skipped*: plain PyTorch runs its derivative, and no mask is needed from there on;
- *transferred*: plain PyTorch runs its derivative, and the mask alone goes through it;
- *interpreted*: its derivative runs on cotangents that know their masks, operator by operator.

A skipped node costs nothing, a transferred node one hook, an interpreted node two hooks and the rules. The choice is
made by the node's type (`kinds`), and by whether the precheck found its saved tensors safe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from .distributed import is_spread
from .graph import KINDS, AccumulateGrad, Edge, Graph
from .higher import any_recorded, is_recorded
from .kinds import NodeKind, classify, step_at
from .registry import UNKNOWN, Function
from .steps import CustomVJP, Linear, Step

Ahead = Sequence[tuple[Edge, bool]]
"""The edges of a node, and of each whether the mask ends there: the node ahead is skipped."""


class Policy(NamedTuple):
    """Which shortcuts a plan may take.

    Attributes:
        skips: whether nodes are left to plain PyTorch from where it can be trusted. Leaves always are.
        transfers: whether a mask may go through a derivative alone.
    """

    skips: bool = True
    transfers: bool = True


EVERYTHING = Policy()


class Plan(NamedTuple):
    """What to do at each node that is not skipped.

    Attributes:
        by_rules_alone: whether each derivative has to be interpreted.
        first: the first node of a prefix that no mask reaches, if there is such a prefix.
        transferred: of each such node its edges, its kind, and what repairs the results, if anything has to.
        interpreted: of each such node its edges, how its derivative is run, and its function's record.
    """

    by_rules_alone: bool
    first: Any
    transferred: list[tuple[Any, Ahead, NodeKind, Any]]
    interpreted: list[tuple[Any, Ahead, type[Step], Function]]


def planned(
    roots: Sequence[Any],
    graph: Graph,
    keep: Collection[Edge],
    unsafe: Collection[Any],
    by_rules_alone: bool,
    is_outermost: bool,
    policy: Policy,
) -> Plan:
    """The plan for one pass.

    Args:
        roots, graph, keep, unsafe, by_rules_alone: as of the pass.
        is_outermost: whether the pass is not a part of another one.
        policy: which shortcuts the plan may take.
    """
    # A recorded pass is differentiated again, and several processes have to do the same.
    by_rules_alone = by_rules_alone or any_recorded(graph) or is_spread(roots, graph)
    if by_rules_alone:
        unsafe = ()
    skipped = _skippable(graph, keep, unsafe, policy)
    prefix = _unmasked_prefix(roots, graph) if is_outermost and not by_rules_alone and not keep else {}
    plan = Plan(by_rules_alone, next(iter(prefix), None), [], [])
    for node, edges in graph.items():
        if node in skipped or node in prefix:
            continue
        kind = classify(node)
        ahead = [(edge, edge[0] is None or edge[0] in skipped) for edge in edges]
        if kind.transfer is not None and policy.transfers and not by_rules_alone:
            trusted = bool(unsafe) and node not in unsafe
            if kind.transfer.may_follow(node, trusted):
                plan.transferred.append((node, ahead, kind, None if trusted else kind.transfer.repair))
                continue
        plan.interpreted.append((node, ahead, step_at(node, kind), kind.function))
    return plan


def _skippable(graph: Graph, keep: Collection[Edge], unsafe: Collection[Any], policy: Policy) -> set[Any]:
    """The leaves, and the nodes from which on plain PyTorch can be trusted."""
    skippable = set()
    for node, edges in reversed(graph.items()):
        if type(node) is AccumulateGrad:  # has no derivative
            skippable.add(node)
            continue
        if not unsafe or node in unsafe or not policy.skips:
            continue
        for edge in edges:
            if edge[0] is not None and (edge[0] not in skippable or edge in keep):
                break
        else:
            kind = classify(node)
            if kind.function.selects is False or kind.function.moves or kind.transfer is not None:
                skippable.add(node)
    return skippable


def _unmasked_prefix(roots: Sequence[Any], graph: Graph) -> dict[Any, None]:
    """The nodes that no mask can reach: from the root on, as long as there is one edge and no selection."""
    prefix: dict[Any, None] = {}  # in order, and quick to look up: a deep graph may be all prefix
    if len(roots) != 1:
        return prefix
    node = getattr(roots[0], "grad_fn", None) or getattr(roots[0], "node", None)
    while node is not None and type(node) in KINDS and type(node) is not AccumulateGrad:
        kind, edges = classify(node), graph[node]
        if kind.function.selects is not False or kind.step is CustomVJP or len(edges) != 1:
            break
        prefix[node] = None
        node = edges[0][0]
    return prefix


def nothing_ignored(nodes: Iterable[Any]) -> bool:
    """True if no node here can produce an ignored element: none selects, and none is unknown."""
    for node in nodes:
        if type(node) is not AccumulateGrad:
            kind = classify(node)
            if kind.function is UNKNOWN or is_recorded(node):
                return False
            if kind.function.selects is not False and kind.function.may_select(node):
                return False
            if kind.step not in (Step, Linear) and step_at(node, kind) not in (Step, Linear):
                return False
    return True
