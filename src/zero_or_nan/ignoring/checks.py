"""What the precheck has to look at in the nodes of one type: where they keep tensors and numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from torch.autograd.function import BackwardCFunction

from .conditions import ALWAYS, NEVER, Condition
from .registry import Function


class Saved(NamedTuple):
    """Where nodes of a kind keep a saved tensor, or several: how to get them, and the condition that they need."""

    packed: Callable[[Any], Any]
    unpack_hook: Callable[[Any], Any]
    saved: Callable[[Any], Any]
    condition: Condition


class Checks(NamedTuple):
    """How to check the nodes of a kind: where they keep tensors, and how to get the scalars among their arguments."""

    function: Function
    places: tuple[Saved, ...]
    scalars: tuple[Callable[[Any], Any], ...]


@functools.cache
def checks_of(kind: type, function: Function) -> Checks | None:
    """How to check the nodes of a type; None if no condition is enough for their function."""
    usual = function.safe_if
    if usual is NEVER:
        return None
    saved = [attribute.removeprefix("_raw_saved_") for attribute in dir(kind) if attribute.startswith("_raw_saved_")]
    conditions = {attribute: function.safe_if_saved.get(attribute, usual) for attribute in saved}
    saved_in = "saved_{}" if issubclass(kind, BackwardCFunction) else "_saved_{}"
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
    return Checks(function, places, tuple(attrgetter(scalar) for scalar in scalars if hasattr(kind, scalar)))
