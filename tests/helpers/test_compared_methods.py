"""A method is registered once, with a title and a sentence, and is compared on a page."""

import pytest
from scratch import ROOT

from helpers import methods
from helpers.methods import METHODS, Method, method, register


def test_a_name_is_registered_once(monkeypatch):
    monkeypatch.setattr(methods, "METHODS", registry := dict(METHODS))
    assert register("new", "New", "A new method.") == method("new") == Method("new", "New", "A new method.")
    before = dict(registry)
    with pytest.raises(ValueError, match=r"the method 'vanilla' is already registered, as: Plain PyTorch"):
        register("vanilla", "other", "Another.")
    assert registry == before


def test_every_way_is_compared_on_a_page():
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "chapters").glob("*.md"))
    assert [name for name in METHODS if f'"{name}"' not in pages] == []
    assert len({entry.title for entry in METHODS.values()}) == len(METHODS)
