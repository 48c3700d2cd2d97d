"""What is known of the nodes of a graph by their type: the one place that a plan and the precheck ask."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction

from .checks import Checks, checks_of
from .distributed import is_border
from .graph import KINDS, NODES, function_of
from .registry import FUNCTIONS, TRANSFERS, UNKNOWN, Function, Transfer, record_of
from .steps import CHECKPOINT, CustomVJP, DTensorBoundary, Linear, Opaque, Recomputed, Sliced, Step, Traced


class NodeKind(NamedTuple):
    """What is known of the nodes of one type.

    Attributes:
        name: the name of their forward function.
        function: its record.
        step: how their derivative is run, if it is interpreted.
        transfer: how a mask goes through their derivative, if plain PyTorch runs it.
        checks: what the precheck looks at; None if no condition is enough.
        needs_check: whether the precheck has anything to look at.
    """

    name: str
    function: Function
    step: type[Step]
    transfer: Transfer | None
    checks: Checks | None
    needs_check: bool


_KINDS: dict[type, NodeKind] = {}


def known(kind: type) -> NodeKind | None:
    """What is known of a type of nodes; None if it was not classified yet, or its nodes go by several names."""
    found = _KINDS.get(kind)
    # A record may have been registered since.
    return found if found is not None and FUNCTIONS.get(found.name, UNKNOWN) is found.function else None


def classify(node: Any) -> NodeKind:
    """What is known of a node's type. It is found out once for each type whose nodes go by one name."""
    kind: Any = type(node)
    found = known(kind)
    if found is None:
        name, function = function_of(node.name()), record_of(node)
        own = kind in KINDS
        checks = checks_of(kind, function)
        needs_check = checks is None or bool(checks.places or checks.scalars or function.only_if)
        transfer = TRANSFERS.get(name) if own else None
        found = NodeKind(name, function, _step_of(node, name, function), transfer, checks, needs_check)
        if own:
            _KINDS[kind] = found
    return found


def _step_of(node: Any, name: str, function: Function) -> type[Step]:
    """How the derivative of a node is run."""
    if function.moves:
        return DTensorBoundary if is_border(node) else Linear
    if function.derivative is not None:
        return CustomVJP
    if isinstance(node, BackwardCFunction):
        return Recomputed if name == CHECKPOINT else Opaque if function is UNKNOWN else Traced
    if name not in NODES:
        return Opaque
    return Sliced if name == "CopySlices" else Step


def step_at(node: Any, kind: NodeKind) -> type[Step]:
    """How the derivative of one node is run: this may depend on how its function was called there."""
    step, function = kind.step, kind.function
    only_if = function.derivative_if if step is CustomVJP else function.moves if step is Linear else None
    return Step if callable(only_if) and not only_if(node) else step
