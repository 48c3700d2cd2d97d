"""What the search of the built site finds: first the page that a query asks for, and few others."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from scratch import ROOT

from helpers.nodes import nodes
from tools.measure.browser import VIEWS, Visit, axe
from tools.project import Project

PROJECT = Project(ROOT)
TITLES = ROOT / "tests" / "site" / "queries.json"

SEARCHES = tomllib.loads((ROOT / "tests" / "site" / "searches.toml").read_text(encoding="utf-8"))
TWO_PAGES = "RuntimeError: Function 'DivBackward0' returned nan values in its 0th output."


@pytest.fixture(scope="module")
def searched(browser: Any, address: str) -> Iterator[Any]:
    """The search page, with the book that its script makes of the index."""
    with Visit(browser, address, **VIEWS["wide, light"]) as tab:
        tab.open("search.html")
        tab.page.evaluate("async () => { window.book = new Book(await fetched('search.json')); await book.ready; }")
        tab.page.evaluate("async () => { window.list = await fetched('messages.json'); }")
        yield tab.page


def find(searched: Any, query: str, book: str = "window.book") -> dict[str, Any]:
    """What is found, and of each page the name and its best section's address."""
    return dict(
        searched.evaluate(
            f"""(query) => {{
                const {{ words, pages, about }} = {book}.find(query);
                return {{
                    about,
                    pages: pages.map((page) => page.sections[0].address.split("#")[0]),
                    best: pages.map((page) => page.sections[0].address),
                    lacks: pages.map((page) => page.lacks.map((word) => word.unit)),
                    unknown: words.filter((word) => !word.terms.length).map((word) => word.unit),
                    instead: Object.fromEntries(
                        words.filter((word) => word.instead).map((word) => [word.unit, word.terms])),
                }};
            }}""",
            query,
        )
    )


@pytest.mark.parametrize("query", SEARCHES["found"])
def test_the_page_that_a_query_asks_for_comes_first_and_few_others_come(searched, query):
    expected, found = SEARCHES["found"][query], find(searched, query)
    assert found["about"], found
    assert found["pages"][0] in [PROJECT.path(f"chapters/{page}") for page in expected["first"]], found
    assert len(found["pages"]) <= expected["most"], found


@pytest.mark.parametrize("query", SEARCHES["no_page"])
def test_what_no_page_is_about_is_said_to_be_so(searched, query):
    found = find(searched, query)
    assert not found["about"], found
    assert len(found["pages"]) <= SEARCHES["no_page"][query], found


def test_a_message_of_two_cases_leads_to_both_before_all_others(searched):
    found = find(searched, TWO_PAGES)
    cases = {PROJECT.path(f"chapters/{name}") for name in ("where-over-division", "division-under-a-mask")}
    assert set(found["pages"][:2]) == cases and len(found["pages"]) <= 4
    assert found["lacks"][:2] == [[], []] and all(lacks == ["DivBackward0"] for lacks in found["lacks"][2:])


def shown(searched: Any, query: str) -> tuple[bool, list[str]]:
    """Whether the search page has pages about a query, and the names of its pages."""
    about, *pages = searched.evaluate(
        """(query) => {
            const { about, advice, pages } = answered(book, list, query);
            return [about, ...[...advice, ...pages.map((page) => page.sections[0])].map(({ address }) => address)];
        }""",
        query,
    )
    return about, [page.removeprefix("chapters/").partition(".html")[0] for page in pages]


@pytest.mark.parametrize(("half", "first", "three"), [("work", 0.89, 0.9), ("held", 0.8, 0.87)])
def test_queries_from_titles_of_threads_lead_to_a_page_that_answers_them(searched, half, first, three):
    asked = [entry for entry in json.loads(TITLES.read_text(encoding="utf-8")) if entry["half"] == half]
    right, among = [], []
    for entry in asked:
        about, names = shown(searched, entry["query"])
        expected = [name in entry["expect"] for name in names] if entry["expect"] else [not about]
        right.append(expected[:1] == [True])
        among.append(any(expected[:3]))
    assert len(asked) >= 60 and sum(right) >= first * len(asked) and sum(among) >= three * len(asked)


def test_the_list_of_messages_adds_what_it_knows_and_nothing_else(searched):
    assert shown(searched, "torch not compiled with cuda")[0] is False
    for query, page in (("why is 0*inf nan", "where-over-exp"), ("torch.prod func.grad nan zeros", "atlas")):
        about, names = shown(searched, query)
        assert about and names[0] == page and len(set(names)) == len(names)


def test_no_query_of_common_words_finds_every_page(searched):
    for query in ("gradient", "nan", "gradient nan", "pytorch gradient nan"):
        assert 1 <= len(find(searched, query)["pages"]) <= 8 < len(PROJECT.pages)


def test_words_that_no_page_has_are_named_and_a_name_of_code_is_never_misspelt(searched):
    assert find(searched, "nansum foobarbaz")["unknown"] == ["foobarbaz"]
    assert find(searched, "nanmeen")["instead"] == {"nanmeen": ["nanmean"]}
    # One letter from ExpBackward0 and from nan_to_num: another operator, and not a slip.
    assert find(searched, "ErpBackward0")["instead"] == {"ErpBackward0": ["xbackward0"]}
    assert "nan_to_num" not in str(find(searched, "nan_to_nun")["instead"])
    assert find(searched, "10728")["unknown"] == ["10728"] and find(searched, "5.97e-08")["unknown"] == ["5.97e-08"]


def test_every_node_of_pytorch_leads_to_a_page_about_it_or_to_its_row(searched, site):
    records = json.loads((site / "search.json").read_text(encoding="utf-8"))
    about = {}
    for record in records:
        if not record.get("fallback"):
            named = " ".join([record.get("keywords", ""), record["heading"], record.get("own", ""), record["rows"]])
            own = record["text"] if "own" in record or record["address"].endswith("#at-a-glance") else ""
            page = record["address"].partition("#")[0]
            about.setdefault(page, set()).update(re.findall(r"\w+", f"{named} {own}"))
    recipe = PROJECT.path("chapters/returned-nan-values")
    wrong = {}
    for number, name in enumerate(nodes()):
        # The whole message of some, which takes longer.
        found = find(searched, name if number % 9 else f"RuntimeError: Function '{name}' returned nan values.")
        first, best = found["pages"][0], found["best"][0]
        named = {page for page, words in about.items() if name in words}
        right = first in named if named else best == f"{recipe}#node-{name}"
        if not (found["about"] and right):
            wrong[name] = best
    assert wrong == {} and number > 500


def test_a_search_from_any_page_leads_to_the_page_that_it_shows_first_and_leaves_the_browser_in_no_way(visit):
    visit.open("chapters/references.html")
    asked = []
    visit.page.on("request", lambda request: asked.append([request.url, request.post_data]))
    box = visit.page.locator("header input")
    box.fill("nansum grad nan")
    box.press("Enter")
    first = visit.page.locator("#results a").first
    first.wait_for()
    assert visit.page.url == f"{visit.address}/search.html" and "nansum" not in str(asked)
    kept = "[history.state, localStorage.length, sessionStorage.length, document.cookie]"
    assert visit.page.evaluate(kept) == [None, 0, 0, ""]
    assert "nansum grad nan" in visit.page.locator("#found").inner_text()
    assert visit.page.locator("#results mark", has_text="nansum").count() >= 1
    assert not visit.page.locator("#none").is_visible()
    assert visit.troubles == [] and visit.elsewhere == []
    # Another query on the search page, in the same way.
    visit.page.get_by_label("Search", exact=True).fill("zzzzqqq")
    visit.page.keyboard.press("Enter")
    visit.page.locator("#none").wait_for()
    assert visit.page.url == f"{visit.address}/search.html" and visit.page.locator("#results a").count() == 0
    visit.page.get_by_label("Search", exact=True).fill("nansum grad nan")
    visit.page.keyboard.press("Enter")
    first.wait_for()
    visit.page.wait_for_timeout(300)  # a suggestion that comes late must not cover the results
    first.click(timeout=3000)
    assert "/chapters/nansum-nanmean.html" in visit.page.url


def test_without_scripts_the_box_leads_to_the_search_page_and_sends_nothing(browser, address):
    with Visit(browser, address, java_script_enabled=False) as tab:
        tab.open("chapters/references.html")
        tab.page.locator("header input").fill("secret")
        tab.page.locator("header input").press("Enter")
        tab.page.wait_for_url("**/search.html*")
        tab.page.get_by_label("Search", exact=True).fill("secret")
        tab.page.get_by_role("button", name="Search").click()
        assert "secret" not in tab.page.url and tab.page.locator("noscript").inner_text()


@pytest.mark.parametrize("path", ["chapters/references.html", "search.html"])
def test_a_box_suggests_pages_while_one_types_which_moves_nothing(visit, path):
    visit.open(path)
    page, box = visit.page, visit.page.locator("form[role=search] input")
    page.evaluate("""() => {
        window.moved = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.moved += each.value)))
            .observe({ type: "layout-shift" });
    }""")
    box.focus()
    page.keyboard.type("sqrt at 0")
    shown = page.get_by_role("option")
    shown.first.wait_for()
    assert 1 < shown.count() <= 5 and "Roots and powers" in shown.nth(1).inner_text()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    assert page.locator("[aria-selected=true]").count() == 0, "between the last and the first is the box"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert box.get_attribute("aria-activedescendant") == shown.nth(1).get_attribute("id")
    assert shown.nth(1).get_attribute("aria-selected") == "true" and box.get_attribute("aria-expanded") == "true"
    assert axe(visit, ROOT) == []
    page.keyboard.press("Escape")
    assert page.get_by_role("option").count() == 0 and box.get_attribute("aria-expanded") == "false"
    assert box.input_value() == "sqrt at 0" and box.evaluate("(box) => box === document.activeElement")
    box.fill("sqrt at 0 ")
    shown.first.wait_for()
    box.fill("zzzzqqq")  # no page is about it
    shown.first.wait_for(state="hidden")
    box.fill("sqrt at 0")
    shown.first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("window.moved") == 0 and visit.troubles == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/chapters/atlas.html#roots-and-powers")


def test_where_the_symptom_stands_on_a_page_it_is_shown(visit):
    visit.open("search.html?q=RuntimeError: Function 'ExpBackward0' returned nan values in its 0th output.")
    shown = visit.page.locator("#results li").first
    assert shown.locator("a").first.get_attribute("href") == "./chapters/where-over-exp.html"
    marks = shown.locator("mark").all_inner_texts()
    assert {"ExpBackward0", "0th", "output"} <= set(marks)


@pytest.mark.parametrize("query", ["zzzzqqq", "torch.cumprod_backward"])
def test_a_search_that_finds_no_page_says_so_and_what_to_do(visit, query):
    visit.open(f"search.html?q={query}")
    said = visit.page.locator("#found").inner_text()
    assert said.startswith(f"No page of this book is about “{query}”.")
    assert ("“backward” is" in said) is (query == "torch.cumprod_backward")
    assert (visit.page.locator("#results li").count() > 0) is (query == "torch.cumprod_backward")
    none = visit.page.locator("#none")
    assert none.is_visible() and "detect_anomaly" in none.inner_text()
    report = visit.page.evaluate(
        "() => { const { origin, pathname, searchParams } = new URL(document.querySelector('#none a.report').href);"
        "return [origin + pathname, searchParams.get('title'), searchParams.get('body')]; }"
    )
    assert report[:2] == [f"{PROJECT.repository}/issues/new", f"No page about {query}"] and f"> {query}\n" in report[2]
    none.locator("a").first.click()
    assert visit.page.url.partition("#")[2] == "what-do-you-see"


def test_a_query_is_text_and_never_a_part_of_the_page(visit):
    visit.open("search.html?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%20nan%20(%5B%20%2B*%3F%20\\p")
    assert visit.page.locator("main img").count() == 0
    assert "<img src=x" in visit.page.locator("#found").inner_text()
    assert visit.troubles == []
