"""The site in a real browser, for which no other host exists."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from sample import WHOLE, sample
from scratch import ROOT

from tools.measure.browser import VIEWS, Visit, axe, weigh
from tools.project import Project

PROJECT = Project(ROOT)
PAGES = [*map(PROJECT.path, PROJECT.names)]
ALL = [*PAGES, "search.html", "search.html?q=nan", "search.html?q=zzzzqqq", "genindex.html", "404.html"]
COLOURS = sample(ALL, 4)
KIB = 1024


WIDER_THAN_ITS_CELL = """() => {
    const cells = [...document.querySelectorAll(".zn-releases td")];
    const inside = (cell) => (part) => {
        const [outer, inner] = [cell, part].map((each) => each.getBoundingClientRect());
        return outer.left <= inner.left && inner.right <= outer.right;
    };
    return [cells.filter((cell) => ![...cell.querySelectorAll("span, a")].every(inside(cell)))
        .map((cell) => cell.textContent), cells.length];
}"""
OPEN_ALL = "for (const each of document.querySelectorAll('details')) each.open = true"
BROKEN_NUMBERS = """() => {
    const all = [...document.querySelectorAll("td span[class^=zn-], .zn-entries span")]
        .filter(span => span.checkVisibility() && !span.textContent.includes(" "));
    const lines = (span) => new Set([...span.getClientRects()].map((box) => box.top)).size;
    return [all.filter(span => lines(span) > 1).map(span => span.textContent), all.length];
}"""
# A drawing is scaled to the page. 10 px here are 11 px on a phone that is 390 px wide.
SMALL_TEXTS = """() => {
    const texts = [...document.querySelectorAll("article figure svg text")];
    const all = texts.filter((text) => text.getBoundingClientRect().width).map((text) => {
        const { a, b } = text.getScreenCTM();
        return [parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b), text.textContent];
    });
    return [all.filter(([size]) => size < 10), all.length];
}"""
SCROLLING = """() => [...document.querySelectorAll(".zn-scroll, table")]
    .filter((each) => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0)
    .map((each) => each.textContent.slice(0, 60))"""


FOCUSABLE = """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
    .filter((each) => each.checkVisibility()).length"""
FOCUSED = """() => {
    const at = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(at);
    const is_seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
    return [[...document.querySelectorAll("*")].indexOf(at), at.outerHTML.slice(0, 80), is_seen];
}"""


# Each width and each theme once.
TWO = ["wide, light", "narrow, dark"]


def look(tab: Visit, path: str, first: str) -> dict[str, SimpleNamespace]:
    """What one visit of a page showed, by view: tests about all pages share the visits, which take long.

    The page is loaded, weighed, and checked by axe in one view, and then shown in the other one, too. All pages have
    one style sheet, so axe looks at the colours of some pages.
    """
    seen = {view: SimpleNamespace() for view in sorted(TWO, key=lambda view: view != first)}
    tab.show(**VIEWS[first])
    size = weigh(tab, path)
    for view, page in seen.items():
        tab.show(**VIEWS[view])
        places = (tab.page.locator(f"#at-a-glance{each}").first for each in ("", " .cell .cell_output"))
        page.glance, page.fix = (each.bounding_box() if each.count() else None for each in places)
        page.height = tab.page.evaluate("document.documentElement.scrollHeight")
        page.broken, page.small = tab.page.evaluate(BROKEN_NUMBERS), tab.page.evaluate(SMALL_TEXTS)
        is_loaded = view == first or WHOLE
        page.size, page.axe = (size, axe(tab, ROOT, path in COLOURS)) if is_loaded else (0, None)
    tab.page.evaluate(OPEN_ALL)
    for view in reversed(seen):
        tab.show(**VIEWS[view])
        seen[view].width = tab.page.evaluate("document.documentElement.scrollWidth")
        seen[view].scrolling = tab.page.evaluate(SCROLLING)
    for page in seen.values():
        page.troubles, page.elsewhere = list(tab.troubles), list(tab.elsewhere)
    return seen


@pytest.fixture(scope="module")
def visits(browser: Any, address: str) -> dict[str, dict[str, SimpleNamespace]]:
    """Every page, by view. Half of the pages are loaded in one view, and half in the other one."""
    narrow_first = sample(ALL, 2)
    with Visit(browser, address) as tab:
        return {path: look(tab, path, TWO[path in narrow_first]) for path in [*ALL, ""]}


@pytest.fixture(params=TWO)
def view(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def seen(visits: dict[str, dict[str, SimpleNamespace]], view: str) -> dict[str, SimpleNamespace]:
    """Every page, in one view."""
    return {path: page[view] for path, page in visits.items()}


def test_every_page_is_light_opens_without_a_word_and_asks_no_other_host(seen):
    for path, page in seen.items():
        assert (page.troubles, page.elsewhere) == ([], []), path
        assert page.size <= 350 * KIB, path


def test_axe_finds_nothing_on_any_page(seen):
    looked_at = {path: page.axe for path, page in seen.items() if page.axe is not None}
    assert len(looked_at) >= len(ALL) // 2 and {path: found for path, found in looked_at.items() if found} == {}


def test_no_page_is_wider_than_its_window_and_no_table_scrolls_there(seen, view):
    for path, page in seen.items():
        assert page.width <= VIEWS[view]["viewport"]["width"], path
        assert page.scrolling == [], path


def test_the_lines_to_copy_and_what_they_print_are_in_the_first_screen_of_a_wide_window(seen, view):
    boxes = {path: page.fix for path, page in seen.items() if page.fix}
    assert len(boxes) >= 8
    if view.startswith("wide"):
        for path, box in boxes.items():
            assert box["y"] + box["height"] <= 900, path


def test_at_a_glance_fits_on_one_screen_of_a_laptop_and_on_two_of_a_phone(seen, view):
    heights = {path: page.glance["height"] for path, page in seen.items() if page.glance}
    assert len(heights) >= 28
    most = 800 if view.startswith("wide") else 2 * 844
    assert {path: height for path, height in heights.items() if height > most} == {}


def test_no_page_is_longer_than_20_screens_of_a_laptop_but_lists_with_a_filter(seen, view):
    if view.startswith("wide"):
        long = {path for path, page in seen.items() if page.height > 20 * 800}
        assert long == {"chapters/api.html", "chapters/api-helpers.html"}


def test_no_number_is_broken_and_the_text_of_figures_can_be_read(seen):
    for path, page in seen.items():
        assert page.broken[0] == [], path
        assert page.small[0] == [], path
    assert sum(page.broken[1] for page in seen.values()) > 300
    assert sum(page.small[1] > 0 for page in seen.values()) >= 5


def test_no_result_of_a_release_is_wider_than_its_cell(visit):
    visit.open("chapters/which-pytorch.html")
    for width in (1280, 800, 390):
        visit.page.set_viewport_size({"width": width, "height": 900})
        wider, cells = visit.page.evaluate(WIDER_THAN_ITS_CELL)
        assert wider == [] and cells > 40, width
        assert visit.page.locator(".zn-releases .zn-mark:visible").count() >= cells


def test_the_text_of_tables_is_as_large_as_prose_if_there_is_room(visit):
    visit.open("")
    prose, table = (visit.page.locator(f"article {each}").first for each in ("p", "table.docutils td"))
    size = "each => getComputedStyle(each).fontSize"
    assert table.evaluate(size) == prose.evaluate(size)


def test_everything_is_reached_by_keyboard_and_the_focus_is_seen(visit):
    visit.open("chapters/where-over-exp.html")
    expected = visit.page.evaluate(FOCUSABLE)
    reached = {}
    for _ in range(expected + 5):
        visit.page.keyboard.press("Tab")
        at, text, is_seen = visit.page.evaluate(FOCUSED)
        if "<body" in text:
            break
        reached[at] = text, is_seen
    assert 'class="skip"' in next(iter(reached.values()))[0]
    assert [text for text, is_seen in reached.values() if not is_seen] == []
    # Sideways code gets its place in the order from a script, and is counted there too.
    assert len(reached) == expected


def paper(tab: Visit) -> str:
    return str(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_readers_system_decides_the_theme_until_the_button_does_and_it_is_remembered(visit):
    visit.page.emulate_media(color_scheme="dark")
    visit.open(PAGES[0])
    dark, button = paper(visit), visit.page.get_by_role("button", name="Dark mode")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    light = paper(visit)
    assert light != dark and button.get_attribute("aria-pressed") == "false"
    visit.open("chapters/where-over-exp.html")
    assert paper(visit) == light
    text, colour = visit.page.locator("article figure svg text:visible").first, "each => getComputedStyle(each).fill"
    before = text.evaluate(colour)
    visit.page.get_by_role("button", name="Dark mode").click()
    assert paper(visit) == dark and text.evaluate(colour) != before  # a figure takes the colours of the page


@pytest.mark.parametrize("scripts", [True, False])
def test_the_contents_open_over_a_narrow_page(browser, address, scripts):
    """Axe finds nothing there, and none in the code if it is unfolded."""
    with Visit(browser, address, viewport={"width": 360, "height": 740}, java_script_enabled=scripts) as tab:
        tab.open("chapters/where-over-exp.html")
        contents = tab.page.locator("#contents")
        assert not contents.is_visible()
        tab.page.locator("a.menu").click()
        assert contents.is_visible()
        assert tab.page.locator("#contents a[aria-current=page]").text_content() == "where over exp"
        if scripts:
            tab.page.evaluate(OPEN_ALL)
            assert axe(tab, ROOT) == []
            tab.page.keyboard.press("Escape")
        else:
            contents.locator("a.close").click()
        assert not contents.is_visible()
        tab.page.locator("a.menu").click()
        contents.get_by_role("link", name="Results compared").click()  # a section of this page
        assert not contents.is_visible() and tab.page.url.endswith("#results-compared")


def focused(tab: Visit) -> str:
    return str(tab.page.evaluate("document.activeElement.type || document.activeElement.className"))


def test_a_key_leads_to_the_search_box_and_escape_back_and_can_be_switched_off(visit, phone):
    visit.open("chapters/where-over-exp.html")
    page, box = visit.page, visit.page.locator("header input")
    page.locator(".actions a.source").first.focus()
    page.keyboard.press("/")
    page.keyboard.type("x/0")
    assert focused(visit) == "search" and box.input_value() == "x/0"
    page.keyboard.press("Escape")
    assert focused(visit) == "source" and box.input_value() == "x/0"
    page.keyboard.press("Control+/")
    assert focused(visit) == "source"
    page.locator(".zn-try input[type=range]").focus()
    page.keyboard.press("/")
    assert focused(visit) == "search"
    # Where there is no room for the box, the key leads to the search page.
    phone.open("chapters/where-over-exp.html")
    phone.page.keyboard.press("/")
    phone.page.wait_for_url("**/search.html*")
    assert focused(phone) == "search"
    visit.open("search.html")
    page.get_by_label("The key / leads to the search from every page").uncheck()
    visit.open(PAGES[0])
    page.keyboard.press("/")
    assert focused(visit) != "search" and not page.locator("form.search kbd").is_visible()
    assert box.get_attribute("aria-keyshortcuts") is None


def reported(tab: Visit) -> str:
    """What a report has in it, when its reader is about to follow the link."""
    tab.page.locator("a.report").focus()
    body = "() => new URL(document.querySelector('a.report').href).searchParams.get('body')"
    return str(tab.page.evaluate(body))


def test_a_report_says_at_which_place_of_the_page(visit):
    path = "chapters/where-over-exp.html"
    address = f"{PROJECT.site_url}/{path}"
    visit.open(path)
    before = reported(visit)
    assert f"\n{address}\n" in before
    visit.open(f"{path}#claim-10729-vanilla-y")
    assert f"\n{address}#claim-10729-vanilla-y\n> vanilla · y = " in reported(visit)
    visit.page.locator(".sections a[href='#why']").click()
    there = reported(visit)
    assert f"\n{address}#why\n> Why\n" in there and "claim-10729" not in there
    for nowhere in ("#no-such-place", "#%", "#main"):
        visit.open(f"{path}{nowhere}")
        assert reported(visit) == before and visit.troubles == []


def test_ways_can_be_switched_off_and_differing_entries_are_marked(visit):
    visit.open("chapters/where-over-exp.html")
    table = visit.page.locator("table[data-verdict]")
    marked, hidden = table.locator("tbody tr.zn-differs"), table.locator("tbody td:nth-child(3)").first
    assert [row.split()[-1] for row in marked.locator("th").all_inner_texts()] == ["90", "100"]
    assert hidden.is_visible()
    visit.page.get_by_label("vanilla", exact=True).uncheck()
    assert not hidden.is_visible() and marked.count() == 0
    assert not table.get_by_role("columnheader", name="vanilla").is_visible()
    assert "methods shown: 0 of 11." in visit.page.locator(".zn-note[role=status]").inner_text()
    visit.page.get_by_label("vanilla", exact=True).check()
    visit.page.get_by_label("only elements that differ").check()
    shown = [row.locator("th").inner_text() for row in table.locator("tbody tr").all() if row.is_visible()]
    assert [row.split()[-1] for row in shown] == ["90", "100"]
    visit.page.get_by_label("vanilla", exact=True).uncheck()
    assert visit.page.get_by_label("only elements that differ").is_disabled()
    assert all(row.is_visible() for row in table.locator("tbody tr").all()), "a table without rows says nothing"


def test_without_scripts_the_full_verdict_and_the_executed_samples_stand(browser, address):
    with Visit(browser, address, java_script_enabled=False) as tab:
        for name in ("where-over-exp", "float-round-off"):
            tab.open(f"chapters/{name}.html")
            cells = tab.page.locator("table[data-verdict] :is(td, th)")
            assert cells.count() > 40
            assert all(cell.is_visible() for cell in cells.all() if cell.inner_text())
            assert tab.page.locator(".zn-methods, .zn-try, button.copy, button.theme:visible").count() == 0
            assert tab.page.locator("[data-control] table").is_visible()
        assert tab.page.locator(".cell.tag_hide-cell:not(.tag_solution)").first.is_visible()


@pytest.mark.parametrize("name", ["where-over-exp", "float-round-off"])
def test_a_control_shows_what_it_computes_from_what_a_reader_chose(visit, name):
    visit.open(f"chapters/{name}.html")
    place = visit.page.locator("[data-control]")
    change = "(field, value) => { field.value = value; field.dispatchEvent(new Event('input')); }"
    for stated in json.loads(place.get_attribute("data-samples")):
        for field in place.locator("[data-input]").all():
            field.evaluate(change, stated[field.get_attribute("data-input")])
        shown = {
            each.get_attribute("data-result"): each.get_attribute("data-value")
            for each in place.locator("[data-result]").all()
        }
        given = {head: float(stated[head].replace("−", "-")) for head in shown}
        assert given == pytest.approx({head: float(text) for head, text in shown.items()}, rel=1e-6, abs=0, nan_ok=True)
        assert len(shown) > 3 and visit.troubles == []


def test_a_link_to_a_folded_claim_leads_to_it_unfolded(visit):
    place = "claim-10729-vanilla-x-grad"
    visit.open(f"chapters/where-over-exp.html#{place}")
    claim = visit.page.locator(f"#{place}")
    assert claim.is_visible()
    top = "document.getElementById(id).getBoundingClientRect().top"
    visit.page.wait_for_function(f"(id) => 0 <= {top} && {top} < 900", arg=place)
    assert claim.get_by_role("link", name="Link to this result").get_attribute("href") == f"#{place}"


def test_code_is_copied_or_selected(visit):
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.open("chapters/where-over-exp.html")
    code = visit.page.locator("#at-a-glance .highlight").first
    code.hover()
    code.get_by_role("button", name="Copy this code").click()
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("import torch\n") and copied.rstrip().endswith("print(x.grad)")
    visit.page.add_init_script("delete Navigator.prototype.clipboard")
    visit.open("chapters/where-over-exp.html")
    code.hover()
    code.get_by_role("button", name="Copy this code").click()
    assert visit.page.evaluate("getSelection().toString()").startswith("import torch")


def test_an_address_that_does_not_exist_leads_on(visit):
    response = visit.open("chapters/deep/in/nowhere.html")
    assert response.status == 404
    assert "does not exist" in visit.page.locator("h1").inner_text()
    assert visit.elsewhere == []
    for link in visit.page.locator("a").all():
        target = link.get_attribute("href")
        assert target.startswith((PROJECT.site_url, PROJECT.repository)), target
    header = visit.page.locator("header a")
    assert header.all_inner_texts() == ["Zero or NaN?", "Search", "Repository"]
    assert header.first.get_attribute("href") == f"{PROJECT.site_url}/"


def test_no_kind_of_element_looks_like_a_link_or_a_spelling_mistake_and_each_has_a_sign_without_colour(visit):
    visit.open("chapters/where-over-exp.html")
    looks = {
        kind: visit.page.evaluate(
            """(kind) => { const span = document.createElement("span"); span.className = `zn-${kind}`;
                document.querySelector(".zn").append(span); const style = getComputedStyle(span);
                return [style.textDecorationLine, style.fontWeight, style.borderBottomStyle]; }""",
            kind,
        )
        for kind in ("nan", "inf", "zero", "masked", "finite")
    }
    bold, plain = ["none", "700", "none"], ["none", "400", "none"]
    assert looks == {"nan": bold, "inf": bold, "zero": plain, "masked": ["none", "400", "dashed"], "finite": plain}


def test_on_a_phone_a_line_of_code_goes_on_further_to_the_right_and_its_text_stays_the_same(visit, phone):
    codes = []
    for tab in (visit, phone):
        tab.open("chapters/where-over-exp.html")
        codes.append(tab.page.locator(".cell_input pre").all_text_contents())
    assert codes[0] == codes[1]
    assert not visit.page.locator(".line").count()
    left = """lines => lines.map((line) => {
        const range = document.createRange();
        range.selectNodeContents(line);
        const boxes = [...range.getClientRects()].filter((box) => box.width);
        const [first] = boxes;
        return boxes.filter((box) => box.top > first.bottom).map((box) => box.left - first.left);
    })"""
    wrapped = [found for found in phone.page.locator(".cell_input .line").evaluate_all(left) if found]
    assert wrapped and min(min(found) for found in wrapped) > 10
