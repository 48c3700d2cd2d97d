"""The list of all nodes. Of those that people meet, it says whether they can return NaN, why, and what to write.

`zero_or_nan` knows why, from the numbers that a function takes and gives, and the atlas has the points and the code.
The file `data/advice.toml` holds only what these two can't say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zero_or_nan.functions.conditions import ALWAYS, FINITE, MODERATE
from zero_or_nan.functions.graph import function_of
from zero_or_nan.functions.numerics import numerics_of
from zero_or_nan.functions.record import FUNCTIONS, UNKNOWN

from . import show
from .atlas import Point, graph_nodes, points_by_node
from .data import load
from .nodes import Node, nodes
from .points import POINTS

_FILE = load("advice")

ADVICE: dict[str, dict[str, str]] = {
    name if "Backward" in name else f"{name}Backward0": row for row in _FILE["advice"] for name in row["nodes"].split()
}
"""The advice, by the whole name of each node. The file says what each field means, and its default."""

CALLS: list[str] = _FILE["calls"]
"""Calls of layers and losses whose nodes have other names."""


def node_names() -> None:
    """Show the nodes that people meet, with advice, and a folded list of all others. The site's search finds each."""
    every = nodes()
    text = "\n".join(f"{node.name}: {', '.join(node.inputs)} of {node.operator}" for node in every.values())
    show.show(show.Item(text, listed(every, made_by())))


def listed(every: Mapping[str, Node], calls: Mapping[str, Sequence[str]]) -> str:
    """The list as HTML. `calls` has the functions whose graphs have a node, by its name."""
    rows = {name: _row(node, calls.get(name, ())) for name, node in every.items()}
    first = "".join(f"<li>{' '.join(map(rows.pop, names))}{answer}</li>" for answer, names in answers(every).items())
    rest = "".join(f"<li>{row}</li>" for row in rows.values())
    version = torch.__version__.partition("+")[0]
    title = f"<summary>The {len(rows)} other nodes of PyTorch {version} that have a derivative</summary>"
    return f'<ul class="zn-nodes">{first}</ul><details>{title}<ul class="zn-nodes">{rest}</ul></details>'


def _row(node: Node, calls: Sequence[str]) -> str:
    """The node, its function and its outputs. Its name has its own paragraph, because people search for the name."""
    said = [show.code(node.function)] if node.function else []
    if calls:
        said.append(f"also {', '.join(map(show.code, calls))}")
    if node.inputs:
        said.append("outputs: " + ", ".join(f"{number} {show.code(name)}" for number, name in enumerate(node.inputs)))
    # The search of the site finds this element only if no page is about this name.
    return (
        f'<div class="zn-searched" id="node-{node.name}" data-fallback>'
        f"<p><strong>{node.name}</strong></p> <p>{'; '.join(said)}</p></div>"
    )


def made_by() -> dict[str, list[str]]:
    """The layers and losses in whose graphs a node occurs, by the node's name. Each is run, and its graph is read."""
    found: dict[str, list[str]] = {}
    for call in CALLS:
        function = call.partition("(")[0]
        result = eval(call, {"torch": torch, "F": F, "nn": nn, "t": _tensor, "labels": torch.tensor([0, 1])})
        while isinstance(result, tuple):
            result = result[0]
        for name in {node.name(): None for node in graph_nodes(result)}:
            if name.removesuffix("Backward0") not in _FILE["everywhere"] and function not in found.setdefault(name, []):
                found[name].append(function)
    return found


def _tensor(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).reshape(shape).requires_grad_()


def answers(every: Mapping[str, Node]) -> dict[str, list[str]]:
    """The answers for the nodes that people meet, as HTML, each with the names of its nodes in this PyTorch."""
    points = points_by_node([point for group in POINTS.values() for point in group])
    found: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted(ADVICE):
        if name in every:
            advice, known = ADVICE[name], numerics_of(every[name].public)
            fix = advice.get("fix") or f"Write `{points[name][0].instead}`."
            page = advice.get("page") or known.points or known.section
            found.setdefault((advice.get("why") or why(every[name]), fix, page), []).append(name)
    return {
        _html(*said, {point.anchor: point for name in names for point in points.get(name, ())}): names
        for said, names in found.items()
    }


def why(node: Node) -> str:
    """Whether a node can return NaN, and why, from what is known of its function.

    Raises:
        ValueError: if neither the numerics nor the record of the function say it.
    """
    known, record = numerics_of(node.public), FUNCTIONS.get(function_of(node.name), UNKNOWN)
    low, high = known.domain
    if math.isfinite(low):
        outside = f"outside of {low:g} to {high:g}" if math.isfinite(high) else f"below {low:g}"
        ends = " and ".join(f"{end:g}" for end in known.steep_at)
        steep = f"at {ends} the slope is infinite, and 0 times this slope is NaN"
        return f"Yes: {steep}. {outside.capitalize()} the value is NaN.".replace("-", "−")
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
    raise ValueError(
        f"nothing is known of the numbers of {node.name}; write why it can be NaN in helpers/data/advice.toml"
    )


def _html(why: str, fix: str, page: str, points: Mapping[str, Point]) -> str:
    links = [show.link(f"atlas#{anchor}", point.name) for anchor, point in points.items()]
    if page and not (points and page.startswith("atlas")):
        links.insert(0, show.link(page, page.partition("#")[0].replace("-", " ")))
    return f"<p>{show.with_code(why)}</p><p><b>Fix:</b> {show.with_code(fix)} See {' · '.join(links)}.</p>"
