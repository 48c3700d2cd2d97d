"""Every thread that a page names has a title, an address, a state and the day on which it was read."""

import datetime

from scratch import ROOT

from helpers import formulas, points
from helpers.threads import THREADS

ALL = [entry for listed in (THREADS, points.SOURCES, formulas.SOURCES) for entry in listed.items()]


def test_every_thread_has_what_a_page_shows_and_stands_once_in_a_list():
    for key, entry in ALL:
        assert entry.key == key and entry.label and entry.title and entry.url.startswith("https://")
        assert "Fill in" not in entry.text() + entry.label
        assert entry.state.endswith((".", ".)")) and datetime.date.fromisoformat(entry.looked_up)
    asked = [entry for listed in (THREADS, points.SOURCES) for entry in listed.values()]
    assert all(entry.state.startswith(("Open", "Closed", "Answered")) for entry in asked)
    for listed in (THREADS, points.SOURCES, {**THREADS, **formulas.SOURCES}):
        assert len({entry.url for entry in listed.values()}) == len(listed)


def test_every_thread_has_its_page():
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "chapters").glob("*.md"))
    assert [key for key in THREADS if f'("{key}")' not in pages] == []
