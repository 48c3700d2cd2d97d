"""The card of a shared link shows the title, the description and the verdict of a page, and nothing over the edge."""

import io
from types import SimpleNamespace

import pytest
from PIL import Image

from helpers import JUDGEMENTS
from tools.pages.cards import SIZE, card, draw


def picture(*arguments):
    return Image.open(io.BytesIO(draw(*arguments)))


def test_a_card_shows_the_title_the_description_and_the_words():
    plain = picture("A title", "A description", {}).tobytes()
    assert picture("A title", "A description", {}).size == SIZE
    assert picture("Another", "A description", {}).tobytes() != plain
    assert picture("A title", "Another", {}).tobytes() != plain
    judged = picture("A title", "A description", {"vanilla": "contaminated"}).tobytes()
    assert judged not in (plain, picture("A title", "A description", {"vanilla": "right"}).tobytes())


LONG = "A title that is long enough to be broken into lines " * 3


@pytest.mark.parametrize("title", ["x", LONG, f"{LONG} · discuss.pytorch.org 135053"])
def test_nothing_is_drawn_over_the_edge(title):
    words = {f"way {number}": "raises NotImplementedError" for number in range(7)}
    image = picture(title, "word " * 60, words)
    for edge in ((SIZE[0] - 24, 20, *SIZE), (0, SIZE[1] - 16, *SIZE)):
        strip = image.crop(edge)
        assert strip.getcolors() == [(strip.width * strip.height, image.getpixel((0, 300)))], edge


def test_the_number_of_a_thread_stands_above_the_title_and_takes_no_room_of_it():
    titles = ("NaN gradient from torch.where over exp", "NaN gradient from torch.where over exp · pytorch#10729")
    plain, numbered = (picture(title, "", {"vanilla": "contaminated"}) for title in titles)
    head, rest = (600, 14, SIZE[0], 150), (0, 150, *SIZE)
    assert plain.crop(rest).tobytes() == numbered.crop(rest).tobytes()
    assert len(plain.crop(head).getcolors()) == 1 < len(numbered.crop(head).getcolors(10_000))


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


def test_the_ways_that_every_case_has_come_first(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("tools.pages.cards.draw", lambda title, description, words: drawn.append(words) or b"")
    card(SimpleNamespace(site=tmp_path), "a", "A", "B", facts("wrong"))
    assert list(drawn[0]) == ["vanilla", "double where"]


@pytest.mark.parametrize(("word", "redrawn"), [("wrong", True), ("right", True), ("missing", False)])
def test_a_card_is_drawn_again_when_a_mark_on_it_has_changed(tmp_path, monkeypatch, word, redrawn):
    project = SimpleNamespace(site=tmp_path)
    first = card(project, "chapters/a", "A", "B", facts("wrong"))
    monkeypatch.setitem(JUDGEMENTS, word, "#")
    second = card(project, "chapters/a", "A", "B", facts("wrong"))
    assert (first != second) is redrawn
    assert (tmp_path / first).is_file() is not redrawn and (tmp_path / second).is_file()
