"""The cover of the book, for the shelf of an e-reader."""

from __future__ import annotations

import io
import textwrap
from typing import Any

from .cards import _ACCENT, _INK, _LEFT, _MUTED, _PAPER, _mark

SIZE = (1200, 1800)


def cover(title: str, description: str, author: str) -> bytes:
    """A PNG of `SIZE`: the book's mark, its title, what it is about, and who wrote it, in the colours of the cards."""
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw, ImageFont

    def font(size: int, bold: bool = False) -> Any:
        file = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
        return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{file}", size)

    image = Image.new("RGB", SIZE, _PAPER)
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, SIZE[0], 24), fill=_ACCENT)
    image.paste(_mark(224), (_LEFT, 320))
    pen.text((_LEFT, 640), title, font=font(128, bold=True), fill=_INK)
    pen.multiline_text(
        (_LEFT, 860), textwrap.fill(description, 38, break_on_hyphens=False), font=font(44), fill=_MUTED, spacing=22
    )
    pen.text((_LEFT, 1640), author, font=font(40), fill=_INK)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
