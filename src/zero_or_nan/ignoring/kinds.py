"""What is known about a node by its type. The plan and the precheck both read it here."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction

from .checks import Checks, checks_of
from .compiled import is_region
from .distributed import is_border
from .graph import KINDS, NODES, function_of
from .registry import FUNCTIONS, TRANSFERS, UNKNOWN, Function, Transfer, record_of
from .steps import (
    CHECKPOINT,
    Compiled,
    CustomVJP,
    DTensorBoundary,
    Linear,
    Opaque,
    Recomputed,
    Sliced,
    Step,
    Taped,
    Traced,
)


class NodeKind(NamedTuple):
    """What is known about the nodes of one type.

    Attributes:
        name: the name of their forward function.
        function: the record of the forward function.
        step: the step that runs their derivative if it is interpreted.
        transfer: how a mask goes through their derivative if plain PyTorch runs it; None if that is not possible.
        checks: what the precheck checks; None if no condition is enough.
        needs_check: False if the precheck has nothing to check, because plain backward is always safe here.
    """

    name: str
    function: Function
    step: type[Step]
    transfer: Transfer | None
    checks: Checks | None
    needs_check: bool


_KINDS: dict[type, NodeKind] = {}


def known(node_type: type) -> NodeKind | None:
    """What is known about a type; None if it was not classified yet, or if its nodes have several functions."""
    found = _KINDS.get(node_type)
    # The user may have registered a record since.
    return found if found is not None and FUNCTIONS.get(found.name, UNKNOWN) is found.function else None


def classify(node: Any) -> NodeKind:
    """What is known about a node by its type. It is remembered for each type in `KINDS`."""
    node_type: Any = type(node)
    found = known(node_type)
    if found is None:
        name, function = function_of(node.name()), record_of(node)
        own = node_type in KINDS
        checks = checks_of(node_type, function)
        needs_check = checks is None or bool(checks.places or checks.scalars or function.only_if)
        transfer = TRANSFERS.get(name) if own else None
        found = NodeKind(name, function, _step_of(node, name, function), transfer, checks, needs_check)
        if own:
            _KINDS[node_type] = found
    return found


def _step_of(node: Any, name: str, function: Function) -> type[Step]:
    """The step that runs the derivatives of a node's type."""
    if function.moves:
        return DTensorBoundary if is_border(node) else Linear
    if function.derivative is not None:
        return CustomVJP
    if is_region(node):
        return Compiled
    if isinstance(node, BackwardCFunction):
        return Recomputed if name == CHECKPOINT else Taped if function is UNKNOWN else Traced
    if name not in NODES:
        return Opaque
    return Sliced if name == "CopySlices" else Step


def step_at(node: Any, kind: NodeKind) -> type[Step]:
    """The step that runs the derivative of one node. It may depend on the arguments of the forward function there."""
    step, function = kind.step, kind.function
    only_if = function.derivative_if if step is CustomVJP else function.moves if step is Linear else None
    return Step if callable(only_if) and not only_if(node) else step
