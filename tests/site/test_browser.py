"""The site in a real browser, for which no other host exists."""

import json
import math
import struct

import pytest
from scratch import ROOT

from tools.measure.browser import VIEWS, Visit, axe, weigh
from tools.project import Project

PROJECT = Project(ROOT)
PAGES = [*map(PROJECT.path, PROJECT.names)]
ALL = [*PAGES, "search.html", "search.html?q=nan", "genindex.html", "404.html"]
KIB = 1024


def test_every_page_opens_without_a_word_and_asks_no_other_host(visit):
    for path in [*ALL, "", "chapters/welcome.html"]:
        visit.open(path)
        assert visit.troubles == [], path
        assert visit.elsewhere == [], path


def test_the_browser_that_is_used_notices_other_hosts_and_errors(visit):
    visit.open(PAGES[0])
    visit.page.evaluate("""() => { fetch("https://example.org/").catch(() => 0); console.error("broken"); }""")
    visit.page.wait_for_timeout(100)
    assert visit.elsewhere == ["https://example.org/"]
    assert "broken" in visit.troubles


# Each width and each theme once; `make site-report` looks at all four.
@pytest.mark.parametrize("view", ["wide, light", "narrow, dark"])
def test_axe_finds_nothing_on_any_page(browser, address, view):
    with Visit(browser, address, **VIEWS[view]) as tab:
        findings = []
        for path in ALL:
            tab.open(path)
            findings += [f"{path}: {found}" for found in axe(tab, ROOT)]
    assert findings == []


def test_axe_finds_nothing_where_the_contents_are_open_and_the_code_unfolded(phone):
    phone.open("chapters/where-over-exp.html")
    phone.page.locator("a.menu").click()
    phone.page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert axe(phone, ROOT) == []


def test_axe_as_it_is_used_finds_something_where_something_is(visit):
    visit.open(PAGES[0])
    visit.page.evaluate("document.querySelector('main').append(new Image())")
    assert any(found.startswith("image-alt") for found in axe(visit, ROOT))


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_is_wider_than_its_window_and_no_table_scrolls_there(browser, address, width):
    with Visit(browser, address, viewport={"width": width, "height": 900}) as tab:
        for path in ALL:
            tab.open(path)
            tab.page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, path
            wide = tab.page.evaluate(
                """() => [...document.querySelectorAll(".zn-scroll, table")]
                    .filter((each) => each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0)
                    .map((each) => each.textContent.slice(0, 60))"""
            )
            assert wide == [], path


def test_on_a_phone_no_number_is_broken_and_the_text_of_figures_can_be_read(phone):
    seen = {"entries": 0, "figures": 0}
    for path in PAGES:
        phone.open(path)
        broken, entries = phone.page.evaluate(
            """() => {
                const all = [...document.querySelectorAll("td span[class^=zn-], .zn-entries span")]
                    .filter(span => span.checkVisibility() && (span.closest("td") || !span.textContent.includes(" ")));
                return [all.filter(span => span.getClientRects().length > 1).map(span => span.textContent), all.length];
            }"""
        )
        assert broken == [], path
        # A panel is drawn in points; on the page a point is as many pixels as the panel is scaled by.
        small, texts = phone.page.evaluate(
            """() => {
                const all = [...document.querySelectorAll("article figure svg text")].map((text) => {
                    const { a, b } = text.getScreenCTM();
                    return [parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b), text.textContent];
                });
                return [all.filter(([size]) => size < 8), all.length];
            }"""
        )
        assert small == [], path
        seen["entries"] += entries
        seen["figures"] += texts > 0
    assert seen["entries"] > 300 and seen["figures"] >= 5


def test_every_page_is_light(browser, address):
    for path in PAGES:
        with Visit(browser, address) as fresh:
            assert weigh(fresh, path) <= 350 * KIB, path


def test_everything_is_reached_by_keyboard_and_the_focus_is_seen(visit):
    visit.open("chapters/where-over-exp.html")
    page = visit.page
    expected = page.evaluate(
        """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
            .filter((each) => each.checkVisibility()).length"""
    )
    reached, unseen = set(), []
    for step in range(expected + 5):
        page.keyboard.press("Tab")
        at = page.evaluate(
            """() => { const at = document.activeElement; const style = getComputedStyle(at);
                const all = [...document.querySelectorAll("*")];
                return [all.indexOf(at), at.outerHTML.slice(0, 80), style.outlineStyle,
                    parseFloat(style.outlineWidth)]; }"""
        )
        if step == 0:
            assert 'class="skip"' in at[1]
        if "<body" in at[1]:
            break
        reached.add(at[0])
        if at[2] == "none" or at[3] < 2:
            unseen.append(at[1])
    assert unseen == []
    # Sideways code gets its place in the order from a script, and is counted there too.
    assert len(reached) == expected


def test_the_skip_link_leads_past_the_contents(visit):
    visit.open("chapters/where-over-exp.html")
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.querySelector('main').contains(document.activeElement)")


def paper(tab: Visit) -> str:
    return str(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_dark_mode_toggles_and_is_remembered(visit):
    visit.open(PAGES[0])
    light, button = paper(visit), visit.page.get_by_role("button", name="Dark mode")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    dark = paper(visit)
    assert dark != light and button.get_attribute("aria-pressed") == "true"
    visit.open(PAGES[1])
    assert paper(visit) == dark
    visit.page.get_by_role("button", name="Dark mode").click()
    assert paper(visit) == light


def test_the_readers_system_decides_until_the_button_does(browser, address):
    with Visit(browser, address, color_scheme="dark") as tab:
        tab.open(PAGES[0])
        dark = paper(tab)
        tab.page.get_by_role("button", name="Dark mode").click()
        assert paper(tab) != dark


def test_without_storage_the_page_works_all_the_same(visit):
    visit.page.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"
    )
    visit.open(PAGES[0])
    light = paper(visit)
    visit.page.get_by_role("button", name="Dark mode").click()
    assert paper(visit) != light and visit.troubles == []


def test_figures_take_the_colours_of_the_page(visit):
    visit.open("chapters/where-over-exp.html")
    text = visit.page.locator("article figure svg text").first
    colour = "each => getComputedStyle(each).fill"
    light = text.evaluate(colour)
    visit.page.get_by_role("button", name="Dark mode").click()
    assert text.evaluate(colour) != light


@pytest.mark.parametrize("scripts", [True, False])
def test_the_contents_open_over_a_narrow_page(browser, address, scripts):
    with Visit(browser, address, viewport={"width": 360, "height": 740}, java_script_enabled=scripts) as tab:
        tab.open("chapters/slicing-nan.html")
        contents = tab.page.locator("#contents")
        assert not contents.is_visible()
        tab.page.locator("a.menu").click()
        assert contents.is_visible()
        assert contents.locator("a[aria-current=page]").inner_text() == tab.page.locator("h1").inner_text().rstrip("#")
        if scripts:
            tab.page.keyboard.press("Escape")
        else:
            contents.locator("a.close").click()
        assert not contents.is_visible()


QUERIES = {
    "RuntimeError … returned nan values": "where-over-exp",
    "RuntimeError: Function 'AddmmBackward0' returned nan values in its 2th output.": "slicing-nan",
    "gradient nan where": "where-over-exp",
    "nansum grad nan": "nansum-nanmean",
    "52248": "where-over-division",
    "divide by zero mask": "division-under-a-mask",
    "weight gradient nan linear layer sliced rows": "slicing-nan",
    "grad can be implicitly created only for scalar outputs": "backward-gradient-argument",
    "SqrtBackward0 returned nan values": "undefined",
    "std of one element nan": "undefined",
    "fully masked attention row nan": "undefined",
    "gradient of the distance of equal points": "undefined",
    "5.9605e-08": "float-round-off",
    "fix nan gradient without changing forward code": "ignoring-what-the-loss-ignored",
    "gradient of relu at 0, of clamp at its bound": "what-counts-as-ignored",
    "amax nan gradient tie": "what-counts-as-ignored",
    "what is a cotangent": "glossary",
    "how slow is ignoring": "what-it-costs",
    "pip install": "use-it-in-your-project",
    "Lightning manual_backward nan": "use-it-in-your-project",
    "GradScaler mixed precision": "use-it-in-your-project",
    "FSDP": "use-it-in-your-project",
    "ignoring could not follow": "operators-of-your-own",
    "torch.library custom operator": "operators-of-your-own",
    "nanmeen": "nansum-nanmean",
}


@pytest.mark.parametrize("query", QUERIES)
def test_the_search_leads_to_the_right_chapter_first(visit, query):
    visit.open("chapters/references.html")
    box = visit.page.locator("header input[name=q]")
    box.fill(query)
    box.press("Enter")
    first = visit.page.locator("#results a").first
    first.wait_for()
    assert visit.page.url.startswith(f"{visit.address}/search.html?q=")
    assert first.get_attribute("href").partition("#")[0] == f"chapters/{QUERIES[query]}.html"
    assert query in visit.page.locator("#found").inner_text()
    assert visit.troubles == [] and visit.elsewhere == []
    first.click()
    assert f"/{QUERIES[query]}.html" in visit.page.url


def test_a_search_that_finds_nothing_says_so(visit):
    visit.open("search.html?q=zzzzqqq")
    assert "Nothing found for “zzzzqqq”" in visit.page.locator("#found").inner_text()
    assert visit.page.locator("#results li").count() == 0


def test_a_query_is_text_and_never_a_part_of_the_page(visit):
    visit.open("search.html?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%20nan%20(%5B")
    assert visit.page.locator("main img").count() == 0
    assert "<img src=x" in visit.page.locator("#found").inner_text()
    assert visit.troubles == []


def test_ways_can_be_switched_off_and_differing_entries_are_marked(visit):
    visit.open("chapters/where-over-exp.html")
    table = visit.page.locator("table[data-verdict]")
    marked, hidden = table.locator("tbody tr.zn-differs"), table.locator("tbody td:nth-child(3)").first
    assert [row.split()[-1] for row in marked.locator("th").all_inner_texts()] == ["90", "100"]
    assert hidden.is_visible()
    visit.page.get_by_label("vanilla", exact=True).uncheck()
    assert not hidden.is_visible() and marked.count() == 0
    assert not table.get_by_role("columnheader", name="vanilla").is_visible()
    assert "ways shown: 0 of 11." in visit.page.locator(".zn-note[role=status]").inner_text()
    visit.page.get_by_label("vanilla", exact=True).check()
    visit.page.get_by_label("only entries that differ").check()
    shown = [row.locator("th").inner_text() for row in table.locator("tbody tr").all() if row.is_visible()]
    assert [row.split()[-1] for row in shown] == ["90", "100"]
    visit.page.get_by_label("vanilla", exact=True).uncheck()
    assert visit.page.get_by_label("only entries that differ").is_disabled()
    assert all(row.is_visible() for row in table.locator("tbody tr").all()), "a table without rows says nothing"


def test_marked_entries_are_those_that_the_verdict_counts(visit, facts):
    for fact in facts:
        if fact["type"] != "verdict":
            continue
        visit.open(f"chapters/{fact['page']}.html")
        tables = visit.page.locator("table[data-verdict]").all()
        (table,) = [each for each in tables if f"Verdict on {fact['quantity']}" == each.locator("caption").inner_text()]
        for way, counts in fact["entries"].items():
            words = table.locator("tbody [data-judged]").evaluate_all(
                "(marks, way) => marks.filter((mark) => mark.closest('td').dataset.head === way)"
                ".map((mark) => mark.dataset.judged)",
                heading(way),
            )
            assert {word: words.count(word) for word in words} == counts, (fact["page"], way)


def heading(way: str) -> str:
    from helpers import WAYS

    return WAYS[way].title


def test_without_scripts_the_full_verdict_and_the_executed_samples_stand(browser, address):
    with Visit(browser, address, java_script_enabled=False) as tab:
        for name in ("where-over-exp", "float-round-off"):
            tab.open(f"chapters/{name}.html")
            cells = tab.page.locator("table[data-verdict] :is(td, th)")
            assert cells.count() > 40
            assert all(cell.is_visible() for cell in cells.all() if cell.inner_text())
            assert tab.page.locator(".zn-ways, .zn-try, button.copy, button.theme:visible").count() == 0
            assert tab.page.locator("[data-control] table").is_visible()


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def bits(value: float, precision: str) -> int:
    """The number's place among those of its precision."""
    return int.from_bytes(struct.pack(">f" if precision == "float32" else ">d", abs(value)), "big")


# exp is not the same on every processor; the rest is fixed by IEEE 754.
@pytest.mark.parametrize(("name", "ulps"), [("where-over-exp", 2), ("float-round-off", 0)])
def test_a_control_agrees_with_the_executed_cells(visit, name, ulps):
    visit.open(f"chapters/{name}.html")
    place = visit.page.locator("[data-control]")
    samples = json.loads(place.get_attribute("data-samples"))
    assert len(samples) >= 8
    inputs = {each.get_attribute("data-input"): each for each in place.locator("[data-input]").all()}
    assert inputs and set(inputs) < set(samples[0])
    compared = 0
    for sample in samples:
        for field, control in inputs.items():
            if control.get_attribute("type") == "range":
                control.evaluate(
                    "(control, value) => { control.value = value; control.dispatchEvent(new Event('input')); }",
                    sample[field],
                )
                assert float(control.input_value()) == float(sample[field])
            else:
                control.select_option(sample[field])
        precision = sample.get("precision", "float32")
        results = place.locator("[data-result]").all()
        assert {each.get_attribute("data-result") for each in results} == set(sample) - set(inputs)
        for result in results:
            field = result.get_attribute("data-result")
            got, want = number(result.get_attribute("data-value")), number(sample[field])
            where = f"{field} of {sample}"
            assert math.isnan(got) == math.isnan(want), where
            if not math.isnan(want):
                assert (got < 0) == (want < 0), where
                assert abs(bits(got, precision) - bits(want, precision)) <= ulps, where
            compared += 1
    assert compared >= 30


def test_a_control_is_moved_by_keyboard_and_shows_the_cliff(visit):
    visit.open("chapters/where-over-exp.html")
    slider = visit.page.get_by_label("x", exact=True)
    gradient = visit.page.locator("[data-result='x.grad, vanilla']")
    slider.focus()
    assert gradient.inner_text() == "NaN"
    for _ in range(4):
        visit.page.keyboard.press("ArrowLeft")
    assert visit.page.locator(".zn-try output").inner_text() == "x = 88"
    assert gradient.inner_text() == "0"


def test_every_control_on_a_page_is_one_that_the_script_knows(pages):
    script = (ROOT / "theme" / "static" / "control.js").read_text(encoding="utf-8")
    names = [tag["data-control"] for soup in pages.values() for tag in soup.select("[data-control]")]
    assert sorted(names) == ["round-off", "where-over-exp"]
    assert all(f'"{name}": {{' in script for name in names)


def test_code_can_be_copied(visit):
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.open("chapters/where-over-exp.html")
    block = visit.page.locator("#what-to-do .highlight").first
    block.hover()
    block.get_by_role("button", name="Copy this code").click()
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("condition = x < 0\n") and "ignoring.backward(loss)" in copied


def test_code_that_can_not_be_copied_is_selected(visit):
    visit.page.add_init_script("delete Navigator.prototype.clipboard")
    visit.open("chapters/where-over-exp.html")
    block = visit.page.locator("#what-to-do .highlight").first
    block.hover()
    block.get_by_role("button", name="Copy this code").click()
    assert visit.page.evaluate("getSelection().toString()").startswith("condition = x < 0")


def test_an_address_that_does_not_exist_leads_on(visit):
    response = visit.open("chapters/deep/in/nowhere.html")
    assert response.status == 404
    assert "does not exist" in visit.page.locator("h1").inner_text()
    assert visit.elsewhere == []
    for link in visit.page.locator("a").all():
        target = link.get_attribute("href")
        assert target.startswith((PROJECT.site_url, PROJECT.repository)), target


def test_print_leaves_the_text_alone_on_the_page(visit):
    visit.open("chapters/where-over-exp.html")
    visit.page.emulate_media(media="print", color_scheme="dark")
    for gone in ("header.top", "#contents", ".sections", ".actions", ".neighbours", ".zn-ways", ".zn-try"):
        assert not visit.page.locator(gone).first.is_visible(), gone
    assert visit.page.locator("article h1").is_visible()
    assert visit.page.evaluate("getComputedStyle(document.body).color").startswith("rgb(28, 33, 40")
    assert len(visit.page.pdf(format="A4")) > 20_000


def test_kinds_of_entries_are_told_apart_without_colour(visit):
    visit.open("chapters/where-over-exp.html")
    looks = {
        kind: visit.page.evaluate(
            """(kind) => { const span = document.createElement("span"); span.className = `zn-${kind}`;
                document.querySelector(".zn").append(span); const style = getComputedStyle(span);
                return [style.textDecorationStyle, style.textDecorationLine, style.fontWeight, style.borderStyle]; }""",
            kind,
        )
        for kind in ("nan", "inf", "zero", "masked", "finite")
    }
    assert len({json.dumps(look) for look in looks.values()}) == len(looks)
