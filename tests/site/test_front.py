"""The front page, and what every page offers beside its text, in a real browser."""

import pytest

CASE = "chapters/where-over-exp.html"


def test_what_is_wrong_and_the_fix_are_side_by_side_in_the_first_screen(visit, phone):
    visit.open("")
    wrong, fix = (cell.bounding_box() for cell in visit.page.locator(".cell.tag_beside").all())
    assert wrong["y"] == fix["y"] and wrong["x"] + wrong["width"] <= fix["x"]
    texts = [cell.inner_text() for cell in visit.page.locator(".tag_beside .cell_output").all()]
    assert "nan" in texts[0] and "nan" not in texts[1]
    phone.open("")
    first, second = (cell.bounding_box() for cell in phone.page.locator(".cell.tag_beside").all())
    assert first["y"] + first["height"] <= second["y"] and first["x"] == second["x"]
    for tab in (visit, phone):
        ways_on = tab.page.locator(".ways-on a")
        assert ways_on.all_inner_texts() == ["I have an error", "Find the line", "Learn why"]
        assert all(link.bounding_box()["y"] < 860 for link in ways_on.all())
    assert visit.page.locator("[data-backward]").first.bounding_box()["y"] < 600


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_the_figure_of_the_front_page_plays_once_unless_the_reader_wants_no_motion(visit, motion):
    visit.page.clock.install()
    visit.page.emulate_media(reduced_motion=motion)
    visit.open("")
    figure = visit.page.locator("[data-backward]").first
    figure.scroll_into_view_if_needed()
    step = figure.get_by_role("status")
    if motion == "reduce":
        visit.page.clock.run_for(10_000)
        assert step.inner_text().startswith("Step 3 of 4")
        figure.get_by_role("button", name="Play").click()
    figure.get_by_role("button", name="Pause").wait_for()
    assert step.inner_text().startswith("Step 1 of 4")
    visit.page.clock.run_for(2300)
    assert step.inner_text().startswith("Step 2 of 4")
    visit.page.clock.run_for(10_000)
    assert step.inner_text().startswith("Step 4 of 4") and figure.get_by_role("button", name="Play").is_visible()
    visit.page.clock.run_for(10_000)
    assert step.inner_text().startswith("Step 4 of 4")


def test_a_search_that_can_not_be_made_says_what_to_do(site, visit):
    visit.page.route("**/search.json", lambda route: route.fulfill(status=503))
    visit.page.goto(f"{visit.address}/search.html?q=nan")
    visit.page.locator("#found", has_text="could not be loaded (status 503)").wait_for()
    with visit.context.browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{(site / 'search.html').as_uri()}?q=nan")
        page.locator("#found", has_text="Run “make serve”").wait_for()


def test_the_checks_of_a_page_are_behind_one_button(visit, facts):
    visit.open(CASE)
    stated = sum(fact["page"] == "where-over-exp" and fact["type"] in ("claim", "verdict") for fact in facts)
    button = visit.page.get_by_role("button", name=f"{stated} results checked")
    checks = visit.page.locator(".cell.tag_hide-cell:not(.tag_solution, .tag_explain)")
    assert checks.count() > 5 and not any(cell.is_visible() for cell in checks.all())
    button.click()
    assert all(cell.is_visible() for cell in checks.all()) and button.get_attribute("aria-pressed") == "true"
    button.click()
    assert not checks.first.is_visible()


def test_predict_then_reveal_hides_outputs_until_they_are_asked_for(visit):
    visit.open(f"{CASE}?teach")
    assert not visit.page.locator("#at-a-glance").is_visible()
    outputs = visit.page.locator(".cell:not(.tag_hide-cell) > .cell_output")
    assert not any(output.is_visible() for output in outputs.all())
    visit.page.get_by_role("button", name="Show the answer").click()
    assert visit.page.locator("#at-a-glance").is_visible()
    visit.page.locator(".reveal", has_text="Predict").and_(visit.page.locator(":visible")).first.click()
    assert sum(output.is_visible() for output in outputs.all()) == 1
    for hide in ("Hide what this gives", "Hide the answer"):
        visit.page.get_by_role("button", name=hide).click()
    assert not visit.page.locator("#at-a-glance").is_visible()
    assert not any(output.is_visible() for output in outputs.all())
    # The next page teaches too, until the switch says otherwise, and each page has the switch.
    visit.open("chapters/slicing-nan.html")
    assert not visit.page.locator("#at-a-glance").is_visible()
    visit.open("chapters/teach-with-this-book.html")
    says = visit.page.get_by_text("Outputs are hidden and text is larger on all pages")
    assert says.is_visible() and "add ?teach to the address" in visit.page.locator("article").inner_text()
    visit.page.get_by_role("button", name="Predict, then reveal").click()
    assert not says.is_visible()
    visit.open(CASE)
    assert visit.page.locator("#at-a-glance").is_visible() and not visit.page.locator(".reveal").first.is_visible()


def test_the_atlas_can_be_narrowed_to_a_node(visit):
    visit.open("chapters/atlas.html")
    points, status = visit.page.locator("#the-points .zn-point"), visit.page.locator(".filter [role=status]")
    every = points.count()
    assert every > 40 and status.inner_text() == f"{every} of {every} points"
    visit.page.get_by_label("Show the points with").fill("SqrtBackward0")
    seen = [point for point in points.all() if point.is_visible()]
    assert 1 <= len(seen) < every and status.inner_text() == f"{len(seen)} of {every} points"
    assert all("SqrtBackward0" in point.inner_text() for point in seen)
    assert visit.page.locator("#roots-and-powers").is_visible() and not visit.page.locator("#angles").is_visible()
    visit.page.evaluate("location.hash = 'angles'")
    visit.page.locator("#angles").wait_for()
    assert points.last.is_visible()


def test_an_api_can_be_narrowed_to_a_name_also_of_a_method(visit):
    visit.open("chapters/api.html")
    names, status = visit.page.locator("section > dl.py"), visit.page.locator(".filter [role=status]")
    every = names.count()
    visit.page.get_by_label("Show the names with").fill("report.ok")
    seen = [name.locator("dt[id]").first.get_attribute("id") for name in names.all() if name.is_visible()]
    assert seen == ["zero_or_nan.explain.Report", "zero_or_nan.explain.ProbeReport"]  # not explain, which shows it
    assert status.inner_text() == f"2 of {every} names"
    assert not visit.page.locator("#callbacks-for-trainers").is_visible()
    visit.page.evaluate("location.hash = 'callbacks-for-trainers'")
    visit.page.locator("#callbacks-for-trainers").wait_for()
    assert names.last.is_visible()


def test_the_list_of_nodes_is_short_until_a_name_is_typed_or_followed(visit):
    visit.open("chapters/returned-nan-values.html")
    assert visit.page.evaluate("document.documentElement.scrollHeight") <= 12 * 800
    rare, met = visit.page.locator("#node-CumprodBackward0"), visit.page.locator("#node-ExpBackward0")
    assert met.is_visible() and not rare.is_visible()
    visit.page.get_by_label("Show the nodes with").fill("cumprod")
    assert rare.is_visible() and not met.is_visible()
    # A link to a node shows it with its answer, in one screen.
    visit.open("chapters/returned-nan-values.html#node-CumprodBackward0")
    box, said = rare.bounding_box(), visit.page.locator("li:has(> #node-CumprodBackward0)")
    assert not met.is_visible() and 0 < box["y"] < 720 and said.inner_text().startswith("Perhaps: it computes with")
    assert said.bounding_box()["height"] < 200 and said.locator("a", has_text="atlas").is_visible()
    visit.page.evaluate("location.hash = 'all-nodes'")
    met.wait_for()
