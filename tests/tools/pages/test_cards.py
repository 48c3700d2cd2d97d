"""The card of a shared link shows the title, the description and the verdict of a page, and nothing over the edge."""

import io

import pytest
from PIL import Image

from tools.pages.cards import SIZE, draw


def picture(*arguments):
    return Image.open(io.BytesIO(draw(*arguments)))


LONG = "A title that is long enough to be broken into lines " * 3


@pytest.mark.parametrize("title", ["x", LONG, f"{LONG} · discuss.pytorch.org 135053"])
def test_nothing_is_drawn_over_the_edge(title):
    words = {f"way {number}": "raises NotImplementedError" for number in range(7)}
    image = picture(title, "word " * 60, words)
    for edge in ((SIZE[0] - 24, 20, *SIZE), (0, SIZE[1] - 16, *SIZE)):
        strip = image.crop(edge)
        assert strip.getcolors() == [(strip.width * strip.height, image.getpixel((0, 300)))], edge
