"""The figure of a backward pass in a real browser: one step at a time, by mouse and by keyboard, and all without."""

import pytest

from tools.measure.browser import VIEWS, Visit

PAGE = "chapters/where-over-exp.html"


@pytest.fixture
def figure(visit):
    visit.page.emulate_media(reduced_motion="reduce")
    visit.open(PAGE)
    return visit.page.locator("[data-backward]").first


def seen(figure, selector):
    """The texts of what can be seen, of a selector."""
    return figure.evaluate(
        """(figure, selector) => [...figure.querySelectorAll(selector)]
            .filter((each) => each.getClientRects().length && each.checkVisibility({ visibilityProperty: true }))
            .map((each) => each.textContent)""",
        selector,
    )


def steps(figure):
    """The numbers of the steps whose tables can be seen."""
    return figure.evaluate(
        """(figure) => [...figure.querySelectorAll(".zn-step")]
            .filter((each) => each.checkVisibility({ visibilityProperty: true })).map((each) => each.dataset.step)"""
    )


def status(figure):
    return figure.get_by_role("status").inner_text()


def test_it_begins_where_nan_is_born(figure):
    assert steps(figure) == ["2"]
    assert status(figure).split("\n") == ["Step 3 of 4: exp, vanilla", "NaN is born: 0 × inf = NaN at [2]."]
    assert figure.locator(".zn-graph .zn-now[data-step]").get_attribute("data-step") == "2"
    assert seen(figure, ".zn-here") == ["▶"]


def test_what_is_said_of_a_step_stays_above_the_caption(visit):
    visit.open("index.html")
    figure = visit.page.locator("[data-backward]").first
    gap = """(figure, top) => {
        scrollTo({ top: figure.getBoundingClientRect().top + scrollY + top, behavior: "instant" });
        const [said, caption] = [".zn-steps", "figcaption"].map((each) => figure.querySelector(each));
        return caption.getBoundingClientRect().top - said.getBoundingClientRect().bottom; }"""
    assert all(figure.evaluate(gap, top) >= 0 for top in range(0, 500, 50))


def test_buttons_step_and_what_is_ahead_can_not_be_seen(figure):
    previous, following = (figure.get_by_role("button", name=name) for name in ("Previous", "Next"))
    ahead = """(figure) => [...figure.querySelectorAll(".zn-cotangent")]
        .filter((each) => getComputedStyle(each).visibility === "visible").map((each) => Number(each.dataset.from))"""
    seen_at = []
    for _ in range(3):
        seen_at.append(figure.evaluate(ahead))
        previous.press("Enter")
    assert seen_at == [[-1, 0, 1, 2], [-1, 0, 1], [-1, 0]]
    previous.press("Enter")
    assert steps(figure) == ["0"] and previous.get_attribute("aria-disabled") == "true"
    assert status(figure).startswith("Step 1 of 4: sum, vanilla\nIt passes on grad, for every element.")
    for at in ("1", "2", "3", "3"):
        following.press("Enter")
        assert steps(figure) == [at]
    assert following.get_attribute("aria-disabled") == "true" and previous.get_attribute("aria-disabled") == "false"
    assert status(figure).startswith("Step 4 of 4: x.grad, vanilla\nNaN in 1 of 3 elements.")


def test_arrow_keys_and_clicks_step_and_the_page_does_not_move(figure):
    page = figure.page
    figure.get_by_role("button", name="Next").click()
    before = page.evaluate("scrollY")
    for key, at in (("Home", 0), ("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("ArrowUp", 0), ("ArrowUp", 0)):
        page.keyboard.press(key)
        assert steps(figure) == [str(at)], key
    page.keyboard.press("End")
    assert steps(figure) == ["3"] and page.evaluate("scrollY") == before
    page.keyboard.press("a")
    page.keyboard.press("Control+ArrowLeft")
    assert steps(figure) == ["3"]
    figure.locator(".zn-graph [data-step='1'] .zn-title").click()
    assert steps(figure) == ["1"]


def test_ignoring_is_chosen_and_every_entry_follows(figure):
    vanilla = figure.locator(".zn-graph [data-to='3'] g[data-method='vanilla']")
    ignored = figure.locator(".zn-graph [data-to='3'] g[data-method='ignoring']")
    assert vanilla.is_visible() and not ignored.is_visible()
    plain, other = (figure.get_by_role("button", name=name, exact=True) for name in ("vanilla", "ignoring"))
    assert [each.get_attribute("aria-pressed") for each in (plain, other)] == ["true", "false"]
    other.press("Space")
    assert [each.get_attribute("aria-pressed") for each in (plain, other)] == ["false", "true"]
    assert steps(figure) == ["2"]
    assert ignored.is_visible() and not vanilla.is_visible()
    assert ignored.locator("text").all_text_contents() == ["0.368", "--", "--"]
    assert status(figure).split("\n") == ["Step 3 of 4: exp, ignoring", "Ignored: -- × inf = -- at [2]."]
    rows = figure.locator(".zn-step[data-step='2'] tbody tr:visible")
    assert [row.split() for row in rows.all_inner_texts()] == [
        ["arrives", "[1,", "--,", "--]"],
        ["result", "[0.368,", "7.39,", "inf]"],
        ["to", "x.grad", "[0.368,", "--,", "--]"],
    ]
    plain.press("ArrowRight")
    assert steps(figure) == ["3"] and status(figure).startswith("Step 4 of 4: x.grad, ignoring")
    assert seen(figure, ".zn-nan, .zn-entry-nan") == [] != seen(figure, ".zn-masked")
    plain.press("Enter")
    assert seen(figure, ".zn-nan") == ["NaN"] and seen(figure, ".zn-masked") == []


@pytest.mark.parametrize("how", ["no script", "print"])
def test_without_a_script_and_on_paper_all_steps_stand_there(browser, address, how):
    with Visit(browser, address, java_script_enabled=how == "print", **VIEWS["narrow, light"]) as tab:
        tab.open(PAGE)
        if how == "print":
            tab.page.emulate_media(media="print")
        figure = tab.page.locator("[data-backward]").first
        for step in figure.locator(".zn-step").all():
            assert step.is_visible()
            assert all(row.is_visible() for row in step.locator("tr, .zn-said").all())
        tops = [step.bounding_box()["y"] for step in figure.locator(".zn-step").all()]
        assert tops == sorted(set(tops))
        assert not figure.get_by_role("button").first.is_visible()
        assert all(strip.is_visible() for strip in figure.locator(".zn-cotangent").all())
        assert figure.locator(".zn-here:visible").count() == 0


LONG = "chapters/slicing-nan.html"
PHONE = {"viewport": {"width": 390, "height": 664}, "reduced_motion": "reduce"}


@pytest.fixture
def held(browser, address):
    """The longest figure on a phone, its top below the bar of the page."""
    with Visit(browser, address, **PHONE) as tab:
        tab.open(LONG)
        figure = tab.page.locator("[data-backward]").first
        figure.evaluate("(figure) => scrollTo(0, figure.getBoundingClientRect().top + scrollY - 100)")
        yield figure


def assert_step_is_seen(figure):
    """The node, what it passes on, and the sentence are in sight, and nothing lies over them."""
    bar = figure.page.locator("header.top").bounding_box()
    walk = figure.locator(".zn-walk").bounding_box()
    assert walk["y"] + walk["height"] <= figure.page.viewport_size["height"] + 0.5
    for part in figure.locator(".zn-graph :is(.zn-node, .zn-end, .zn-cotangent).zn-now").all():
        box = part.bounding_box()
        assert bar["y"] + bar["height"] <= box["y"] and box["y"] + box["height"] <= walk["y"]


def test_a_phone_shows_the_step_and_its_place_together(held):
    following = held.get_by_role("button", name="Next")
    following.press("Home")
    heights = set()
    for at in range(6):
        assert steps(held) == [str(at)]
        heights.add(round(held.locator(".zn-walk").bounding_box()["height"]))
        assert_step_is_seen(held)
        following.press("Enter")
    for key in ("Home", "End", "ArrowLeft"):
        following.press(key)
        assert_step_is_seen(held)
    assert len(heights) == 1
    assert all(button.bounding_box()["height"] >= 24 for button in held.get_by_role("button").all())
