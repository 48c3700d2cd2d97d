"""The tables that are generated from claims and records."""

from bs4 import BeautifulSoup

from helpers import METHODS, recorded
from helpers.cases import Case
from helpers.entries import MASKED, outcome
from helpers.verdict import Verdict
from tools.pages.methods import methods
from tools.pages.overview import overview


def facts():
    """A claim that holds, one that does not, and a verdict, as two pages would state them."""
    case = Case("10729")
    case.claim("vanilla", "x.grad", [1.0, float("nan")], [1.0, float("nan")])
    case.claim("masked", "x.grad", [1.0, MASKED], [1.0, MASKED])
    case.claim("double where", "x.grad", [1.0, 0.0], [1.0, 0.0])
    words = {"vanilla": "contaminated", "masked": "right", "double where": "right"}
    claims = {claim.method: claim for claim in case.claims}
    verdict = Verdict("10729", "x.grad", outcome([1.0, MASKED]), claims, words, ["a", "b"], 2)
    found = [*(claim.json() for claim in case.claims), verdict.json()]
    return [{**fact, "page": "where-over-exp"} for fact in found]


def rows(text):
    soup = BeautifulSoup(text, "html.parser")
    return soup.caption.get_text(), [
        [" ".join(cell.stripped_strings) for cell in row(["th", "td"])] for row in soup("tr")
    ]


def table(facts, link=str):
    return rows(overview(facts, link, lambda page: f"The title of {page}"))


def test_a_verdict_is_a_row_and_its_methods_are_columns():
    caption, (head, row) = table(facts())
    assert caption.startswith("4 of 4 claims and verdicts hold on torch ")
    assert head == ["case", "vanilla", "masked", "other methods"]
    assert "The title of where-over-exp" in row[0] and "x.grad" in row[0] and "3 claims" in row[0]
    assert row[1:] == ["✗ contaminated", "✓ right", "double where ✓ right"]
    text = overview(facts(), lambda page: f"../somewhere/{page}.html", str)
    assert BeautifulSoup(text, "html.parser").a["href"] == "../somewhere/where-over-exp.html"
    broken = facts()
    broken[0]["holds"] = False
    assert table(broken)[0].startswith("3 of 4 ") and table([])[0].startswith("0 of 0 ")


def test_the_rows_count_what_is_right():
    facts = [
        {"type": "verdict", "observed": {"vanilla": "contaminated", "masked": "right"}},
        {"type": "verdict", "observed": {"vanilla": "rounded", "masked": "raises TypeError", "hook": "wrong"}},
        {"type": "claim", "observed": [1.0]},
    ]
    soup = BeautifulSoup(methods(facts, lambda page: f"there/{page}.html"), "html.parser")
    found = {row.th.get_text(): [cell.get_text() for cell in row("td")] for row in soup.tbody("tr")}
    assert list(found) == [method.title for method in METHODS.values() if method.page]
    assert found["vanilla"][:3] == ["1 of 2", "yes", "yes"]
    assert found["masked"][:3] == ["1 of 2", "no", "no: convert it"]
    assert found["hook"][0] == "0 of 1" and found["scrub"][0] == "0 of 0"
    assert soup.tbody.a["href"] == "there/where-over-exp.html#why"


def test_every_method_that_pages_judge_has_its_limits():
    outcomes = next(run["outcomes"] for run in recorded.records() if run["torch"] == "2.13.0")
    judged = {name for fact in outcomes if fact["type"] == "verdict" for name in fact["observed"]}
    limits = {name for name, method in METHODS.items() if method.page}
    assert judged - {"formula", "jacobian"} == limits  # formulas are there to compare with
