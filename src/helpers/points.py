"""The points of the atlas, by group, and the threads in which maintainers decided about them.

All statements about the points are in the file `points.toml`.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from .atlas import Point
from .releases import Since
from .threads import listed

SOURCES = listed("points")
"""Every thread and page that a point names in its `sources`, by its key."""


def _point(gradient: Any, **more: Any) -> Point:
    return Point(gradient=Since(**gradient) if isinstance(gradient, dict) else gradient, **more)


_FILE = tomllib.loads(resources.files(__package__).joinpath("points.toml").read_text(encoding="utf-8"))

POINTS: dict[str, tuple[Point, ...]] = {group: tuple(_point(**row) for row in rows) for group, rows in _FILE.items()}
"""Every point, by group, in the order of the page."""
