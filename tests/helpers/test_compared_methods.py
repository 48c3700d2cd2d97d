"""A method is registered once, with a title and a sentence, and is compared on a page."""

import pytest
from scratch import ROOT

from helpers import methods
from helpers.methods import METHODS, Method, method, register


@pytest.fixture
def registry(monkeypatch):
    copy = dict(METHODS)
    monkeypatch.setattr(methods, "METHODS", copy)
    return copy


def test_a_registered_way_is_found_by_its_name(registry):
    made = register("new", "New", "A new method.")
    assert made == Method("new", "New", "A new method.")
    assert method("new") is made is registry["new"]


def test_a_name_is_registered_once(registry):
    before = dict(registry)
    with pytest.raises(ValueError, match=r"the method 'vanilla' is already registered, as: Plain PyTorch"):
        register("vanilla", "other", "Another.")
    assert registry == before


def test_an_unknown_way_is_refused_and_the_known_ones_are_named():
    with pytest.raises(KeyError, match="no method is called 'vanila'; the methods are vanilla, masked, .*register"):
        method("vanila")


def test_every_way_stands_under_its_own_name_with_a_title_and_a_sentence():
    for name, entry in METHODS.items():
        assert entry.name == name and entry.title and entry.summary.endswith(".")
    assert len({entry.title for entry in METHODS.values()}) == len(METHODS)


def test_every_way_is_compared_on_a_page():
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "chapters").glob("*.md"))
    assert [name for name in METHODS if f'"{name}"' not in pages] == []
