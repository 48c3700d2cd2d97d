"""The words of the glossary on the other pages: each has its definition, for a mouse, a keyboard and a finger."""

import pytest
from scratch import ROOT

from tools.measure.browser import Visit, axe

PAGE = "chapters/where-over-exp.html"
LEAF = "A tensor that no operation made, such as a parameter."


def test_a_word_has_its_definition_on_each_page_that_uses_it_and_no_ordinary_word_is_marked_by_itself(pages):
    glossary = pages["chapters/glossary.html"]
    for path, soup in pages.items():
        for term in soup.select("article a.term"):
            anchor = term["href"].partition("#")[2]
            text = " ".join(glossary.find(id=anchor).p.get_text().split())
            assert text.startswith(term["title"]) and len(term["title"]) > 40 and term["title"].endswith("."), path
            assert not term.find_parent(["pre", "code", "h1", "h2", "h3"]), path
    # A page that has no link of its author to these words.
    marked = {term["href"].partition("#")[2]: term.get_text() for term in pages["chapters/api.html"].select("a.term")}
    assert marked["cotangent"] == "cotangents" and "graph" not in marked
    assert pages["chapters/glossary.html"].select("a.term") == []


def test_a_mouse_and_the_focus_show_a_definition_and_escape_hides_it(visit):
    visit.open(PAGE)
    page, term, shown = visit.page, visit.page.locator("a.term", has_text="leaf"), visit.page.get_by_role("tooltip")
    term.scroll_into_view_if_needed()
    term.hover()
    assert shown.inner_text() == LEAF and axe(visit, ROOT) == []
    shown.hover()  # the pointer may move into the definition
    page.wait_for_timeout(400)
    assert shown.is_visible()
    page.mouse.move(0, 0)
    shown.wait_for(state="hidden")
    term.focus()
    assert shown.inner_text() == term.get_attribute("aria-description") == LEAF and term.get_attribute("title") is None
    page.keyboard.press("Escape")
    assert not shown.is_visible() and visit.troubles == []


@pytest.mark.parametrize("size", [(390, 844), (844, 390)])
def test_a_tap_shows_a_definition_within_the_window_and_a_second_one_follows_the_link(browser, address, size):
    view = {"width": size[0], "height": size[1]}
    with Visit(browser, address, viewport=view, has_touch=True, is_mobile=True) as tab:
        tab.open(PAGE)
        for term in tab.page.locator("a.term").all():
            term.tap()
            box = tab.page.get_by_role("tooltip").bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= size[0] and 0 <= box["y"] < size[1]
        tab.page.locator("h1").tap()
        assert not tab.page.get_by_role("tooltip").is_visible() and tab.page.url.endswith(PAGE)
        term.tap()
        term.tap()
        tab.page.wait_for_url("**/glossary.html#*")
