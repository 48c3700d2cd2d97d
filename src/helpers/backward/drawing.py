"""The graph of a backward pass as an SVG: the loss at the top, the inputs at the bottom, cotangents between them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..entries import Entries, Kind, Outcome, describe, outcome
from .arithmetic import GRAD
from .graph import METHODS, FigureStep, merged
from .told import Told, short

MOST = 12
"""The most elements of a tensor that is drawn element by element."""

WIDEST = 330
"""The largest width of a drawing. A phone would scale a wider one until its text is too small, so rows are broken."""

SHORT = 32
"""The most characters of a formula that is written inside a node."""

CHARACTER, CELL, LABEL, GAP, SPACE, EDGE = 6.7, 20, 17, 14, 18, 14
"""The width of a character, the heights of a cell and a label, and the space between boxes, between rows, at edges."""


@dataclass(eq=False)
class Strip:
    """A tensor as one or more rows of cells.

    Attributes:
        methods: the tensor of each method; or a single tensor with the empty name, if both methods have the same.
        label: the text above the cells, if the tensor is not a cotangent.
        meets: the indices of the elements that together with others give NaN in the node that gets or saved this
            tensor.
    """

    methods: Mapping[str, Outcome]
    label: str = ""
    meets: Sequence[int] = ()

    @property
    def shown(self) -> Outcome:
        return next(iter(self.methods.values()))

    def columns(self, most: int) -> int:
        """How many cells are side by side; 0 if the tensor is described in words."""
        value = self.shown
        if not isinstance(value, Entries) or not 0 < len(value) <= MOST or len(value.shape) > 2:
            return 0
        count = value.shape[-1] if value.shape else 1
        return min(count, most) if len(value.shape) < 2 else count

    def texts(self) -> list[str]:
        """The longest text of each cell."""
        each = [short(value) for value in self.methods.values() if isinstance(value, Entries)]
        return [max(texts, key=len) for texts in zip(*each, strict=True)]

    def words(self, value: Outcome) -> str:
        if not isinstance(value, Entries):
            return describe(value)
        kinds = value.kinds()
        told = [
            f"{kinds.count(kind)} {word}"
            for kind, word in ((Kind.NAN, "NaN"), (Kind.INF, "inf"), (Kind.MASKED, "ignored"))
            if kind in kinds
        ]
        return f"{list(value.shape)}" + (f": {', '.join(told)}" if told else "")


@dataclass(eq=False)
class Box:
    """A box with a position: a node, a cotangent, or a bend of a long line.

    Attributes:
        step: the number of the node, or of the node that the cotangent comes from.
        to: the number of the node that the cotangent goes to.
        born: the arithmetic of the elements that first become NaN here, by index.
        spared: the arithmetic of the elements that are ignored instead, by index.
        calls: the side of the box on which this arithmetic is written.
    """

    strips: Sequence[Strip] = ()
    title: str = ""
    formula: str = ""
    step: int = -1
    to: int = -1
    kind: str = "bend"
    born: Mapping[int, str] = field(default_factory=dict)
    spared: Mapping[int, str] = field(default_factory=dict)
    width: float = 0
    height: float = 0
    x: float = 0
    y: float = 0
    calls: str = ""


def draw(steps: Sequence[FigureStep], told: Sequence[Told], salt: str) -> str:
    """The SVG of the graph.

    Args:
        steps: the recorded steps.
        told: the description of each step.
        salt: makes the ids of this drawing differ from the ids of other drawings.
    """
    for most in (MOST, 6, 4, 3, 2):
        graph = _graph(steps, told)
        columns = _measure(graph, most)
        width, height = _lay_out(graph)
        if width <= WIDEST:
            break
    width = _call(graph, width)
    lines = [
        f'<g data-from="{graph.nodes[box]["box"].step}"><path class="zn-line" d="{_line(graph, box, to)}"'
        + (f' marker-end="url(#{salt}-arrow)"' if graph.nodes[to]["box"].kind != "bend" else "")
        + "/></g>"
        for box, to in graph.edges
    ]
    boxes = [_drawn(data["box"], columns, most) for _, data in graph.nodes(data=True)]
    head = (
        f'<marker id="{salt}-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker>'
    )
    return (
        f'<svg aria-hidden="true" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {width * 1.15:.0f}px" '
        f'xmlns="http://www.w3.org/2000/svg"><defs>{head}</defs>{"".join(lines)}{"".join(boxes)}</svg>'
    )


def _graph(steps: Sequence[FigureStep], told: Sequence[Told]) -> Any:
    """A graph in which nodes and cotangents are boxes. Each cotangent is between its two nodes."""
    import networkx  # type: ignore[import-untyped]

    graph: Any = networkx.DiGraph()
    graph.add_node("loss", box=Box(title="loss", kind="end"))
    strip = Strip(merged(next(iter(steps[0].arrives.values()))), meets=told[0].meets.get(GRAD, ()))
    graph.add_node("start", box=Box([strip], to=0, kind="cotangent"))
    for number, (step, about) in enumerate(zip(steps, told, strict=True)):
        strips = [Strip({"": outcome(value)}, name, about.meets.get(name, ())) for name, value in about.tensors.items()]
        formula = about.formula if len(about.formula) <= SHORT else ""
        kind = "end" if step.leaf else "node"
        graph.add_node(number, box=Box(strips, about.title, formula, number, kind=kind))
    graph.add_edge("loss", "start")
    graph.add_edge("start", 0)
    for number, step in enumerate(steps):
        for sent in step.sends:
            box = Box(
                [Strip(merged(sent.value), meets=told[sent.to].meets.get(GRAD, ()))],
                step=number,
                to=sent.to,
                kind="cotangent",
                born=told[number].born.get(sent.slot, {}),
                spared=told[number].spared.get(sent.slot, {}),
            )
            graph.add_node((number, sent.slot), box=box)
            graph.add_edge(number, (number, sent.slot))
            graph.add_edge((number, sent.slot), sent.to)
    return _with_bends(graph, list(networkx.topological_generations(graph)))


def _with_bends(graph: Any, layers: Sequence[Sequence[Any]]) -> Any:
    """Add a bend in each layer that a line passes, so that the layout keeps space for the line."""
    layer = {name: at for at, names in enumerate(layers) for name in names}
    for name in layer:
        graph.nodes[name]["layer"] = layer[name]
    for above, below in list(graph.edges):
        if layer[below] - layer[above] > 1:
            graph.remove_edge(above, below)
            last = above
            for at in range(layer[above] + 1, layer[below]):
                bend = ("bend", above, at)
                step = graph.nodes[above]["box"].step
                graph.add_node(bend, box=Box(step=step, width=8), layer=at)
                graph.add_edge(last, bend)
                last = bend
            graph.add_edge(last, below)
    return graph


def _measure(graph: Any, most: int) -> dict[tuple[int, int], float]:
    """The widths of columns. Rows with the same number of elements get the same widths, so that they are aligned."""
    widths: dict[tuple[int, int], float] = {}
    for _, data in graph.nodes(data=True):
        for strip in data["box"].strips:
            if count := strip.columns(most):
                for at, text in enumerate(strip.texts()):
                    key = count, at % count
                    widths[key] = max(widths.get(key, 24), CHARACTER * len(text) + 9)
    for _, data in graph.nodes(data=True):
        box = data["box"]
        if box.kind == "bend":
            continue
        sizes = [_size(strip, widths, most) for strip in box.strips]
        box.width = max([width for width, _ in sizes], default=0)
        box.height = sum(height for _, height in sizes)
        if box.kind in ("node", "end"):
            labels = [CHARACTER * len(strip.label) for strip in box.strips]
            box.width = max([box.width, 7.2 * len(box.title) + CHARACTER * (len(box.formula) + 2), *labels]) + 20
            box.height += 26 + LABEL * len(box.strips) + (6 if box.strips else 0)
    return widths


def _size(strip: Strip, widths: Mapping[tuple[int, int], float], most: int) -> tuple[float, float]:
    count = strip.columns(most)
    if not count:
        return CHARACTER * max(len(strip.words(value)) for value in strip.methods.values()) + 10, CELL
    rows = -(-len(strip.texts()) // count)
    return sum(widths[count, at] for at in range(count)), CELL * rows


def _lay_out(graph: Any) -> tuple[float, float]:
    """Set the position of every box, and return the width and height of the drawing."""
    layers: dict[int, list[Any]] = {}
    for name, data in graph.nodes(data=True):
        layers.setdefault(data["layer"], []).append(name)
    box = {name: data["box"] for name, data in graph.nodes(data=True)}
    rows = [layers[at] for at in sorted(layers)]
    # Each sweep moves the boxes of a layer towards the mean position of their neighbours, from above and from below in
    # turn. The first four sweeps may change the order in a layer, which reduces crossings. The last two keep it.
    for sweep in range(6):
        down = sweep % 2 == 0
        for names in rows if down else reversed(rows):
            near = graph.predecessors if down else graph.successors
            wanted = {name: _mean([box[other].x for other in near(name)], box[name].x) for name in names}
            if sweep < 4:
                names.sort(key=wanted.__getitem__)
            _settle([box[name] for name in names], [wanted[name] for name in names])
    y = 0.0
    for names in rows:
        tallest = max(box[name].height for name in names)
        for name in names:
            box[name].y = y
            if box[name].kind == "bend":
                box[name].height = tallest
        bent = any(abs(box[name].x - box[to].x) > GAP for name in names for to in graph.successors(name))
        y += tallest + SPACE * (2 if bent else 1)
    left = min(each.x - each.width / 2 for each in box.values()) - EDGE
    for each in box.values():
        each.x -= left
        each.y += 3
    return max(each.x + each.width / 2 for each in box.values()) + EDGE, y - SPACE + 6


def _call(graph: Any, width: float) -> float:
    """Choose a side for the arithmetic of the first NaN, if a side has space for it, and return the new width."""
    boxes = [data["box"] for _, data in graph.nodes(data=True)]
    for box in boxes:
        if not box.born or len(box.born) > 1 and len(set(box.born.values())) > 1:
            continue
        beside = [other for other in boxes if other.y < box.y + box.height and box.y < other.y + other.height]
        beside.remove(box)
        need = CHARACTER * len(next(iter(box.born.values()))) + 10
        left, right = box.x - box.width / 2, box.x + box.width / 2
        if right + need <= max(width, WIDEST) and not any(other.x > box.x for other in beside):
            box.calls = "right"
            width = max(width, right + need)
        elif left > need and not any(other.x < box.x for other in beside):
            box.calls = "left"
    return width


def _mean(values: Sequence[float], other: float) -> float:
    return sum(values) / len(values) if values else other


def _settle(boxes: Sequence[Box], wanted: Sequence[float]) -> None:
    """Place the boxes of a layer near their wanted positions, in their order and without overlap."""
    right = float("-inf")
    for box, x in zip(boxes, wanted, strict=True):
        box.x = max(x, right + GAP + box.width / 2)
        right = box.x + box.width / 2
    shift = _mean([x - box.x for box, x in zip(boxes, wanted, strict=True)], 0)
    for box in boxes:
        box.x += shift


def _line(graph: Any, above: Any, below: Any) -> str:
    a, b = graph.nodes[above]["box"], graph.nodes[below]["box"]
    top, end = a.y + a.height, b.y
    start = f"M{a.x:.1f} {a.y if a.kind == 'bend' else top:.1f}V{top:.1f}"  # a line goes straight through a bend
    if abs(a.x - b.x) < 0.5:
        return f"{start}V{end:.1f}"
    middle = (top + end) / 2
    return f"{start}C{a.x:.1f} {middle:.1f} {b.x:.1f} {middle:.1f} {b.x:.1f} {end:.1f}"


def _drawn(box: Box, widths: Mapping[tuple[int, int], float], most: int) -> str:
    if box.kind == "bend":
        return ""
    parts, y = [], box.y
    if box.kind in ("node", "end"):
        radius = 13 if box.kind == "end" else 5
        parts.append(
            f'<text class="zn-here" x="{box.x - box.width / 2 - 7:.1f}" y="{box.y + 17:.1f}">▶</text>'
            f'<rect class="zn-box" x="{box.x - box.width / 2:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
            f'height="{box.height:.1f}" rx="{radius}"/>'
            f'<text x="{box.x:.1f}" y="{box.y + 17:.1f}"><tspan class="zn-title">{html.escape(box.title)}</tspan>'
            + (f'<tspan dx="8">{html.escape(box.formula)}</tspan></text>' if box.formula else "</text>")
        )
        y += 26
    for strip in box.strips:
        if strip.label:
            parts.append(f'<text class="zn-label" x="{box.x:.1f}" y="{y + 12:.1f}">{html.escape(strip.label)}</text>')
            y += LABEL
        for method, value in strip.methods.items():
            cells = _cells(strip, value, box, y, widths, most)
            parts.append(f'<g data-method="{method}">{cells}</g>' if method else cells)
        y += _size(strip, widths, most)[1]
    for method, texts in zip(METHODS, (box.born, box.spared), strict=True):
        for at, text in [*texts.items()][: 1 if box.calls else 0]:
            x = box.x + (box.width / 2 + 7) * (1 if box.calls == "right" else -1)
            row = at // max(box.strips[0].columns(most), 1)
            parts.append(
                f'<text class="zn-call zn-{box.calls}" data-method="{method}" x="{x:.1f}" '
                f'y="{box.y + 14 + CELL * row:.1f}">{html.escape(text)}</text>'
            )
    place = f'data-from="{box.step}"' + (f' data-to="{box.to}"' if box.kind == "cotangent" else "")
    if box.kind != "cotangent" and box.step >= 0:
        place = f'data-step="{box.step}"'
    return f'<g class="zn-{box.kind}" {place}>{"".join(parts)}</g>'


def _cells(strip: Strip, value: Outcome, box: Box, y: float, widths: Mapping[tuple[int, int], float], most: int) -> str:
    count = strip.columns(most)
    width, height = _size(strip, widths, most)
    left = box.x - width / 2
    if not count or not isinstance(value, Entries):
        frame = f'<rect class="zn-cell" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        return f'{frame}<text x="{box.x:.1f}" y="{y + 14:.1f}">{html.escape(strip.words(value))}</text>'
    starts = [left + sum(widths[count, before] for before in range(at)) for at in range(count)]
    cells = []
    for at, (text, kind) in enumerate(zip(short(value), value.kinds(), strict=True)):
        x, top, wide = starts[at % count], y + CELL * (at // count), widths[count, at % count]
        marked = " zn-born" * (at in box.born and kind is Kind.NAN) + " zn-meets" * (at in strip.meets)
        cells.append(
            f'<g class="zn-entry-{kind.value.lower()}{marked}"><rect class="zn-cell" x="{x:.1f}" y="{top:.1f}" '
            f'width="{wide:.1f}" height="{CELL}"/><text x="{x + wide / 2:.1f}" y="{top + 14:.1f}">'
            f"{html.escape(text)}</text></g>"
        )
    # Marked cells come last, so that they are drawn over the others.
    return "".join(sorted(cells, key=lambda cell: "zn-entry-nan" in cell or "zn-entry-inf" in cell))
