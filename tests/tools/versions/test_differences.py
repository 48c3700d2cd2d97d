"""What is fixed upstream and what is broken here are told apart, on made-up claims of real shape."""

import pytest

from helpers.claims import Claim
from helpers.entries import MASKED, Raised, outcome
from helpers.verdict import Verdict
from tools.versions.differences import Difference, of_claims, of_selfcheck

nan = float("nan")
REFERENCE = outcome([1.0, MASKED])
GOOD, BAD, REFUSED = outcome([1.0, 0.0]), outcome([1.0, nan]), Raised("TypeError", "no")


def facts(method, expected, observed, verdict=None):
    """A claim, and a verdict on its quantity if that expects a word, as an executed page has them."""
    claim = Claim("10729", method, "x.grad", expected, observed)
    found = [claim.json()]
    if verdict:
        found.append(Verdict("10729", "x.grad", REFERENCE, {method: claim}, {method: verdict}, ["a", "b"], 2).json())
    return [{**fact, "page": "where-over-exp"} for fact in found]


@pytest.mark.parametrize(
    ("method", "expected", "observed", "verdict", "kinds"),
    [
        ("ignoring", GOOD, BAD, "right", ["broken here", "broken here"]),
        ("ignoring", GOOD, BAD, None, ["broken here"]),
        ("ignoring", GOOD, REFUSED, "right", ["broken here", "broken here"]),
        ("ignoring", BAD, GOOD, None, ["broken here"]),
        ("vanilla", BAD, GOOD, "contaminated", ["fixed upstream", "fixed upstream"]),
        ("vanilla", BAD, GOOD, None, ["changed upstream"]),
        ("vanilla", GOOD, BAD, "right", ["changed upstream", "changed upstream"]),
        ("double where", outcome([1.0, 2.0]), GOOD, "wrong", ["fixed upstream", "fixed upstream"]),
        ("masked", REFUSED, GOOD, "raises TypeError", ["fixed upstream", "fixed upstream"]),
        ("masked", REFUSED, GOOD, None, ["fixed upstream"]),
        ("masked", REFUSED, BAD, "raises TypeError", ["changed upstream", "changed upstream"]),
        ("masked", REFUSED, Raised("ValueError", "no"), None, ["changed upstream"]),
        ("masked", REFUSED, outcome(None), None, ["changed upstream"]),
        ("vanilla", BAD, BAD, "contaminated", []),
        ("ignoring", GOOD, GOOD, "right", []),
    ],
)
def test_every_change_has_its_kind(method, expected, observed, verdict, kinds):
    assert [each.kind for each in of_claims(facts(method, expected, observed, verdict))] == kinds


def test_a_verdict_tells_of_the_ways_that_differ_and_of_no_other():
    claims = {method: Claim("4132", method, "x.grad", GOOD, GOOD) for method in ("vanilla", "ignoring")}
    expected = {"vanilla": "contaminated", "ignoring": "right"}
    verdict = Verdict("4132", "x.grad", REFERENCE, claims, expected, ["a", "b"], 2)
    (found,) = of_claims([{**verdict.json(), "page": "p"}])
    assert found == Difference("fixed upstream", "p", "4132 · vanilla · verdict on x.grad", "contaminated", "right")


def test_a_verdict_on_another_page_or_quantity_says_nothing_of_a_claim():
    found = facts("vanilla", BAD, GOOD, "contaminated")
    for key in ("page", "quantity"):
        moved = [found[0], {**found[1], key: "another"}]
        assert [each.kind for each in of_claims(moved)] == ["fixed upstream", "changed upstream"]


def test_of_many_entries_those_that_differ_are_shown():
    wanted, seen = outcome([0.0] * 20), outcome([0.0] * 10 + [nan] * 10)
    (found,) = of_claims(facts("ignoring", wanted, seen))
    assert (found.recorded, found.observed) == ("0, 0, 0, 0, 0, 0, … (10)", "NaN, NaN, NaN, NaN, NaN, NaN, … (10)")
    (found,) = of_claims(facts("masked", outcome([1.0, 2.0]), REFUSED))
    assert (found.recorded, found.observed) == ("1, 2", "raises TypeError")
    (found,) = of_claims(facts("masked", REFUSED, Raised("TypeError", "never\nmore")))
    assert (found.recorded, found.observed) == ("says 'no'", "says 'never'")
    (found,) = of_claims(facts("masked", GOOD, outcome(None)))
    assert found.observed == "None"


def test_what_the_selfcheck_says_is_taken_over():
    case = {"name": "nansum", "method": "plain", "recorded": "contaminated", "observed": "right"}
    said = {"differences": [{**case, "kind": "fixed upstream"}], "operators_left_out": None}
    assert of_selfcheck(said) == [Difference("fixed upstream", "self-check", "nansum · plain", "contaminated", "right")]
    left_out = of_selfcheck({"differences": [], "operators_left_out": "no numpy"})
    assert left_out == [Difference("could not be run", "self-check", "operators", "run", "no numpy")]
    with pytest.raises(ValueError, match="no difference is called 'odd'; known: broken here"):
        of_selfcheck({"differences": [{**case, "kind": "odd"}], "operators_left_out": None})
