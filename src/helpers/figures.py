"""Drawings in the page's own colours: inline vectors, readable in light and in dark, each with a text in its place."""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import show

# Middle tones: at least 3:1 against white and against the dark page, so one set serves both.
BLUE, ORANGE, GREEN, RED, GREY = "#2f81d6", "#c9641a", "#2e8b57", "#d9480f", "#808080"

_INK = "#010203"  # stands for "the page's text colour" until the drawing is an SVG
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.grid": False,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
}


@dataclass(frozen=True)
class Figure:
    """A finished drawing: an SVG for each panel, the text for those who cannot see it, and its caption."""

    svgs: tuple[str, ...]
    alt: str
    caption: str
    width: float = 4.5
    """Of a panel, in inches."""

    def text(self) -> str:
        return f"[figure: {self.alt}]"

    def html(self) -> str:
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        # Panels stand side by side where they fit in three quarters of their size, and below each other on a phone.
        # They grow by an eighth at most, which keeps their text near the size of the page's.
        size = f"--least: {72 * self.width:.0f}px; --most: {len(self.svgs) * 108 * self.width:.0f}px"
        alt = html.escape(self.alt, quote=True)
        panels = f'<div class="zn-panels" role="img" aria-label="{alt}" style="{size}">{"".join(self.svgs)}</div>'
        return f"<figure>{panels}{caption}</figure>"

    def json(self) -> dict[str, Any] | None:
        return None


@contextmanager
def drawing(alt: str, caption: str = "", size: tuple[float, float] = (4.5, 2.7), panels: int = 1) -> Iterator[Any]:
    """Draw a figure with matplotlib. The figure is shown when the block ends.

    Args:
        alt: a text that tells readers who can't see the figure what it shows. It must not be empty.
        caption: the sentence under the figure.
        size: the width and height of a panel, in inches. If the width is at most 4.5, the text is readable on a phone.
        panels: the number of panels. They are side by side, or below each other if the page is narrow.

    Yields:
        `matplotlib.axes.Axes`, or a list of them if there are several panels. Give each line its own marker or dash
        pattern, because some readers can't distinguish the colours.

    Raises:
        ValueError: if `alt` is empty.

    >>> with drawing("a line that rises from 0 to 1") as axes:
    ...     _ = axes.plot([0, 1])
    [figure: a line that rises from 0 to 1]
    """
    with sketch(alt, caption, size, panels) as sketched:
        yield sketched.axes
    show.show(sketched.figure)


@dataclass
class Sketch:
    """A drawing while it is drawn: `axes` to draw on, and `figure` once its block has ended."""

    axes: Any
    figure: Any = None


@contextmanager
def sketch(alt: str, caption: str = "", size: tuple[float, float] = (4.5, 2.7), panels: int = 1) -> Iterator[Sketch]:
    """As `drawing`, but the finished `Figure` is kept and not shown."""
    if not alt.strip():
        raise ValueError("alt must say what the figure shows: some readers have nothing else")
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    # The salt makes the ids, and so the page, the same in every build.
    salt = hashlib.sha256((alt + caption).encode()).hexdigest()[:8]
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": salt}):
        # A canvas for each panel, so that the page can place them.
        canvases = [Canvas(figsize=size, layout="constrained") for _ in range(panels)]
        axes = [FigureCanvasSVG(canvas).figure.subplots() for canvas in canvases]
        sketched = Sketch(axes[0] if panels == 1 else axes)
        yield sketched
        svgs = tuple(_inline(_drawn(canvas), f"{salt}-{number}") for number, canvas in enumerate(canvases))
    sketched.figure = Figure(svgs, alt, caption, size[0])


def _drawn(canvas: Any) -> str:
    file = io.StringIO()
    canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _inline(document: str, salt: str) -> str:
    """A matplotlib SVG document as part of a page: the page's ink and font, and ids of its own."""
    svg = document[document.index("<svg") :].strip()
    svg = svg.replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: (?:(\w+) )?([\d.]+)px [^;\"]*", lambda m: f"font-size: {m[2]}px", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)  # matplotlib 3.11 writes the family on its own
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{salt}-\1"', svg)
    svg = re.sub(r'(href="|url\()#', rf"\g<1>#{salt}-", svg)
    return re.sub(r'<svg[^>]*?(viewBox="[^"]*")[^>]*>', _HEAD, svg, count=1)


_HEAD = r'<svg aria-hidden="true" \1 xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
