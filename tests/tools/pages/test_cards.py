"""The card of a shared link shows the title, the description and the verdict of a page, and nothing over the edge."""

import io
from types import SimpleNamespace

import pytest
from PIL import Image

from tools.pages.cards import SIZE, card, draw

LONG = "A title that is long enough to be broken into lines " * 3


@pytest.mark.parametrize("title", ["x", LONG, f"{LONG} · discuss.pytorch.org 135053"])
def test_nothing_is_drawn_over_the_edge(title):
    words = {f"way {number}": "raises NotImplementedError" for number in range(7)}
    image = Image.open(io.BytesIO(draw(title, "word " * 60, words)))
    for edge in ((SIZE[0] - 24, 20, *SIZE), (0, SIZE[1] - 16, *SIZE)):
        strip = image.crop(edge)
        assert strip.getcolors() == [(strip.width * strip.height, image.getpixel((0, 300)))], edge


def facts(word):
    return [{"type": "claim"}, {"type": "verdict", "observed": {"double where": "right", "vanilla": word}}]


def test_a_card_is_drawn_again_when_what_it_shows_has_changed_and_only_then(tmp_path):
    project = SimpleNamespace(site=tmp_path)
    first = card(project, "chapters/a", "A", "B", facts("wrong"))
    path = tmp_path / first
    path.write_bytes(b"kept")
    assert card(project, "chapters/a", "A", "B", facts("wrong")) == first and path.read_bytes() == b"kept"
    card(project, "chapters/a-longer-name", "A", "B", [])
    second = card(project, "chapters/a", "A", "B", facts("right"))
    assert second != first and not path.exists() and (tmp_path / second).is_file()
    assert len(list(path.parent.iterdir())) == 2
