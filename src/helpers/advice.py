"""The nodes that people meet in messages: whether each can return NaN, why, and what to write instead.

`zero_or_nan` knows why, from the numbers that a function takes and gives, and the atlas has the points and the code.
The file `advice.toml` holds only what these two can't say.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from zero_or_nan.functions.conditions import ALWAYS, FINITE, MODERATE
from zero_or_nan.functions.graph import function_of
from zero_or_nan.functions.numerics import numerics_of
from zero_or_nan.functions.record import FUNCTIONS, UNKNOWN

from . import show
from .atlas import Point, points_by_node
from .points import POINTS

if TYPE_CHECKING:
    from .nodes import Node


class Advice(NamedTuple):
    """What to say of nodes with one fix. The file `advice.toml` says what each field means, and its default."""

    nodes: str
    why: str = ""
    fix: str = ""
    page: str = ""


_FILE = tomllib.loads(resources.files(__package__).joinpath("advice.toml").read_text(encoding="utf-8"))

ADVICE = {
    name if "Backward" in name else f"{name}Backward0": Advice(**row)
    for row in _FILE["advice"]
    for name in row["nodes"].split()
}
"""The advice, by the whole name of each node."""

CALLS: list[str] = _FILE["calls"]
"""Calls of layers and losses whose nodes have other names."""


def answers(nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """The answers for the nodes that people meet, as HTML, each with the names of its nodes in this PyTorch."""
    points = points_by_node([point for group in POINTS.values() for point in group])
    found: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted(ADVICE):
        if name in nodes:
            advice, known = ADVICE[name], numerics_of(nodes[name].public)
            fix = advice.fix or f"Write `{points[name][0].instead}`."
            page = advice.page or known.points or known.section
            found.setdefault((advice.why or why(nodes[name]), fix, page), []).append(name)
    return {
        _html(*said, {point.anchor: point for name in names for point in points.get(name, ())}): names
        for said, names in found.items()
    }


def why(node: Node) -> str:
    """Whether a node can return NaN, and why, from what is known of its function.

    Raises:
        ValueError: if neither the numerics nor the record of the function say it.

    >>> from helpers.nodes import nodes
    >>> why(nodes()["AcosBackward0"])
    'Yes: outside of −1 to 1 the value is NaN, and at −1 and 1 the slope is infinite.'
    """
    known, record = numerics_of(node.public), FUNCTIONS.get(function_of(node.name), UNKNOWN)
    low, high = known.domain
    if math.isfinite(low):
        outside = f"outside of {low:g} to {high:g}" if math.isfinite(high) else f"below {low:g}"
        ends = " and ".join(f"{end:g}" for end in known.steep_at)
        return f"Yes: {outside} the value is NaN, and at {ends} the slope is infinite.".replace("-", "−")
    if known.pole:
        ones = [1.0] * len(node.inputs)
        zeros = [name for at, name in enumerate(node.inputs) if known.pole(*ones[:at], 0.0, *ones[at + 1 :])]
        return f"Yes: if `{zeros[0]}` is 0, neither the value nor the slope is finite."
    if known.ignores_infinity:
        return "Yes: if all elements of a row are −inf."
    if known.products or record.safe_if == FINITE:
        return "Yes: it multiplies by a number of the forward pass, and 0 times NaN or inf is NaN."
    if record.safe_if == MODERATE:
        return "Yes: if a number of the forward pass is NaN or inf, or so large that the derivative overflows."
    if record.safe_if == ALWAYS:
        return "Not by itself: only if NaN or inf arrives."
    raise ValueError(f"nothing is known of the numbers of {node.name}; write why it can be NaN in helpers/advice.toml")


def _html(why: str, fix: str, page: str, points: Mapping[str, Point]) -> str:
    links = [show.link(f"atlas#{anchor}", point.name) for anchor, point in points.items()]
    if page and not (points and page.startswith("atlas")):
        links.insert(0, show.link(page, page.partition("#")[0].replace("-", " ")))
    return f"<p>{show.with_code(why)}</p><p><b>Fix:</b> {show.with_code(fix)} See {' · '.join(links)}.</p>"
