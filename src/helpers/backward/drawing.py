"""The graph of a backward pass as an SVG: the loss at the top, the inputs at the bottom, cotangents between them."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from ..entries import Entries, Kind, Outcome, describe, outcome
from .graph import FigureStep, merged
from .told import Told, short

MOST = 12
"""The most elements of a tensor that is drawn element by element."""

WIDEST = 330
"""The largest width of a drawing. A phone would scale a wider one until its text is too small, so rows are broken."""

SHORT = 32
"""The most characters of a formula that is written inside a node."""

WORDS = {Kind.NAN: "NaN", Kind.INF: "inf", Kind.MASKED: "ignored"}
"""The kinds of elements that are counted in a tensor that is not drawn element by element."""

CHARACTER, CELL, LABEL, GAP, SPACE, EDGE = 6.7, 20, 17, 14, 18, 14
"""The width of a character, the heights of a cell and a label, and the space between boxes, between rows, at edges."""


@dataclass(eq=False)
class Strip:
    """A tensor as one or more rows of cells.

    Attributes:
        methods: the tensor of each method; or a single tensor with the empty name, if both methods have the same.
        label: the text above the cells, if the tensor is not a cotangent.
        widths: the widths of the columns of cells; empty if the tensor is described in words.
    """

    methods: Mapping[str, Outcome]
    label: str = ""
    widths: Sequence[float] = ()

    def columns(self, most: int) -> int:
        """How many cells are side by side; 0 if the tensor is described in words."""
        value = next(iter(self.methods.values()))
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
        counts = ((value.kinds().count(kind), word) for kind, word in WORDS.items())
        told = [f"{count} {word}" for count, word in counts if count]
        return f"{list(value.shape)}" + (f": {', '.join(told)}" if told else "")

    @property
    def width(self) -> float:
        return sum(self.widths) or CHARACTER * max(len(self.words(value)) for value in self.methods.values()) + 10

    @property
    def height(self) -> int:
        return CELL * -(-len(self.texts()) // len(self.widths)) if self.widths else CELL


@dataclass(eq=False)
class Box:
    """A box with a position: a node, a cotangent, or a bend of a long line.

    Attributes:
        step: the number of the node, or of the node that the cotangent comes from.
        to: the number of the node that the cotangent goes to.
        born: the indices of the elements that first become NaN here.
    """

    strips: Sequence[Strip] = ()
    title: str = ""
    formula: str = ""
    step: int = -1
    to: int = -1
    kind: str = "bend"
    born: Collection[int] = ()
    width: float = 0
    height: float = 0
    x: float = 0
    y: float = 0

    @property
    def left(self) -> float:
        return self.x - self.width / 2


def draw(steps: Sequence[FigureStep], told: Sequence[Told], salt: str) -> str:
    """The SVG of the graph.

    Args:
        steps: the recorded steps.
        told: the description of each step.
        salt: makes the ids of this drawing differ from the ids of other drawings.
    """
    for most in (MOST, 6, 4, 3, 2):
        graph, rows = _graph(steps, told)
        _measure(graph, most)
        width, height = _lay_out(graph, rows)
        if width <= WIDEST:
            break
    lines = [
        f'<g data-from="{box.step}"><path class="zn-line" d="{_line(box, to)}"'
        + (f' marker-end="url(#{salt}-arrow)"' if to.kind != "bend" else "")
        + "/></g>"
        for box, to in graph.edges
    ]
    head = (
        f'<marker id="{salt}-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker>'
    )
    return (
        f'<svg aria-hidden="true" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {width * 1.15:.0f}px" '
        f'xmlns="http://www.w3.org/2000/svg"><defs>{head}</defs>{"".join(lines)}{"".join(map(_drawn, graph))}</svg>'
    )


def _graph(steps: Sequence[FigureStep], told: Sequence[Told]) -> tuple[Any, list[list[Box]]]:
    """A graph of boxes, which are nodes and cotangents, and its rows. Each cotangent is between its two nodes."""
    import networkx  # type: ignore[import-untyped]

    graph: Any = networkx.DiGraph()
    nodes = []
    for number, (step, about) in enumerate(zip(steps, told, strict=True)):
        strips = [Strip({"": outcome(value)}, name) for name, value in about.tensors.items()]
        formula = about.formula if len(about.formula) <= SHORT else ""
        nodes.append(Box(strips, about.title, formula, number, kind="end" if step.leaf else "node"))

    start = Box([Strip(merged(next(iter(steps[0].arrives.values()))))], to=0, kind="cotangent")
    networkx.add_path(graph, [Box(title="loss", kind="end"), start, *nodes[:1]])
    graph.add_nodes_from(nodes)
    for number, (step, about) in enumerate(zip(steps, told, strict=True)):
        for sent in step.sends:
            strips, born = [Strip(merged(sent.value))], about.born.get(sent.slot, ())
            cotangent = Box(strips, step=number, to=sent.to, kind="cotangent", born=born)
            networkx.add_path(graph, [nodes[number], cotangent, nodes[sent.to]])
    rows = [sorted(row, key=list(graph).index) for row in networkx.topological_generations(graph)]
    return graph, _with_bends(graph, rows)


def _with_bends(graph: Any, rows: list[list[Box]]) -> list[list[Box]]:
    """The rows with a bend in each row that a line passes, so that the layout keeps space for the line."""
    row = {box: at for at, boxes in enumerate(rows) for box in boxes}
    for above, below in list(graph.edges):
        if row[below] - row[above] > 1:
            bends = [Box(step=above.step, width=8) for _ in range(row[above] + 1, row[below])]
            for at, bend in enumerate(bends, row[above] + 1):
                rows[at].append(bend)
            graph.remove_edge(above, below)
            graph.add_edges_from(pairwise([above, *bends, below]))
    return rows


def _measure(boxes: Iterable[Box], most: int) -> None:
    """Set the sizes of all boxes. Strips with the same number of cells get the same widths, so they are aligned."""
    strips = [strip for box in boxes for strip in box.strips]
    widths: dict[tuple[int, int], float] = {}
    for strip in strips:
        if count := strip.columns(most):
            for at, text in enumerate(strip.texts()):
                key = count, at % count
                widths[key] = max(widths.get(key, 24), CHARACTER * len(text) + 9)
    for strip in strips:
        count = strip.columns(most)
        strip.widths = [widths[count, at] for at in range(count)]
    for box in boxes:
        if box.kind != "bend":
            box.width = max([strip.width for strip in box.strips], default=0)
            box.height = sum(strip.height for strip in box.strips)
        if box.kind in ("node", "end"):
            labels = [CHARACTER * len(strip.label) for strip in box.strips]
            box.width = max([box.width, 7.2 * len(box.title) + CHARACTER * (len(box.formula) + 2), *labels]) + 20
            box.height += 26 + LABEL * len(box.strips) + (6 if box.strips else 0)


def _lay_out(graph: Any, rows: Sequence[list[Box]]) -> tuple[float, float]:
    """Set the position of every box, and return the width and height of the drawing."""
    # Each sweep moves the boxes of a row towards the mean position of their neighbours, from above and from below in
    # turn. The first four sweeps may change the order in a row, which reduces crossings. The last two keep it.
    for sweep in range(6):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            near = graph.predecessors if down else graph.successors
            wanted = {box: fmean([other.x for other in near(box)] or [box.x]) for box in row}
            if sweep < 4:
                row.sort(key=wanted.__getitem__)
            _settle(row, [wanted[box] for box in row])
    y = 0.0
    for row in rows:
        tallest = max(box.height for box in row)
        for box in row:
            box.y = y
            if box.kind == "bend":
                box.height = tallest
        bent = any(abs(box.x - to.x) > GAP for box in row for to in graph.successors(box))
        y += tallest + SPACE * (2 if bent else 1)
    boxes = [box for row in rows for box in row]
    left = min(box.left for box in boxes) - EDGE
    for box in boxes:
        box.x -= left
        box.y += 3
    return max(box.x + box.width / 2 for box in boxes) + EDGE, y - SPACE + 6


def _settle(boxes: Sequence[Box], wanted: Sequence[float]) -> None:
    """Place the boxes of a layer near their wanted positions, in their order and without overlap."""
    right = float("-inf")
    for box, x in zip(boxes, wanted, strict=True):
        box.x = max(x, right + GAP + box.width / 2)
        right = box.x + box.width / 2
    shift = fmean(wanted) - fmean(box.x for box in boxes)
    for box in boxes:
        box.x += shift


def _line(a: Box, b: Box) -> str:
    top, end = a.y + a.height, b.y
    start = f"M{a.x:.1f} {a.y if a.kind == 'bend' else top:.1f}V{top:.1f}"  # a line goes straight through a bend
    if abs(a.x - b.x) < 0.5:
        return f"{start}V{end:.1f}"
    middle = (top + end) / 2
    return f"{start}C{a.x:.1f} {middle:.1f} {b.x:.1f} {middle:.1f} {b.x:.1f} {end:.1f}"


def _drawn(box: Box) -> str:
    if box.kind == "bend":
        return ""
    parts, y = [], box.y
    if box.kind in ("node", "end"):
        radius = 13 if box.kind == "end" else 5
        parts.append(
            f'<text class="zn-here" x="{box.left - 7:.1f}" y="{box.y + 17:.1f}">▶</text>'
            f'<rect class="zn-box" x="{box.left:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
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
            cells = _cells(strip, value, box, y)
            parts.append(f'<g data-method="{method}">{cells}</g>' if method else cells)
        y += strip.height
    place = f'data-from="{box.step}"' + (f' data-to="{box.to}"' if box.kind == "cotangent" else "")
    if box.kind != "cotangent" and box.step >= 0:
        place = f'data-step="{box.step}"'
    return f'<g class="zn-{box.kind}" {place}>{"".join(parts)}</g>'


def _cells(strip: Strip, value: Outcome, box: Box, y: float) -> str:
    left = box.x - strip.width / 2
    if not strip.widths or not isinstance(value, Entries):
        frame = (
            f'<rect class="zn-cell" x="{left:.1f}" y="{y:.1f}" width="{strip.width:.1f}" height="{strip.height:.1f}"/>'
        )
        return f'{frame}<text x="{box.x:.1f}" y="{y + 14:.1f}">{html.escape(strip.words(value))}</text>'
    cells = []
    for at, (text, kind) in enumerate(zip(short(value), value.kinds(), strict=True)):
        row, column = divmod(at, len(strip.widths))
        x, top, wide = left + sum(strip.widths[:column]), y + CELL * row, strip.widths[column]
        marked = " zn-born" * (at in box.born and kind is Kind.NAN)
        cells.append(
            f'<g class="zn-entry-{kind.value.lower()}{marked}"><rect class="zn-cell" x="{x:.1f}" y="{top:.1f}" '
            f'width="{wide:.1f}" height="{CELL}"/><text x="{x + wide / 2:.1f}" y="{top + 14:.1f}">'
            f"{html.escape(text)}</text></g>"
        )
    # Marked cells come last, so that they are drawn over the others.
    return "".join(sorted(cells, key=lambda cell: "zn-entry-nan" in cell or "zn-entry-inf" in cell))
