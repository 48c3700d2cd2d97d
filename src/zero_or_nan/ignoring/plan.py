"""What a pass does at each node of a graph, decided before PyTorch's engine starts.

A node is one of three:

- *skipped*: plain PyTorch runs its derivative, and no mask is needed from there on;
- *transferred*: plain PyTorch runs its derivative, and afterwards the masks go through the derivative;
- *interpreted*: a step is around its derivative. The derivative usually runs on cotangents that know their masks,
  operator by operator.

A skipped node costs nothing, a transferred node one hook, an interpreted node two hooks and the rules. The plan
depends on the node's type (`kinds`), and on whether the precheck found the node's saved tensors safe.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from .distributed import is_spread
from .fills import is_fill
from .graph import KINDS, AccumulateGrad, Edge, Graph, has_empty_result
from .higher import any_recorded, is_recorded
from .kinds import NodeKind, classify, step_at
from .registry import UNKNOWN, Function, Transfer
from .steps import CustomVJP, Linear, Step, Transferred

Ahead = Sequence[tuple[Edge, bool]]
"""The edges of a node. A bool beside each edge says whether the mask ends there, because the node ahead is skipped."""


class Policy(NamedTuple):
    """Which shortcuts a plan may take.

    Attributes:
        skips: whether a node is skipped if plain PyTorch can be trusted from there on. Leaves are always skipped.
        transfers: whether registered transfers are used.
    """

    skips: bool = True
    transfers: bool = True


EVERYTHING = Policy()


class Plan(NamedTuple):
    """What to do at each node that is not skipped.

    Attributes:
        by_rules_alone: whether every derivative has to be interpreted.
        first: the first node of the prefix that no mask reaches; None if there is no such prefix.
        transferred: each such node, its edges, its function's record, and its transfer, which may be a step.
        interpreted: each such node, its edges, its function's record, and the step that runs its derivative.
    """

    by_rules_alone: bool
    first: Any
    transferred: list[tuple[Any, Ahead, Function, Transfer | type[Transferred]]]
    interpreted: list[tuple[Any, Ahead, Function, type[Step]]]


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
        roots, graph, keep, unsafe, by_rules_alone: the same as for the pass.
        is_outermost: whether the pass is not a part of another pass.
        policy: which shortcuts the plan may take.
    """
    # The record of a pass is differentiated again, and several processes have to run the same operators.
    by_rules_alone = by_rules_alone or any_recorded(graph) or is_spread(roots, graph)
    if by_rules_alone:
        unsafe = ()  # as for the pass: if it is empty, each node counts as unsafe
    skipped = _skippable(graph, keep, unsafe, policy)
    prefix = _unmasked_prefix(roots, graph) if is_outermost and not by_rules_alone and not keep else {}
    plan = Plan(by_rules_alone, next(iter(prefix), None), [], [])
    for node, edges in graph.items():
        if node in skipped or node in prefix:
            continue
        kind = classify(node)
        ahead = [(edge, edge[0] is None or edge[0] in skipped) for edge in edges]
        transfer = None if by_rules_alone else _transfer_at(node, kind, unsafe, policy)
        if transfer is not None:
            plan.transferred.append((node, ahead, kind.function, transfer))
        else:
            plan.interpreted.append((node, ahead, kind.function, step_at(node, kind)))
    return plan


def _transfer_at(
    node: Any, kind: NodeKind, unsafe: Collection[Any], policy: Policy
) -> Transfer | type[Transferred] | None:
    """The registered transfer of a node, or a step that follows the derivative; None if the node is interpreted."""
    transfer = kind.transfer
    if transfer is not None and policy.transfers and not is_fill(node):
        is_safe = bool(unsafe) and node not in unsafe
        if transfer.may_follow(node, is_safe):
            return transfer.without_repair if is_safe else transfer
    step = step_at(node, kind)
    return step if issubclass(step, Transferred) else None


def _skippable(graph: Graph, keep: Collection[Edge], unsafe: Collection[Any], policy: Policy) -> set[Any]:
    """The leaves, and the nodes from which on plain PyTorch can be trusted and no mask is kept."""
    skippable = set()
    # With branches, the reverse order may come to a node before the nodes ahead of it. It is then not skipped: safe.
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
    """The nodes that no mask can reach: a chain from the root on, whose nodes have one edge each and select nothing."""
    prefix: dict[Any, None] = {}  # ordered, and with quick lookup: a deep graph may consist of the prefix alone
    if len(roots) != 1:
        return prefix
    node = getattr(roots[0], "grad_fn", None) or getattr(roots[0], "node", None)
    while node is not None and type(node) in KINDS and type(node) is not AccumulateGrad:
        kind, edges = classify(node), graph[node]
        if kind.function.selects is not False or kind.step is CustomVJP or len(edges) != 1 or has_empty_result(node):
            break
        prefix[node] = None
        node = edges[0][0]
    return prefix


def nothing_ignored(nodes: Collection[Any]) -> bool:
    """True if no node here can produce an ignored element: none selects, is unknown, or has an empty result."""
    for node in nodes:
        if type(node) is not AccumulateGrad:
            kind = classify(node)
            if kind.function is UNKNOWN or is_recorded(node):
                return False
            if kind.function.selects is not False and kind.function.may_select(node):
                return False
            if kind.step not in (Step, Linear) and step_at(node, kind) not in (Step, Linear):
                return False
    return not any(map(has_empty_result, nodes))  # last, because it takes longer
