"""What people come to the book with is answered two clicks from the front page, on a phone too."""

import tomllib

import pytest
from scratch import ROOT

from tools.measure.browser import Visit

TASKS = tomllib.loads((ROOT / "tests" / "site" / "tasks.toml").read_text(encoding="utf-8"))["task"]
CLICKS = 2
SCREENS = 2


class Reader:
    """A reader who clicks, and who counts the clicks."""

    def __init__(self, tab):
        self.page = tab.page
        self.clicks = 0

    def click(self, role, name=None):
        """Click the first element of its kind that is visible. If there is none, open the contents of a phone first."""
        found = self.page.get_by_role(role, name=name, exact=True).locator("visible=true")
        if not found.count():
            self.click("link", "Contents")
        found.first.click()
        self.clicks += 1

    def follow(self, task):
        """Follow the way of a task from the front page."""
        if "paste" in task:
            self.page.get_by_label("Error message, traceback or log").fill(task["paste"])
            self.click("button", "Find the page about it")
            self.page.locator(".answer a").first.click()  # the paste, and one click
        elif "search" in task:
            box = self.page.get_by_role("combobox").or_(self.page.get_by_role("searchbox")).first
            if not box.is_visible():
                self.click("button", "Search")
                self.page.wait_for_url("**/search.html")
            box.press_sequentially(task["search"])
            self.page.get_by_role("option").first.wait_for()
            self.click("option")
        for name in task.get("clicks", []):
            self.click("link", name)


@pytest.fixture(scope="module", params=[(1280, 800), (390, 844)], ids=["wide", "phone"])
def tab(browser, address, request):
    """A tab for all tasks."""
    with Visit(browser, address, viewport=dict(zip(("width", "height"), request.param, strict=True))) as tab:
        yield tab


@pytest.mark.parametrize("task", TASKS, ids=[task["comes"] for task in TASKS])
def test_a_task_is_answered_two_clicks_from_the_front_page(tab, task):
    tab.open("")
    reader = Reader(tab)
    reader.follow(task)
    tab.page.wait_for_url(f"**/chapters/{task['page']}.html*")
    assert reader.clicks <= CLICKS
    tab.page.wait_for_timeout(100)  # the browser scrolls to the place that the address names
    section = tab.page.locator(f"[id='{task['section']}']")
    answer = section.get_by_text(task["text"], exact=True) if "text" in task else section
    top, height = answer.evaluate("(each) => each.getBoundingClientRect().top"), tab.page.viewport_size["height"]
    assert -height / 10 <= top <= SCREENS * height, "the answer starts further down"
