"""The picture of a page that others show beside a link to it: its title, and the verdict of each way."""

from __future__ import annotations

import hashlib
import io
import textwrap
from pathlib import Path
from typing import Any

from ..project import MAIN, Project, write

SIZE = (1200, 630)
"""Pixels, the size that Open Graph recommends."""

_PAPER, _INK, _MUTED, _ACCENT = "#14181d", "#e8edf2", "#9aa6b2", "#2f81d6"
_COLOURS = {"right": "#56c28a", "rounded": "#79b8ff", "missing": "#9aa6b2", "wrong": "#ff9d5c"}
_BAD = "#ff7a59"


def card(project: Project, name: str, title: str, description: str, facts: list[dict[str, Any]]) -> str:
    """Draw the card of a page, unless one that shows the same is there.

    Returns:
        Its path in the site. It carries a digest of what it shows: whoever keeps pictures by address gets the new one.
    """
    verdicts = [fact for fact in facts if fact["type"] == "verdict"]
    observed = verdicts[-1]["observed"] if verdicts else {}
    words = {way: observed[way] for way in dict.fromkeys((*filter(observed.__contains__, MAIN), *observed))}
    shown = repr((Path(__file__).read_bytes(), title, description, words)).encode()
    path = f"_static/cards/{Path(name).name}-{hashlib.sha256(shown).hexdigest()[:8]}.png"
    target = project.site / path
    if not target.is_file():
        for old in target.parent.glob(f"{Path(name).name}-????????.png"):
            old.unlink()
        write(target, draw(title, description, words))
    return path


def draw(title: str, description: str, words: dict[str, str]) -> bytes:
    """A PNG of `SIZE`: the book's mark and name, the title, and each way with its word, or else the description."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    from helpers.verdict import marked  # here, for it imports PyTorch, and most builds draw nothing

    def font(size: int, bold: bool = False) -> Any:
        file = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
        return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{file}", size)

    image = Image.new("RGB", SIZE, _PAPER)
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, SIZE[0], 12), fill=_ACCENT)
    pen.rounded_rectangle((72, 66, 128, 122), 12, fill=_ACCENT)
    pen.ellipse((89, 73, 111, 103), outline="#ffffff", width=6)
    for number in range(4):
        start = 82 + 9 * number
        pen.arc((start, 106, start + 10, 116), *((180, 360) if number % 2 == 0 else (0, 180)), fill="#ffffff", width=3)
    pen.text((148, 94), "Zero or NaN?", font=font(34, bold=True), fill=_INK, anchor="lm")
    size = 62 if len(title) <= 28 else 50
    lines = textwrap.wrap(title, 27 if size == 62 else 31)[:3]
    pen.multiline_text((72, 170), "\n".join(lines), font=font(size, bold=True), fill=_INK, spacing=14)
    below = 190 + len(lines) * (size + 20)
    if not words:
        pen.multiline_text((72, below), textwrap.fill(description, 58), font=font(30), fill=_MUTED, spacing=14)
    for number, (way, word) in enumerate(list(words.items())[:5]):
        top = below + 14 + number * 58
        pen.text((72, top), way, font=font(34), fill=_MUTED)
        pen.text((470, top), marked(word), font=font(34, bold=True), fill=_COLOURS.get(word, _BAD))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
