"""The atlas of points without a derivative: PyTorch's gradient, the slopes on both sides, and what to write instead.

`helpers.points` lists the points. The gradient, its node and the slopes are not taken from there: they are measured
each time a group is shown.
"""

from __future__ import annotations

import html
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zero_or_nan.functions.graph import AccumulateGrad, graph_from

from . import show
from .entries import describe, outcome

if TYPE_CHECKING:
    from .threads import Thread

STEPS = (1e-3, 1e-5, 1e-7)
"""The distances from a point at which slopes are measured, in float64. They are small, but give little round-off."""

JUMP = "jump"
"""What replaces a slope if the function jumps at the point."""


@dataclass(frozen=True)
class Point:
    """An expression at a point where its gradient is undefined or a convention.

    Args:
        name: the name that people use for the point.
        code: an expression that uses `x`. It may also use `torch`, `F` and `inf`.
        at: the value of `x`, a number or nested lists of numbers.
        gradient: the gradient that plain PyTorch gives there. If a release changed it, a `Since`.
        mathematics: what mathematics says about the point.
        decided: what PyTorch's maintainers decided, or what PyTorch does.
        sources: the keys in `helpers.points.SOURCES` of the threads that say so.
        instead: the expression to write instead, or "" if the expression itself is fine.
        instead_gradient: the gradient of `instead`.
        effect: what `instead` does about the point. Begins with one of the words in `EFFECTS`.
        given: a statement that both expressions need.
        ulps: the tolerance for both gradients; see `helpers.Tolerance`.
    """

    name: str
    code: str
    at: Any
    gradient: Any
    mathematics: str
    decided: str = ""
    sources: tuple[str, ...] = ()
    instead: str = ""
    instead_gradient: Any = None
    effect: str = ""
    given: str = ""
    ulps: int = 0

    @property
    def anchor(self) -> str:
        """The anchor of the point on its page.

        >>> Point("sqrt at 0", "x.sqrt()", 0.0, None, "").anchor
        'point-sqrt-at-0'
        """
        return show.anchor("point", self.name)


EFFECTS = {
    "Exact": "the slope that this expression has on both sides",
    "Chooses": "a value, where mathematics leaves the choice, or leaves nothing",
    "Bounds": "another function next to the point, with a slope that is large but finite",
    "Removes": "the element takes no part any more",
}
"""What an expression does about a point, by the first word of its `effect`."""


@dataclass(frozen=True)
class Measured:
    """The results of an expression at a point: its value, its gradient, and the nodes that determine the gradient."""

    value: Tensor
    gradient: Tensor
    nodes: tuple[str, ...]
    """The first node that returned infinity or NaN, and the first node that returned NaN, which anomaly mode names.

    If all results were finite, every node that computes.
    """

    @property
    def kind(self) -> str:
        """`"NaN"`, `"infinite"` or `"finite"`: the worst of the gradient's elements."""
        return "NaN" if self.gradient.isnan().any() else "infinite" if self.gradient.isinf().any() else "finite"


def measure(code: str, at: Any, given: str = "", backward: Any = None) -> Measured:
    """Run an expression at a point, forward and backward, in float32.

    `code`, `at` and `given` are as in `Point`. `backward` replaces `torch.autograd.backward`.

    >>> measure("x.sqrt()", 0.0)
    Measured(value=tensor(0.), gradient=tensor(inf), nodes=('SqrtBackward0',))
    """
    x = torch.tensor(at, requires_grad=True)
    seen: list[tuple[str, bool]] = []

    def look(name: str, results: Sequence[Tensor | None], _: Any) -> None:
        gradients = [result for result in results if result is not None]
        if not all(gradient.isfinite().all() for gradient in gradients):
            seen.append((name, any(bool(gradient.isnan().any()) for gradient in gradients)))

    with warnings.catch_warnings(action="ignore"):  # std of one element warns
        value = _evaluate(code, given, x)
        nodes = graph_nodes(value)
        for node in nodes:
            node.register_hook(partial(look, node.name()))
        (backward or torch.autograd.backward)(value.sum())
    assert x.grad is not None
    culprits = [name for name, _ in seen][:1] + [name for name, is_nan in seen if is_nan][:1]
    computing = [node.name() for node in nodes if not re.match(_STRUCTURE, node.name())]
    return Measured(value.detach(), x.grad, tuple(dict.fromkeys(culprits or computing)))


def slopes(code: str, at: Any, given: str = "") -> list[tuple[float | str, float | str]]:
    """The slopes of an expression below and above a point, for each element of `x`, as difference quotients in float64.

    Returns:
        For each element two slopes. A slope is infinite if the quotient grows as the step shrinks. It is NaN if the
        quotient does not converge, or if the function is not defined. It is `JUMP` if the value itself jumps.

    >>> slopes("x.abs()", 0.0), slopes("x.sqrt()", 0.0), slopes("x.sign()", 0.0)
    ([(-1.0, 1.0)], [(nan, inf)], [('jump', 'jump')])
    """
    x, before = torch.tensor(at, dtype=torch.float64), torch.get_default_dtype()
    found = []

    def total(x: Tensor) -> float:
        return _evaluate(code, given, x).sum().item()

    torch.set_default_dtype(torch.float64)  # of the numbers that the expression contains
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            for element in torch.eye(x.numel()).reshape(-1, *x.shape):
                changes = [[sign * (total(x + sign * step * element) - total(x)) for step in STEPS] for sign in (-1, 1)]
                found.append((_limit(changes[0]), _limit(changes[1])))
    finally:
        torch.set_default_dtype(before)
    return found


def differentiable(gradient: Tensor, sides: Sequence[tuple[float | str, float | str]]) -> bool:
    """Whether every element of a gradient is the slope on both sides."""
    pairs = zip(gradient.flatten().tolist(), sides, strict=True)
    return all(isinstance(side, float) and _near(value, side) for value, both in pairs for side in both)


def atlas(points: Sequence[Point], sources: dict[str, Thread]) -> None:
    """Show points. Each point is measured when this function is called.

    Args:
        points: the points of one group.
        sources: the threads, by the keys that the points name in their `sources`.
    """
    texts, cards = zip(*(_card(point, [sources[key] for key in point.sources]) for point in points), strict=True)
    show.show(show.Item("\n".join(texts), "".join(cards)))


def points_by_node(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points at which a node returns infinity or NaN, by the node's name. Each point is measured."""
    by_node: dict[str, list[Point]] = {}
    for point in points:
        measured = measure(point.code, point.at, point.given)
        if measured.kind != "finite":
            for node in measured.nodes:
                by_node.setdefault(node, []).append(point)
    return by_node


def decisions(sources: dict[str, Thread]) -> None:
    """Show a table of threads in a closed box, with their titles and states."""
    threads = list(sources.values())
    rows = [[thread.link(), f"{html.escape(thread.title)}<br>{html.escape(thread.state)}"] for thread in threads]
    dates = ", ".join(sorted({thread.looked_up for thread in threads}))
    table = show.table(f"What was decided, looked up {dates}", ["Thread", "Title; how it stands"], rows)
    box = f"<details><summary>The titles and the states of {len(threads)} threads</summary>{table}</details>"
    show.show(show.Item("\n".join(thread.text() for thread in threads), show.prose(box)))


def _card(point: Point, sources: Sequence[Thread]) -> tuple[str, str]:
    """One point with its measurements, as text and as HTML."""
    plain, sides = measure(point.code, point.at, point.given), slopes(point.code, point.at, point.given)
    kind = plain.kind
    if kind == "finite":
        kind = "the slope" if differentiable(plain.gradient, sides) else "finite by convention"
    given = f" with {show.code(point.given)}" if point.given else ""
    run = {
        "Code": f"{show.code(point.code)} at {show.code(f'x = {describe(outcome(point.at))}')}{given}",
        "Gives": f"value {_entries(plain.value)}, gradient {_entries(plain.gradient)}: <strong>{kind}</strong>",
    }
    write = {}
    if point.instead:
        other = measure(point.instead, point.at, point.given)
        write["Write"] = (
            f"{show.code(point.instead)}: value {_entries(other.value)}, gradient {_entries(other.gradient)}. "
            f"{html.escape(point.effect)}"
        )
    below, above = zip(*sides, strict=True)
    said = {
        "Slopes": f"from below {_slopes(below)}; from above {_slopes(above)}",
        "Mathematics": html.escape(point.mathematics),
        "PyTorch": html.escape(point.decided),
    }
    if sources:
        said["PyTorch"] += f" ({', '.join(source.link() for source in sources)})"
    title, nodes = f"<strong>{html.escape(point.name)}</strong>", " ".join(map(show.code, plain.nodes))
    # People search for a node that gives NaN or infinity, so the title names this node.
    if plain.kind == "finite":
        run["Nodes"] = nodes
    else:
        title += f" {nodes}"
    # The search of the site finds only what was run. The explanation uses words that every page has.
    why = f"<details><summary>{', '.join(filter(said.get, said))}</summary>{_list(said)}</details>"
    card = (
        f'<div class="zn-point"><div class="zn-searched" id="{point.anchor}"><p>{title}</p>{_list(run)}</div>'
        f"{_list(write)}{why}</div>"
    )
    return f"{point.name}: {describe(outcome(plain.gradient))}, {kind}", card


def _list(lines: dict[str, str]) -> str:
    rows = [f"<div><dt>{name}</dt> <dd>{line}</dd></div>" for name, line in lines.items() if line]
    return f"<dl>{''.join(rows)}</dl>" if rows else ""


def _slopes(values: Sequence[float | str]) -> str:
    """The slopes on one side, or a single one if all elements have the same."""
    names = {JUMP: "a jump", "nan": "none"}
    told = [names.get(str(value)) or f"{value:.3g}".replace("-", "−") for value in values]
    return ", ".join(told[:1] if len(set(told)) == 1 else told)


def _entries(value: Tensor) -> str:
    return f'<span class="zn-entries">{show.result(outcome(value))}</span>'


def _evaluate(code: str, given: str, x: Tensor) -> Tensor:
    names: dict[str, Any] = {"torch": torch, "F": F, "inf": math.inf, "x": x}
    exec(given, names)
    result = eval(code, names)
    assert isinstance(result, Tensor)
    return result


def graph_nodes(value: Tensor) -> list[Any]:
    """The nodes of a graph between the result and the leaves, without the leaves' own nodes."""
    return [node for node in graph_from([value]) if not isinstance(node, AccumulateGrad)]


# Nodes that only move elements. Almost every graph has some of them.
_STRUCTURE = "Select|Slice|Sum|Expand|View|Unsqueeze|Squeeze|Transpose|T|Permute|Unbind|Index|Clone|Alias|Diag|Trace"
_STRUCTURE = f"({_STRUCTURE})Backward|(Unsafe|Reshape)"


def _limit(changes: Sequence[float]) -> float | str:
    """The limit of the quotients of changes and steps."""
    quotients = [change / step for change, step in zip(changes, STEPS, strict=True)]
    coarse, fine, finest = quotients
    if math.isinf(finest):
        return finest if coarse == fine == finest else math.nan
    if _near(fine, finest):  # the quotient has converged
        return float(f"{finest:.6g}") if abs(finest) > 1e-6 else 0.0
    # The last step is 10,000 times as small as the first. If the change has hardly shrunk, the function jumps.
    if abs(changes[2]) > abs(changes[0]) / 2:
        return JUMP
    # A quotient that grows with every smaller step counts as infinite. Any other quotient has no limit.
    return math.copysign(math.inf, finest) if abs(finest) > abs(fine) > abs(coarse) else math.nan


def _near(value: float, other: float) -> bool:
    return math.isfinite(other) and abs(value - other) <= 1e-3 * max(1.0, abs(other))
