"""Replaces attributes of PyTorch for several owners at once, such as two threads. They may end in any order.

Ctrl-C may come between any two lines. `put_back` then completes what was left, if it is called again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

Wrap = Callable[[Any], Any]
"""Makes a replacement from the attribute's previous value."""

_lock = threading.RLock()
_places: dict[tuple[int, str], _Place] = {}


class _Place:
    """An attribute, with its original value and the wraps of all owners. The first wrap is innermost."""

    def __init__(self, where: Any, name: str) -> None:
        self.where, self.name = where, name
        self.original = vars(where)[name]
        self.ours = [self.original]
        self.wraps: list[tuple[object, Wrap]] = []
        self.done = self.wraps

    def is_ours(self) -> bool:
        """Whether no other code has wrapped the attribute since."""
        return any(vars(self.where)[self.name] is each for each in self.ours)

    def renew(self) -> None:
        """Set the attribute to the original value, wrapped for all current owners."""
        wraps = self.wraps
        if self.is_ours():  # else a wrap whose owner has ended passes everything on
            now = self.original
            for _, wrap in wraps:
                now = wrap(now)
            self.ours.append(now)
            setattr(self.where, self.name, now)
            self.ours = [now]
        self.done = wraps


def replace(owner: object, where: Any, name: str, wrap: Wrap) -> None:
    """Wrap an attribute of `where` for an owner, until `put_back(owner)`."""
    with _lock:
        key = id(where), name
        place = _places.get(key)
        if place is None or not place.is_ours():
            place = _places[key] = _Place(where, name)
        place.wraps = [*place.wraps, (owner, wrap)]
        place.renew()


def replace_engine(owner: object, wrap: Wrap) -> None:
    """Wrap the function by which PyTorch starts its engine, in both modules that call it."""
    for module in (torch.autograd, torch.autograd.graph):
        replace(owner, module, "_engine_run_backward", wrap)


def put_back(owner: object) -> None:
    """Remove all wraps of an owner."""
    with _lock:
        for key, place in list(_places.items()):
            if any(other is owner for other, _ in place.wraps):
                place.wraps = [pair for pair in place.wraps if pair[0] is not owner]
            if place.done is not place.wraps:
                place.renew()
            if not place.wraps:
                del _places[key]


def is_replaced(owner: object, where: Any) -> bool:
    """True if an owner has wrapped an attribute of `where`."""
    return any(place.where is where and any(other is owner for other, _ in place.wraps) for place in _places.values())
