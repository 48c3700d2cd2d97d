"""The tables of the source threads: no row is missing, and each leads to a claim or a section that is there."""

import re
from collections import Counter

import pytest
from bs4 import BeautifulSoup
from scratch import ROOT

from helpers.cases import Case
from tools.pages.sources import sources
from tools.project import Problem


def link(page):
    return {"where-over-exp": "where.html", "other": "other.html"}.get(page, "")


@pytest.fixture
def facts():
    case = Case("10729")
    case.claim("vanilla", "x.grad, <twice>", 1.0, 1.0)
    return [{**claim.json(), "page": "where-over-exp"} for claim in case.claims]


def test_a_row_leads_to_claims_and_sections(facts):
    line = "1.2 | The `<code>` | where-over-exp: vanilla · x.grad, <twice>; other#what-to-do | Because `x < 1`."
    soup = BeautifulSoup(sources("A <source>", [line], facts, link), "html.parser")
    assert [a["href"] for a in soup.find_all("a")] == [
        "where.html#claim-10729-vanilla-x-grad-twice",
        "other.html#what-to-do",
    ]
    assert soup.caption.text == "A <source>" and soup.tbody.th.text == "1.2"
    assert [code.text for code in soup.tbody.find_all("code")] == ["<code>", "x < 1"]


@pytest.mark.parametrize(
    "answer, said",
    [
        ("where-over-exp: vanilla · y", "row 7: no claim on the page where-over-exp is called vanilla · y"),
        ("other: vanilla · x.grad, <twice>", "row 7: no claim on the page other"),
        ("nowhere#why", "row 7: there is no page nowhere"),
        ("see above", "row 7: 'see above' is neither"),
        ("", "row 7: '' is neither"),
    ],
)
def test_a_row_without_a_true_answer_stops_the_build(facts, answer, said):
    with pytest.raises(Problem, match=re.escape(said)):
        sources("c", [f"7 | words | {answer} "], facts, link)


def test_every_row_of_the_four_sources_is_answered():
    text = (ROOT / "chapters" / "source-threads.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^(\d)\.(\d+)(b?) \| ", text)
    counts = {"0": 15, "1": 27, "2": 44, "3": 17}
    assert [(int(s), int(n)) for s, n, b in rows if not b] == [
        (int(s), n) for s in counts for n in range(1, counts[s] + 1)
    ]
    assert Counter(s for s, _, b in rows if b) == {"2": 1}
