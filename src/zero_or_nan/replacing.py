"""What several users of it replace of PyTorch at once. They end in any order: threads and generators have their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Wrap = Callable[[Any], Any]
"""What makes a replacement out of what was there before."""

_lock = threading.RLock()
_places: dict[tuple[int, str], _Place] = {}


class _Place:
    """An attribute, with what was there, and the wraps of all owners, the first innermost."""

    def __init__(self, where: Any, name: str) -> None:
        self.where, self.name = where, name
        self.original = self.ours = vars(where)[name]
        self.wraps: list[tuple[object, Wrap]] = []

    def renew(self) -> None:
        if vars(self.where)[self.name] is not self.ours:
            return  # somebody else has wrapped it since; what is over passes everything on
        now = self.original
        for _, wrap in self.wraps:
            now = wrap(now)
        setattr(self.where, self.name, now)
        self.ours = now


def replace(owner: object, where: Any, name: str, wrap: Wrap) -> None:
    """Wrap what an attribute has, until `put_back` of the owner."""
    with _lock:
        key = id(where), name
        place = _places.get(key)
        if place is None or vars(where)[name] is not place.ours:
            place = _places[key] = _Place(where, name)
        place.wraps.append((owner, wrap))
        place.renew()


def put_back(owner: object) -> None:
    """Take away all that an owner has wrapped."""
    with _lock:
        for key, place in list(_places.items()):
            if any(other is owner for other, _ in place.wraps):
                place.wraps = [pair for pair in place.wraps if pair[0] is not owner]
                place.renew()
            if not place.wraps:
                del _places[key]


def is_replaced(owner: object, where: Any) -> bool:
    """Whether an owner has wrapped something there."""
    return any(place.where is where and any(other is owner for other, _ in place.wraps) for place in _places.values())
