"""What a pass does at each node of a graph, decided before PyTorch's engine starts.

A node is one of three:

- *skipped*: plain PyTorch runs its derivative, and no mask is needed from there on;
- *transferred*: plain PyTorch runs its derivative, and afterwards the masks go through the derivative;
- *interpreted*: a step is around its derivative. The derivative usually runs on cotangents that know their masks,
  operator by operator.

A skipped node costs nothing, a transferred node one hook, and one more if an earlier pass recorded it. An interpreted
node costs two hooks and the rules. The plan depends on the node's type (`classify`), and on whether the precheck found
the node's saved tensors safe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction

from ...functions.fills import is_fill, unordered_at
from ...functions.graph import KINDS, NODES, AccumulateGrad, Edge, Graph, forward_class, function_of, has_empty_result
from ...functions.record import FUNCTIONS, TRANSFERS, UNKNOWN, Checks, Function, Transfer, checks_of, key_of
from ...masks.numbers import shared_forms
from .higher import is_recorded
from .steps.foreign import Opaque, Traced
from .steps.recomputed import CHECKPOINT, Recomputed
from .steps.sliced import Sliced
from .steps.step import Step
from .steps.transferred import CustomVJP, Linear, Transferred


class NodeKind(NamedTuple):
    """What is known about the nodes of one type.

    Attributes:
        key: the key in `FUNCTIONS` for their forward function.
        function: the record of the forward function.
        step: the step that runs their derivative if it is interpreted.
        transfer: how a mask goes through their derivative if plain PyTorch runs it; None if that is not possible.
        checks: what the precheck checks; None if no condition is enough.
        needs_check: False if the precheck has nothing to check, because plain backward is always safe here.
    """

    key: str | type
    function: Function
    step: type[Step]
    transfer: Transfer | None
    checks: Checks | None
    needs_check: bool


_KINDS: dict[type, NodeKind] = {}

Chooser = Callable[[Any, Function], type[Step] | None]

_CHOOSERS: list[Chooser] = []


def chooses_step(choose: Chooser) -> Chooser:
    """Register a function that may choose the step for a Function in Python, by a node and its function's record.

    It returns None for each node that is not its own, and chooses the same for all nodes of a type.
    """
    _CHOOSERS.append(choose)
    return choose


def known(node_type: type) -> NodeKind | None:
    """What is known about a type; None if it was not classified yet, or if its nodes have several functions."""
    found = _KINDS.get(node_type)
    # The user may have registered a record since.
    return found if found is not None and FUNCTIONS.get(found.key, UNKNOWN) is found.function else None


def classify(node: Any) -> NodeKind:
    """What is known about a node by its type. It is remembered for each type whose nodes have one function."""
    node_type: Any = type(node)
    found = known(node_type)
    if found is None:
        key = key_of(node)
        function = FUNCTIONS.get(key, UNKNOWN)
        has_one = node_type in KINDS or forward_class(node) is not None
        checks = checks_of(node_type, function)
        needs_check = checks is None or bool(checks.places or checks.scalars or function.only_if)
        transfer = TRANSFERS.get(key) if has_one else None
        found = NodeKind(key, function, _step_of(node, function), transfer, checks, needs_check)
        if has_one:
            _KINDS[node_type] = found
    return found


def _step_of(node: Any, function: Function) -> type[Step]:
    """The step that runs the derivatives of a node's type."""
    name = function_of(node.name())
    is_python = isinstance(node, BackwardCFunction)
    if is_python:
        chosen = next(filter(None, (choose(node, function) for choose in _CHOOSERS)), None)
        if chosen is not None:
            return chosen
    if function.moves:
        return Linear
    if function.derivative is not None:
        return CustomVJP
    if is_python and name == CHECKPOINT:
        return Recomputed
    if is_python and function is not UNKNOWN:
        return Traced
    if name not in NODES:
        return Opaque
    return Sliced if name == "CopySlices" else Step


def step_at(node: Any, kind: NodeKind) -> type[Step]:
    """The step that runs the derivative of one node. It may depend on the arguments of the forward function there."""
    step, function = kind.step, kind.function
    only_if = function.derivative_if if step is CustomVJP else function.moves if step is Linear else None
    return Step if callable(only_if) and not only_if(node) else step


Ahead = Sequence[tuple[Edge, bool]]
"""The edges of a node. A bool beside each edge says whether the mask ends there, because the node ahead is skipped."""

Follower = Transfer | type[Transferred]
"""How masks follow a derivative that plain PyTorch runs."""

NOWHERE: tuple[Edge, bool] = ((None, 0), True)
"""An edge without a node ahead, or with a node that the engine does not run."""


SKIPS = True
"""Whether a node is skipped if plain PyTorch can be trusted from there on. Tests forbid it."""

USES_TRANSFERS = True
"""Whether registered transfers are used. Tests forbid it."""


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
    transferred: list[tuple[Any, Ahead, Function, Follower]]
    interpreted: list[tuple[Any, Ahead, Function, type[Step]]]


def planned(
    roots: Sequence[Any],
    graph: Graph,
    keep: Collection[Edge],
    unsafe: Collection[Any],
    by_rules_alone: bool,
    is_outermost: bool,
) -> Plan:
    """The plan for one pass.

    Args:
        roots, graph, keep, unsafe, by_rules_alone: the same as for the pass.
        is_outermost: whether the pass is not a part of another pass.
    """
    # The record of a pass is differentiated again, and several processes have to run the same operators.
    by_rules_alone = by_rules_alone or any(form.is_spread(roots, graph) for form in shared_forms())
    if by_rules_alone:
        unsafe = ()  # as for the pass: if it is empty, each node counts as unsafe
    skipped = _skippable(graph, keep, unsafe)
    prefix = _unmasked_prefix(roots, graph) if is_outermost and not by_rules_alone and not keep else {}
    plan = Plan(by_rules_alone, next(iter(prefix), None), [], [])
    for node, edges in graph.items():
        if node in skipped or node in prefix:
            continue
        kind = classify(node)
        ahead = [(edge, edge[0] in skipped) if edge[0] in graph else NOWHERE for edge in edges]
        transfer = None if by_rules_alone else _transfer_at(node, kind, unsafe)
        if transfer is not None:
            plan.transferred.append((node, ahead, kind.function, transfer))
        else:
            plan.interpreted.append((node, ahead, kind.function, step_at(node, kind)))
    return plan


def _transfer_at(node: Any, kind: NodeKind, unsafe: Collection[Any]) -> Follower | None:
    """The registered transfer of a node, or a step that follows the derivative; None if the node is interpreted."""
    transfer = kind.transfer
    if transfer is not None and USES_TRANSFERS and not is_fill(node) and unordered_at(node) is None:
        is_safe = bool(unsafe) and node not in unsafe
        # A node that an earlier pass recorded may have saved cotangents, whose masks matter unless it is elementwise.
        if transfer.may_follow(node, is_safe) and (is_safe or transfer.repair is None or not is_recorded(node)):
            return transfer.without_repair if is_safe else transfer
    step = step_at(node, kind)
    return step if issubclass(step, Transferred) else None


def _skippable(graph: Graph, keep: Collection[Edge], unsafe: Collection[Any]) -> set[Any]:
    """The leaves, and the nodes from which on plain PyTorch can be trusted and no mask is kept."""
    skippable = set()
    # With branches, the reverse order may come to a node before the nodes ahead of it. It is then not skipped: safe.
    for node, edges in reversed(graph.items()):
        if type(node) is AccumulateGrad:  # has no derivative
            skippable.add(node)
            continue
        if not unsafe or node in unsafe or not SKIPS or is_recorded(node):
            continue
        for edge in edges:
            if edge[0] in graph and (edge[0] not in skippable or edge in keep):
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
    while node in graph and type(node) in KINDS and type(node) is not AccumulateGrad:
        kind, edges = classify(node), graph[node]
        selects = kind.function.may_select(node) or is_recorded(node)
        if selects or kind.step is CustomVJP or len(edges) != 1 or has_empty_result(node):
            break
        prefix[node] = None
        node = edges[0][0]
    return prefix


def on_any_process(here: bool, roots: Sequence[Any], graph: Graph) -> bool:
    """True if `here` is True on one of the processes that share a graph. All of them have to call this together."""
    for form in shared_forms():
        here = form.on_any_process(here, roots, graph)
    return here


def nothing_ignored(nodes: Collection[Any]) -> bool:
    """True if no node here can produce an ignored element: none selects, is unknown, or has an empty result."""
    for node in nodes:
        if type(node) is not AccumulateGrad:
            kind = classify(node)
            if kind.function is UNKNOWN or is_recorded(node):
                return False
            if kind.function.may_select(node):
                return False
            if kind.step not in (Step, Linear) and step_at(node, kind) not in (Step, Linear):
                return False
    return not any(map(has_empty_result, nodes))  # last, because it takes longer
