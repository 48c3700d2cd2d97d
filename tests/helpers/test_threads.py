"""Every thread that a page names has a title, an address, a state and the day on which it was read."""

import datetime

from scratch import ROOT

from helpers import formulas, points
from helpers.threads import THREADS, Thread, thread

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


def test_an_issue_is_linked_by_its_number():
    issues = [entry for _, entry in ALL if entry.number is not None]
    assert {entry.number for entry in issues} >= {10729, 52248, 67180, 4132}
    for entry in issues:
        assert entry.key == str(entry.number) and entry.label == f"pytorch#{entry.number}"
        assert entry.url.startswith("https://github.com/pytorch/pytorch/") and entry.url.endswith(f"/{entry.number}")
    for entry in THREADS.values():
        assert entry in issues or "/issues/" not in entry.url


def test_a_thread_says_what_it_is_called_where_it_is_and_how_it_stands():
    entry = thread("4132")
    for text in (entry.text(), entry.html()):
        assert entry.title in text and entry.url in text and f"(looked up {entry.looked_up})" in text
    assert f'<a href="{entry.url}">pytorch#4132</a>' in entry.html()
    assert entry.html("<p>more</p>") == entry.html().removesuffix("</div>") + "<p>more</p></div>"
    read = {"title": entry.title, "url": entry.url, "state": entry.state, "looked_up": entry.looked_up}
    assert entry.json() == {"type": "thread", "case": "4132", **read}
    evil = '<script>"&'
    html = Thread(evil, evil, evil, evil, evil).html()
    assert "<script" not in html and html.count("&lt;script&gt;") == 4 and 'href="&lt;script&gt;&quot;&amp;"' in html


def test_every_thread_has_its_page():
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "chapters").glob("*.md"))
    assert [key for key in THREADS if f'("{key}")' not in pages] == []
