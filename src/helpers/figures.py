"""Figures in the page's own colours: inline SVG that is readable in light and dark mode, with a text alternative."""

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

# Colours of medium brightness: the contrast is at least 3:1 on white and on the dark page, so one set works for both.
BLUE, ORANGE, GREEN, RED, GREY = "#2f81d6", "#c9641a", "#2e8b57", "#d9480f", "#808080"

COLUMN, PHONE, GAP = 10.0, 4.6, 0.25
"""The widths of the page's column, of a phone's column, and of the gap between panels, in inches of 72 pixels."""

_INK = "#010203"  # replaces "the page's text colour" until the drawing is an SVG
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.grid": False,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
}


@dataclass(frozen=True)
class Figure(show.Shown):
    """A finished drawing.

    Attributes:
        wide: an SVG for each panel. The panels are side by side.
        narrow: the same panels drawn for a phone, where they are below each other.
        alt: the text for readers who can't see the figure.
        caption: the sentence under the figure.
    """

    wide: tuple[str, ...]
    narrow: tuple[str, ...]
    alt: str
    caption: str

    def text(self) -> str:
        return f"[figure: {self.alt}]"

    def html(self) -> str:
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        alt = html.escape(self.alt, quote=True)
        wide = f'<div class="zn-wide" style="--panels: {len(self.wide)}">{"".join(self.wide)}</div>'
        narrow = f'<div class="zn-narrow">{"".join(self.narrow)}</div>'
        return f'<figure class="zn-chart"><div role="img" aria-label="{alt}">{wide}{narrow}</div>{caption}</figure>'


@contextmanager
def drawing(alt: str, caption: str = "", height: float = 3.6, panels: int = 1) -> Iterator[Any]:
    """Draw a figure with matplotlib. The figure is shown when the block ends.

    The drawing is as wide as the column of text. It is laid out twice, for a wide page and for a phone, and its text
    has the same size in both. Place texts by data or by axes coordinates: they keep their places in both layouts.

    Args:
        alt: a text for readers who can't see the figure. It says what the figure shows, and must not be empty.
        caption: the sentence under the figure.
        height: the height of a panel, in inches of 72 pixels.
        panels: the number of panels. They are side by side, or below each other if the page is narrow.

    Yields:
        `matplotlib.axes.Axes`, or a list of them if there are several panels. Give each line its own marker or dash
        pattern, because some readers can't distinguish the colours.

    Raises:
        ValueError: if `alt` is empty, or if an axis has no label. `axes.axis("off")` draws without axes.

    >>> with drawing("a line that rises from 0 to 1") as axes:
    ...     _ = axes.plot([0, 1])
    ...     _ = axes.set(xlabel="step", ylabel="share")
    [figure: a line that rises from 0 to 1]
    """
    with sketch(alt, caption, height, panels) as sketched:
        yield sketched.axes
    show.show(sketched.figure)


@dataclass
class Sketch:
    """A drawing in progress: `axes` to draw on, and `figure` after the block has ended."""

    axes: Any
    figure: Any = None


@contextmanager
def sketch(alt: str, caption: str = "", height: float = 3.6, panels: int = 1) -> Iterator[Sketch]:
    """Like `drawing`, but the finished `Figure` is kept and not shown."""
    if not alt.strip():
        raise ValueError("alt is empty: write what the figure shows, for readers who can't see it")
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    # With this salt, matplotlib gives the same ids, and so the same page, in every build.
    salt = hashlib.sha256((alt + caption).encode()).hexdigest()[:8]
    wide = (COLUMN - GAP * (panels - 1)) / panels
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": salt}):
        # A canvas for each panel, so that the page can arrange the panels.
        canvases = [Canvas(figsize=(wide, height), layout="constrained") for _ in range(panels)]
        axes = [FigureCanvasSVG(canvas).figure.subplots() for canvas in canvases]
        sketched = Sketch(axes[0] if panels == 1 else axes)
        yield sketched
        if any(each.axison and not (each.get_xlabel() and each.get_ylabel()) for each in axes):
            raise ValueError(
                "an axis has no label: label both axes with set_xlabel and set_ylabel, or call axes.axis('off')"
            )
        drawn = [
            tuple(_inline(_drawn(canvas, width, height), f"{salt}-{size}{at}") for at, canvas in enumerate(canvases))
            for size, width in (("w", wide), ("n", PHONE))
        ]
    sketched.figure = Figure(drawn[0], drawn[1], alt, caption)


def _drawn(canvas: Any, width: float, height: float) -> str:
    canvas.set_size_inches(width, height)
    file = io.StringIO()
    canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _inline(document: str, salt: str) -> str:
    """A matplotlib SVG document as part of a page: with the page's ink and font, and with unique ids."""
    svg = document[document.index("<svg") :].strip()
    svg = svg.replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: (?:(\w+) )?([\d.]+)px [^;\"]*", lambda m: f"font-size: {m[2]}px", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)  # matplotlib 3.11 writes the family separately
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{salt}-\1"', svg)
    svg = re.sub(r'(href="|url\()#', rf"\g<1>#{salt}-", svg)
    return re.sub(r'<svg[^>]*?(viewBox="[^"]*")[^>]*>', _HEAD, svg, count=1)


_HEAD = r'<svg aria-hidden="true" \1 xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
