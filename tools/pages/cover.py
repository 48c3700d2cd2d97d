"""The cover of the book, which e-readers show in their library."""

from __future__ import annotations

import io
import textwrap

from .cards import ACCENT, INK, LEFT, MUTED, PAPER, font, mark

SIZE = (1200, 1800)


def cover(title: str, description: str, author: str) -> bytes:
    """A PNG of `SIZE`: the book's mark, its title, its description, and its author, in the colours of the cards."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", SIZE, PAPER)
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, SIZE[0], 24), fill=ACCENT)
    image.paste(mark(224), (LEFT, 320))
    pen.text((LEFT, 640), title, font=font(128, bold=True), fill=INK)
    pen.multiline_text(
        (LEFT, 860), textwrap.fill(description, 38, break_on_hyphens=False), font=font(44), fill=MUTED, spacing=22
    )
    pen.text((LEFT, 1640), author, font=font(40), fill=INK)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
