"""The points of the atlas, by group, and the threads in which maintainers decided about them.

All statements about the points are in the file `data/points.toml`.
"""

from __future__ import annotations

from typing import Any

from .atlas import Point
from .data import load
from .releases import Since
from .threads import listed

SOURCES = listed("points")
"""Every thread and page that a point names in its `sources`, by its key."""


def _point(gradient: Any, **more: Any) -> Point:
    return Point(gradient=Since(**gradient) if isinstance(gradient, dict) else gradient, **more)


POINTS: dict[str, tuple[Point, ...]] = {
    group: tuple(_point(**row) for row in rows) for group, rows in load("points").items()
}
"""Every point, by group, in the order of the page."""
