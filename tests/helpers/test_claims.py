import json
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import bits, floats, from_bits, properties

from helpers.claims import Claim, ClaimFailed
from helpers.compare import Tolerance
from helpers.entries import MASKED, Absent, Raised, outcome

nan, inf = math.nan, math.inf
EXACTLY = Tolerance()


def claim(expected, observed, tolerance=EXACTLY, **more):
    return Claim("4132", "vanilla", "x.grad", outcome(expected), outcome(observed), tolerance, **more)


def table(text):
    """The rows of the side-by-side part, by entry: expected, observed, mark."""
    rows = re.findall(r"^  (\[[\d, ]*\]|)  +(\S+) +(\S+) *(<--.*)?$", text, flags=re.MULTILINE)
    return {label: cells for label, *cells in rows}


def test_a_claim_that_holds_is_one_line():
    text = claim([nan, 1 / 3], [nan, 1 / 3]).text()
    assert text == "holds: 4132 · vanilla · x.grad = [NaN, 0.33333]  (exactly)"
    assert "within 2 ulps" in claim([1.0], [1.0], Tolerance(ulps=2)).text()


def test_a_claim_that_holds_is_returned_and_shown(capsys):
    made = claim([1.0], [1.0])
    assert made.check() is made
    assert capsys.readouterr().out == made.text() + "\n"


def test_a_claim_that_does_not_hold_is_shown_and_raised_with_the_same_words(capsys):
    made = claim([1.0], [2.0])
    with pytest.raises(ClaimFailed) as caught:
        made.check()
    assert str(caught.value) == made.text()
    assert capsys.readouterr().out == made.text() + "\n"


@pytest.mark.parametrize(
    ("expected", "observed", "differing"),
    [
        ([1.0], [1.0], []),
        ([1.0, 2.0], [1.0, 3.0], [1]),
        ([1.0], [[1.0]], None),
        (None, None, []),
        (None, [1.0], None),
        (TypeError, TypeError("x"), []),
        (TypeError, ValueError("x"), None),
    ],
)
def test_holds_only_when_nothing_differs_and_all_could_be_compared(expected, observed, differing):
    made = claim(expected, observed)
    assert made.differing == differing
    assert made.holds is (differing == [])


def test_the_message_names_case_way_quantity_version_and_comparison():
    text = Claim("52248", "masked", "b.grad", outcome([1.0]), outcome([2.0]), Tolerance(ulps=3)).text()
    head, version = text.split("\n")[:2]
    assert head == "claim does not hold: 52248 · masked · b.grad"
    assert version == f"on torch {torch.__version__}, compared within 3 ulps"


def test_expected_and_observed_stand_side_by_side_with_the_first_difference_marked():
    text = claim([1.0, 0.0, 2.0, MASKED], [1.0, nan, -inf, 0.0]).text()
    assert table(text) == {
        "[0]": ["1", "1", ""],
        "[1]": ["0", "NaN", "<-- first difference"],
        "[2]": ["2", "-inf", "<--"],
        "[3]": ["--", "0", "<--"],
    }
    assert text.endswith("\n3 of 4 elements differ.")


def test_a_tensor_without_dimensions_has_a_row():
    text = claim(1.0, 2.0).text()
    assert re.search(r"^ +1 +2 +<-- first difference$", text, flags=re.MULTILINE)
    assert text.endswith("1 of 1 elements differ.")


@properties
@given(st.data(), floats)
def test_two_numbers_that_differ_never_look_the_same(data, dtype):
    word = data.draw(bits(dtype, finite=True))
    a = from_bits(dtype, word)
    b = from_bits(dtype, data.draw(bits(dtype) | st.just(word + 1)))
    made = claim(a, b, Tolerance(signed_zero=True))
    if not made.holds:
        expected, observed, mark = table(made.text())["[0]"]
        assert expected != observed and mark == "<-- first difference"


@pytest.mark.parametrize("at", [0, 1, 2, 3, 500, 980, 981, 997, 998, 999])
def test_a_long_tensor_shows_its_one_difference(at):
    expected = torch.zeros(1000)
    observed = expected.clone()
    observed[at] = 7.0
    text = claim(expected, observed).text()
    rows = table(text)
    start = max(0, min(at - 2, 980))
    assert list(rows) == [f"[{i}]" for i in range(start, start + 20)]
    assert rows.pop(f"[{at}]") == ["0", "7", "<-- first difference"]
    assert set(map(tuple, rows.values())) == {("0", "0", "")}
    assert "… 980 elements not shown" in text
    assert text.endswith("\n1 of 1000 elements differ.")


def test_twenty_entries_are_shown_in_full():
    assert "not shown" not in claim(torch.zeros(20), torch.ones(20)).text()
    assert len(table(claim(torch.zeros(20), torch.ones(20)).text())) == 20
    assert "… 1 elements not shown" in claim(torch.zeros(21), torch.ones(21)).text()
    last = torch.zeros(21)
    last[20] = 1.0
    assert table(claim(torch.zeros(21), last).text())["[20]"] == ["0", "1", "<-- first difference"]


def test_sides_that_cannot_be_compared_entry_by_entry_are_named_in_full():
    text = claim([1 / 3, 1.0], [[1.0], [nan]]).text()
    assert "  expected  [0.3333333333333333, 1]  of shape [2]\n" in text
    assert text.endswith("  observed  [[1], [NaN]]  of shape [2, 1]")
    assert "  expected  None\n  observed  0  of shape []" in claim(None, 0.0).text()
    assert "  observed  None" in claim([1.0], None).text()


def test_the_shape_of_a_long_side_is_named_once():
    (line,) = [line for line in claim([1.0], torch.ones(30)).text().split("\n") if "observed " in line]
    assert line.count("of shape [30]") == 1


def test_an_exception_that_was_not_expected_is_told_with_its_message():
    text = claim(TypeError, RuntimeError("no kernel")).text()
    assert "  expected  raises TypeError\n  observed  raises RuntimeError: no kernel" in text
    text = claim(TypeError("mm"), TypeError("addmm only")).text()
    assert claim(TypeError("mm"), TypeError("addmm only")).holds and "does not hold" not in text
    text = claim(TypeError("linear"), TypeError("addmm only")).text()
    assert "  expected  raises TypeError: linear\n  observed  raises TypeError: addmm only" in text


# For machines.


def test_json_has_all_that_the_claim_says():
    made = claim([1.0, MASKED], [nan, 0.0], Tolerance(ulps=2))
    facts = json.loads(json.dumps(made.json(), allow_nan=False))
    assert facts["type"] == "claim"
    assert (facts["case"], facts["method"], facts["quantity"]) == ("4132", "vanilla", "x.grad")
    assert facts["expected"] == {"dtype": "float64", "shape": [2], "entries": ["1", "--"]}
    assert facts["observed"] == {"dtype": "float64", "shape": [2], "entries": ["NaN", "0"]}
    assert facts["tolerance"] == "within 2 ulps"
    assert facts["holds"] is False
    assert facts["differing"] == [0, 1]
    assert facts["torch"] == torch.__version__
    assert facts["text"] == made.text()


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Absent(), {"absent": True}),
        (Raised("TypeError", "no <mm>"), {"raised": "TypeError", "message": "no <mm>"}),
        (outcome(torch.tensor(True)), {"dtype": "bool", "shape": [], "entries": ["True"]}),
    ],
)
def test_json_of_what_is_no_row_of_numbers(value, stored):
    facts = json.loads(json.dumps(claim(value, value).json(), allow_nan=False))
    assert facts["expected"] == facts["observed"] == stored
    assert facts["holds"] is True and facts["differing"] == []


# For readers.


def test_html_of_a_claim_that_holds_names_way_quantity_and_entries():
    html = claim([nan, 0.0], [nan, 0.0]).html()
    assert '<div class="zn-claim zn-stated" id="claim-4132-vanilla-x-grad">' in html and "zn-fails" not in html
    assert "<strong>vanilla</strong>" in html and "<code>x.grad</code>" in html
    assert '<span class="zn-nan">NaN</span>' in html and '<span class="zn-zero">0</span>' in html
    assert " = " in html


def test_an_asserted_nan_has_no_mark_that_could_be_read_as_a_right_gradient():
    html = claim([nan], [nan]).html()
    assert "(as stated)" in html and not set(html) & set("✓✔☑≈") and "right" not in html


def test_html_mentions_the_tolerance_only_where_one_was_stated():
    assert "exactly" not in claim([1.0], [1.0]).html()
    assert "(as stated, within 2 ulps)" in claim([1.0], [1.0], Tolerance(ulps=2)).html()
    assert "(as stated, sign of zero counts)" in claim([1.0], [1.0], Tolerance(signed_zero=True)).html()


def test_html_of_a_claim_that_does_not_hold_has_the_whole_message():
    html = claim([1.0], [2.0]).html()
    assert "zn-fails" in html and "✗" in html and "✓" not in html
    assert "&lt;-- first difference" in html and "1 of 1 elements differ." in html


def test_html_escapes_all_that_comes_from_users():
    evil = "<script>alert('&')</script>"
    for made in (
        Claim("c", "vanilla", evil, outcome([1.0]), outcome([1.0])),
        Claim("c", "vanilla", evil, outcome([1.0]), outcome([2.0])),
        Claim("c", evil, "q", outcome([1.0]), outcome([1.0])),
        Claim(evil, "vanilla", "q", outcome([1.0]), outcome([2.0])),
        claim(TypeError, TypeError(evil)),
        claim(TypeError, ValueError(evil)),
        Claim("c", "vanilla", "q", Raised(evil), Raised(evil)),
        claim([1.0], [1.0], warned=(evil,)),
    ):
        assert "<script" not in made.html()
        assert "&lt;script&gt;" in made.html()


def test_html_of_an_exception_says_what_was_raised_and_how_its_message_starts():
    html = claim(TypeError, TypeError("no mm\nsecond line")).html()
    assert "raises TypeError" in html and "no mm" in html and "second line" not in html
    assert " = " not in html
    assert "message" not in claim(TypeError, TypeError()).html()
    long = "word " * 100
    html = claim(TypeError, TypeError(long)).html()
    assert "word …" in html and "word " * 33 not in html
    assert "…" not in claim(TypeError, TypeError("w" * 100)).html()


def test_html_shows_each_warning_and_compares_none():
    made = claim([1.0], [1.0], warned=("first warning", "second warning"))
    assert made.holds
    assert "warned: first warning" in made.html() and "warned: second warning" in made.html()
    assert "warned" not in claim([1.0], [1.0]).html()


def test_warnings_given_on_the_way_reach_the_failure_and_the_json():
    claim = Claim("4132", "vanilla", "x.grad", outcome(1.0), outcome(2.0), warned=("careful now",))
    assert "warned: careful now" in claim.text()
    assert claim.json()["warned"] == ["careful now"]
