"""The table of methods: a row for each that is judged, with the verdicts in which its gradient is right."""

import pytest
from bs4 import BeautifulSoup

from helpers import METHODS, recorded
from tools.pages.methods import LIMITS, methods


@pytest.fixture(scope="module")
def facts():
    return next(run["outcomes"] for run in recorded.records() if run["torch"] == "2.13.0")


def test_the_rows_count_what_is_right():
    facts = [
        {"type": "verdict", "observed": {"vanilla": "contaminated", "masked": "right"}},
        {"type": "verdict", "observed": {"vanilla": "rounded", "masked": "raises TypeError", "hook": "wrong"}},
        {"type": "claim", "observed": [1.0]},
    ]
    soup = BeautifulSoup(methods(facts, lambda page: f"there/{page}.html"), "html.parser")
    found = {row.th.get_text(): [cell.get_text() for cell in row("td")] for row in soup.tbody("tr")}
    assert list(found) == [METHODS[name].title for name in LIMITS]
    assert found["vanilla"][:3] == ["1 of 2", "yes", "yes"]
    assert found["masked"][:3] == ["1 of 2", "no", "no: convert it"]
    assert found["hook"][0] == "0 of 1" and found["scrub"][0] == "0 of 0"
    assert soup.tbody.a["href"] == "there/where-over-exp.html#why"


def test_every_method_that_pages_judge_has_its_limits(facts):
    judged = {name for fact in facts if fact["type"] == "verdict" for name in fact["observed"]}
    assert judged - {"formula", "jacobian"} == set(LIMITS)  # formulas are there to compare with
