"""The picture that other sites show with a link to a page: the page's title, and the verdict of each method.

sphinxext-opengraph is not used: its cards show no verdicts, and keep their address when their content changes.
"""

from __future__ import annotations

import hashlib
import io
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..project import MAIN, Project, write

SIZE = (1200, 630)
"""The size in pixels, as Open Graph recommends."""

_MARK = Path(__file__).with_name("mark.png")
"""The book's mark, a zero over a wave, as in `theme/static/favicon.svg`. PIL can't draw an SVG."""

LEFT, _RIGHT = 72, 1128
PAPER, INK, MUTED, ACCENT = "#14181d", "#e8edf2", "#9aa6b2", "#2f81d6"
_COLOURS = {"right": "#56c28a", "rounded": "#79b8ff", "missing": "#9aa6b2", "wrong": "#ff9d5c"}
_BAD = "#ff7a59"


def card(project: Project, name: str, title: str, description: str, facts: list[dict[str, Any]]) -> str:
    """Draw the card of a page, unless a card with the same content exists.

    Returns:
        Its path in the site. The path contains a digest of the content, so that sites that cache pictures by address
        get the new picture.
    """
    verdicts = [fact for fact in facts if fact["type"] == "verdict"]
    observed = verdicts[-1]["observed"] if verdicts else {}
    words = {method: observed[method] for method in dict.fromkeys((*filter(observed.__contains__, MAIN), *observed))}
    marked = {method: _marked(word) for method, word in words.items()}
    shown = repr((Path(__file__).read_bytes(), _MARK.read_bytes(), title, description, marked)).encode()
    path = f"_static/cards/{Path(name).name}-{hashlib.sha256(shown).hexdigest()[:8]}.png"
    target = project.site / path
    if not target.is_file():
        for old in target.parent.glob(f"{Path(name).name}-????????.png"):
            old.unlink()
        write(target, draw(title, description, words))
    return path


def draw(title: str, description: str, words: dict[str, str]) -> bytes:
    """A PNG of `SIZE`: the book's mark and name, the thread's number, the symptom, and the word for each method.

    A page without a verdict shows its description.
    """
    from PIL import Image, ImageDraw

    image = Image.new("RGB", SIZE, PAPER)
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, SIZE[0], 12), fill=ACCENT)
    image.paste(Image.open(_MARK), (LEFT, 66))
    pen.text((148, 94), "Zero or NaN?", font=font(34, bold=True), fill=INK, anchor="lm")
    symptom, _, thread = title.rpartition(" · ") if " · " in title else (title, "", "")
    pen.text((_RIGHT, 94), thread, font=font(30), fill=MUTED, anchor="rm")
    for size in (62, 54, 46):
        face = font(size, bold=True)
        lines = _lines(symptom, face.getlength)
        if len(lines) < 3:
            break
    pen.multiline_text((LEFT, 170), "\n".join(lines[:3]), font=face, fill=INK, spacing=14)
    below = 190 + len(lines[:3]) * (size + 20)
    if not words:
        pen.multiline_text((LEFT, below), textwrap.fill(description, 58), font=font(30), fill=MUTED, spacing=14)
    step = min(58, (SIZE[1] - 30 - below) // max(1, min(len(words), 5)))
    for number, (method, word) in enumerate(list(words.items())[:5]):
        top = below + 14 + number * step
        pen.text((LEFT, top), method, font=font(34), fill=MUTED)
        pen.text((470, top), _marked(word), font=font(34, bold=True), fill=_COLOURS.get(word, _BAD))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def font(size: int, bold: bool = False) -> Any:
    """The font of the book's pictures, which comes with matplotlib."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    file = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{file}", size)


def _lines(text: str, length: Callable[[str], float]) -> list[str]:
    """A text broken between words so that every line fits. A word that is longer than a line is not broken."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and length(longer) <= _RIGHT - LEFT:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _marked(word: str) -> str:
    from helpers.verdict import marked  # here, because it imports PyTorch, and most pages have no verdict

    return marked(word)
