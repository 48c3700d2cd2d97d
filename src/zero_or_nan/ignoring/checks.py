"""What the precheck has to check in the nodes of one type: their saved tensors and numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction

from .conditions import ALWAYS, NEVER, Condition
from .registry import Function


class Saved(NamedTuple):
    """One saved tensor, or several, of the nodes of a type: how to get it from a node, and its condition."""

    packed: Callable[[Any], Any]
    unpack_hook: Callable[[Any], Any]
    saved: Callable[[Any], Any]
    condition: Condition


class Checks(NamedTuple):
    """How to check the nodes of a type: their record, their saved tensors, and how to get their scalar arguments."""

    function: Function
    places: tuple[Saved, ...]
    scalars: tuple[Callable[[Any], Any], ...]


@functools.cache
def checks_of(node_type: type, function: Function) -> Checks | None:
    """How to check the nodes of a type; None if no condition is enough for their function."""
    usual = function.safe_if
    if usual is NEVER:
        return None
    saved = [
        attribute.removeprefix("_raw_saved_") for attribute in dir(node_type) if attribute.startswith("_raw_saved_")
    ]
    conditions = {attribute: function.safe_if_saved.get(attribute, usual) for attribute in saved}
    saved_in = "saved_{}" if issubclass(node_type, BackwardCFunction) else "_saved_{}"
    places = tuple(
        Saved(
            attrgetter(f"_raw_saved_{a}"),
            attrgetter(f"_raw_saved_{a}.unpack_hook"),
            attrgetter(saved_in.format(a)),
            condition,
        )
        for a, condition in conditions.items()
        if condition is not ALWAYS
    )
    scalars = [f"_saved_{scalar}" for scalar in function.scalars]
    return Checks(function, places, tuple(attrgetter(scalar) for scalar in scalars if hasattr(node_type, scalar)))
