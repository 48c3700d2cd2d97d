"""What the search of the built site finds: first the page that a query asks for, and few others."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scratch import ROOT

from tools.measure.browser import VIEWS, Visit
from tools.project import Project

PROJECT = Project(ROOT)

# Each query with the page that it leads to first (one of those that are named), and the number of pages at most.
QUERIES = {
    # The symptoms of the welcome page, and messages pasted whole or in part.
    "RuntimeError: Function 'ExpBackward0' returned nan values in its 0th output.": ("where-over-exp", 2),
    "RuntimeError: Function 'MulBackward0' returned nan values in its 1th output.": ("nansum-nanmean", 2),
    "RuntimeError: Function 'AddmmBackward0' returned nan values in its 2th output.": ("slicing-nan", 2),
    "AddmmBackward0": ("slicing-nan", 2),
    "torch.where picks the safe branch, but the gradient is NaN": ("where-over-exp", 2),
    "A division by zero is masked out, and its gradient is NaN": ("division-under-a-mask", 4),
    "nansum or nanmean is finite, its gradient is NaN": ("nansum-nanmean", 2),
    "The weight gradient is all NaN, the bias gradient is fine": ("slicing-nan", 2),
    "The gradient differs from my formula by 5.9605e-08": ("float-round-off", 2),
    "RuntimeError: grad can be implicitly created only for scalar outputs": ("backward-gradient-argument", 2),
    "TypeError from a MaskedTensor, Input masks must match, or an optimizer that refuses .grad": ("masked-tensors", 3),
    "ValueError: Input masks must match": ("masked-tensors", 2),
    "which operators does torch.masked have": ("masked-tensors", 3),
    "issue 52248 line by line": ("source-threads where-over-division", 3),
    "RuntimeError … returned nan values": ("where-over-exp", 6),
    # Threads.
    "10729": ("where-over-exp", 2),
    "#10729": ("where-over-exp", 2),
    "52248": ("where-over-division", 2),
    "#147140": ("masked-tensors", 2),
    "pytorch#67180": ("nansum-nanmean", 2),
    "https://github.com/pytorch/pytorch/issues/67180": ("nansum-nanmean", 2),
    "#4132": ("division-under-a-mask", 2),
    # Names, numbers and signs.
    "5.9605e-08": ("float-round-off", 2),
    "1/x": ("float-round-off", 3),
    "1 / x": ("float-round-off", 3),
    "x/0": ("division-under-a-mask", 3),
    "torch.compile": ("use-it-in-your-project", 3),
    "F.relu": ("what-counts-as-ignored atlas", 3),
    "double backward create_graph": ("ignoring-what-the-loss-ignored", 3),
    "gradient penalty": ("ignoring-what-the-loss-ignored", 3),
    "hardtanh gradient": ("what-counts-as-ignored", 2),
    "Lightning manual_backward nan": ("use-it-in-your-project", 2),
    "GradScaler mixed precision": ("use-it-in-your-project", 2),
    "torch.library custom operator": ("operators-of-your-own", 2),
    "FSDP": ("use-it-in-your-project", 2),
    "MPS": ("use-it-in-your-project", 2),
    # Questions.
    "where does my NaN come from": ("find-it-in-your-model", 3),
    "loss becomes nan, which line": ("find-it-in-your-model", 4),
    "NotFiniteError": ("find-it-in-your-model", 2),
    "gradient nan where": ("where-over-exp where-over-division", 8),
    "nansum grad nan": ("nansum-nanmean", 2),
    "divide by zero mask": ("division-under-a-mask", 4),
    "loss is nan": ("find-it-in-your-model a-run-that-dies-at-step-7 divergence loss-0-grad-norm-nan", 8),
    "loss nan after first step": ("find-it-in-your-model a-run-that-dies-at-step-7", 5),
    "float16 overflow": ("find-it-in-your-model", 4),
    "grad is None": ("glossary", 3),
    "retain_grad": ("glossary", 4),
    "sigmoid log nan": ("undefined", 4),
    "padding nan transformer": ("undefined slicing-nan", 4),
    "why is 0*inf nan": ("where-over-exp", 8),
    "masked mean ignore nan": ("nansum-nanmean", 5),
    "cuda mixed precision": ("use-it-in-your-project", 2),
    "weight gradient nan linear layer sliced rows": ("slicing-nan", 2),
    "fix nan gradient without changing forward code": ("ignoring-what-the-loss-ignored", 3),
    "gradient of relu at 0, of clamp at its bound": ("what-counts-as-ignored undefined", 2),
    "amax nan gradient tie": ("what-counts-as-ignored", 2),
    "what is a cotangent": ("glossary", 2),
    "how slow is ignoring": ("what-it-costs", 2),
    "pip install": ("use-it-in-your-project", 2),
    "ignoring could not follow": ("operators-of-your-own", 3),
    # A letter wrong, missing, or too many.
    "nanmeen": ("nansum-nanmean", 2),
    "slising": ("slicing-nan", 3),
    "cotangnt": ("glossary", 2),
    "clampp": ("what-counts-as-ignored atlas", 3),
    # What is undefined: a row of the atlas.
    "SqrtBackward0": ("atlas undefined", 2),
    "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.": ("atlas undefined", 3),
    "LinalgVectorNormBackward0": ("atlas undefined", 2),
    "log of zero gradient nan": ("atlas undefined", 4),
    "softmax -inf nan": ("atlas undefined", 2),
    "log_softmax": ("atlas undefined", 2),
    "attention mask softmax": ("undefined", 3),
    "std of one element nan": ("atlas undefined", 2),
    "fully masked attention row nan": ("atlas undefined", 3),
    "gradient of the distance of equal points": ("undefined", 2),
    "cross entropy nan": ("atlas undefined", 3),
    "norm at zero gradient nan": ("atlas undefined", 3),
    "#6394": ("undefined", 2),
    "learning rate too high": ("divergence", 4),
    "exploding gradients": ("divergence", 4),
    "loss goes to inf then nan": ("divergence", 6),
    "clip_grad_norm_ nan": ("divergence", 4),
    "#31016": ("divergence", 2),
    "loss 0.0 grad_norm nan": ("loss-0-grad-norm-nan", 3),
    "logging_nan_inf_filter": ("loss-0-grad-norm-nan", 3),
    "LlamaFactory loss 0": ("loss-0-grad-norm-nan", 3),
    # A word that no page has does not hide the page of the others.
    "nansum foobarbaz": ("nansum-nanmean", 3),
}
# Queries that no page is about, and how many pages are shown as the closest.
NO_PAGE = {
    "zzzzqqq": 0,
    "how to bake sourdough bread": 0,
    "torch.foo gradient nan": 0,
    "EinsumBackward0 nan": 0,
    "dataloader workers": 1,
    "LSTM exploding gradient": 2,
    "quantization aware training": 3,
    "tensorboard histogram logging": 3,
    "CumprodBackward0": 3,
}
TWO_PAGES = "RuntimeError: Function 'DivBackward0' returned nan values in its 0th output."


@pytest.fixture(scope="module")
def searched(browser: Any, address: str) -> Iterator[Any]:
    """The search page, with the book that its script makes of the index."""
    with Visit(browser, address, **VIEWS["wide, light"]) as tab:
        tab.open("search.html")
        tab.page.evaluate("async () => { window.book = new Book(await (await fetch('search.json')).json()); }")
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


@pytest.mark.parametrize("query", QUERIES)
def test_the_page_that_a_query_asks_for_comes_first_and_few_others_come(searched, query):
    pages, most = QUERIES[query]
    found = find(searched, query)
    assert found["about"], found
    assert found["pages"][0] in [PROJECT.path(f"chapters/{page}") for page in pages.split()], found
    assert len(found["pages"]) <= most, found


@pytest.mark.parametrize("query", NO_PAGE)
def test_what_no_page_is_about_is_said_to_be_so(searched, query):
    found = find(searched, query)
    assert not found["about"], found
    assert len(found["pages"]) <= NO_PAGE[query], found


def test_a_message_of_two_cases_leads_to_both_before_all_others(searched):
    found = find(searched, TWO_PAGES)
    cases = {PROJECT.path(f"chapters/{name}") for name in ("where-over-division", "division-under-a-mask")}
    assert set(found["pages"][:2]) == cases and len(found["pages"]) <= 3
    assert found["lacks"][:2] == [[], []] and found["lacks"][2:] in ([], [["DivBackward0"]])


def test_no_query_of_common_words_finds_every_page(searched):
    for query in ("gradient", "nan", "gradient nan", "pytorch gradient nan"):
        assert 1 <= len(find(searched, query)["pages"]) <= 8 < len(PROJECT.pages)


def test_words_that_no_page_has_are_named_and_a_name_of_code_is_never_misspelt(searched):
    assert find(searched, "nansum foobarbaz")["unknown"] == ["foobarbaz"]
    assert find(searched, "nanmeen")["instead"] == {"nanmeen": ["nanmean"]}
    # One letter from ExpBackward0 and from nan_to_num: another operator, and not a slip.
    assert find(searched, "ErpBackward0")["unknown"] == ["ErpBackward0"]
    assert "nan_to_num" not in str(find(searched, "nan_to_nun")["instead"])
    assert find(searched, "10728")["unknown"] == ["10728"]


def test_the_sign_and_the_case_of_a_word_make_no_difference(searched):
    for one, other in (
        ("-inf", "inf"),
        ("−INF", "inf"),
        ("NaN gradient", "nan gradient"),
        ("expbackward0", "ExpBackward0"),
    ):
        assert find(searched, one)["best"] == find(searched, other)["best"] != []


ROWS = {
    "SqrtBackward0": "sqrt-at-0",
    "sqrt gradient": "sqrt-at-0",
    "acos at 1": "acos-at-1",
    "std of one element nan": "std-of-one-element",
    "fully masked attention row nan": "attention-with-a-fully-masked-row",
    "log of zero": "log-0",
    "log_softmax": "log-softmax-of-a-row-that-is-all-inf",
}


@pytest.mark.parametrize("query", ROWS)
def test_a_row_of_its_own_is_found_before_its_page(searched, query):
    best = find(searched, query)["best"][:2]
    assert f"chapters/atlas.html#point-{ROWS[query]}" in best


def test_words_that_stand_in_different_rows_are_no_better_than_one_row(searched):
    # Both are names of rows: no row has both, and a page that has them together would be first.
    page = {"page": "Both", "heading": "Both", "text": "", "rows": "", "address": "both.html"}
    searched.evaluate(
        "async (page) => { window.more = new Book([...(await (await fetch('search.json')).json()), page]); }",
        {**page, "keywords": "pdist sinc"},
    )
    assert find(searched, "pdist sinc", "window.more")["best"][0] == "both.html"


def test_a_search_from_any_page_leads_to_the_page_that_it_shows_first(visit):
    visit.open("chapters/references.html")
    box = visit.page.locator("header input[name=q]")
    box.fill("nansum grad nan")
    box.press("Enter")
    first = visit.page.locator("#results a").first
    first.wait_for()
    assert visit.page.url.startswith(f"{visit.address}/search.html?q=")
    assert "nansum grad nan" in visit.page.locator("#found").inner_text()
    assert visit.page.locator("#results mark", has_text="nansum").count() >= 1
    assert not visit.page.locator("#none").is_visible()
    assert visit.troubles == [] and visit.elsewhere == []
    first.click()
    assert "/chapters/nansum-nanmean.html" in visit.page.url


def test_where_the_symptom_stands_on_a_page_it_is_shown(visit):
    visit.open("search.html?q=RuntimeError: Function 'ExpBackward0' returned nan values in its 0th output.")
    shown = visit.page.locator("#results li").first
    assert shown.locator("a").first.get_attribute("href") == "chapters/where-over-exp.html"
    marks = shown.locator("mark").all_inner_texts()
    assert {"ExpBackward0", "0th", "output"} <= set(marks)


@pytest.mark.parametrize("query", ["zzzzqqq", "CumprodBackward0"])
def test_a_search_that_finds_no_page_says_so_and_what_to_do(visit, query):
    visit.open(f"search.html?q={query}")
    said = visit.page.locator("#found").inner_text()
    assert said.startswith(f"No page of this book is about “{query}”.")
    assert ("“cumprod” is" in said) is (query == "CumprodBackward0")
    assert (visit.page.locator("#results li").count() > 0) is (query == "CumprodBackward0")
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


def test_folded_code_and_numbers_of_tables_are_not_searched(site):
    records = json.loads((site / "search.json").read_text(encoding="utf-8"))
    everything = " ".join(record["text"] + record.get("rows", "") for record in records)
    assert "axes.set_xticks" not in everything and "labelled[" not in everything
    assert "hardtanh(y) saturated" in everything
