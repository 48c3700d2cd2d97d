"""A claim says what was expected and what was observed: to a terminal, to the build, and to the readers of a page."""

import re
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import bits, floats, from_bits, properties

from helpers import Claim, ClaimFailed
from helpers.compare import Tolerance
from helpers.entries import MASKED, outcome

EXACTLY = Tolerance()


def claim(expected, observed, tolerance=EXACTLY, **more):
    return Claim("4132", "vanilla", "x.grad", outcome(expected), outcome(observed), tolerance, **more)


def table(text):
    """The rows of the side-by-side part, by element: expected, observed, mark."""
    rows = re.findall(r"^  (\[[\d, ]*\]|)  +(\S+) +(\S+) *(<--.*)?$", text, flags=re.MULTILINE)
    return {label: cells for label, *cells in rows}


def test_a_claim_that_does_not_hold_is_shown_and_raised_with_the_same_words(capsys):
    made = claim([1.0], [2.0], Tolerance(ulps=3), warned=("careful now",))
    with pytest.raises(ClaimFailed) as caught:
        made.check()
    assert str(caught.value) == made.text() and capsys.readouterr().out == made.text() + "\n"
    html = made.html()
    assert "zn-fails" in html and "✗" in html and "✓" not in html and "1 of 1 elements differ." in html
    head, version, *_, warned = made.text().split("\n")
    assert head == "claim does not hold: 4132 · vanilla · x.grad"
    assert version == f"on torch {torch.__version__}, compared within 3 ulps"
    assert warned == "  warned: careful now"


def test_expected_and_observed_stand_side_by_side_with_the_first_difference_marked():
    text = claim([1.0, 0.0, 2.0, MASKED], [1.0, nan, -inf, 0.0]).text()
    assert table(text) == {
        "[0]": ["1", "1", ""],
        "[1]": ["0", "NaN", "<-- first difference"],
        "[2]": ["2", "-inf", "<--"],
        "[3]": ["--", "0", "<--"],
    }
    assert text.endswith("\n3 of 4 elements differ.")
    assert "not shown" not in claim(torch.zeros(20), torch.ones(20)).text()
    assert re.search(r"^ +1 +2 +<-- first difference$", claim(1.0, 2.0).text(), flags=re.MULTILINE)


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


@pytest.mark.parametrize("at", [0, 3, 999])
def test_a_long_tensor_shows_its_one_difference(at):
    observed = torch.zeros(1000)
    observed[at] = 7.0
    text = claim(torch.zeros(1000), observed).text()
    rows = table(text)
    start = max(0, min(at - 2, 980))
    assert list(rows) == [f"[{i}]" for i in range(start, start + 20)]
    assert rows.pop(f"[{at}]") == ["0", "7", "<-- first difference"]
    assert set(map(tuple, rows.values())) == {("0", "0", "")}
    assert "… 980 elements not shown" in text and text.endswith("\n1 of 1000 elements differ.")


@pytest.mark.parametrize(
    ("expected", "observed", "ends"),
    [
        ([1 / 3, 1.0], [[1.0], [nan]],
         "  expected  [0.3333333333333333, 1]  of shape [2]\n  observed  [[1], [NaN]]  of shape [2, 1]"),
        (None, 0.0, "  expected  None\n  observed  0  of shape []"),
        ([1.0], torch.ones(30), "… 6 more …, 1, 1] of shape [30]"),
        (TypeError("linear"), TypeError("addmm"),
         "  expected  raises TypeError: linear\n  observed  raises TypeError: addmm"),
    ],
)  # fmt: skip
def test_sides_that_cannot_be_compared_element_by_element_are_named_in_full(expected, observed, ends):
    assert claim(expected, observed).text().endswith(ends)


def test_html_of_a_claim_that_holds_names_method_quantity_and_elements():
    html = claim([nan, 0.0], [nan, 0.0], warned=("first warning", "second warning")).html()
    assert "warned: first warning" in html and "warned: second warning" in html
    assert '<div class="zn-claim zn-stated" id="claim-4132-vanilla-x-grad">' in html and "zn-fails" not in html
    assert "<strong>vanilla</strong>" in html and "<code>x.grad</code>" in html and " = " in html
    assert '<span class="zn-nan">NaN</span>' in html and '<span class="zn-zero">0</span>' in html
    # An asserted NaN has no mark that could be read as a right gradient.
    assert "(as stated)" in html and not set(html) & set("✓✔☑≈") and "right" not in html
    html = claim([1.0], [1.0], Tolerance(ulps=2, signed_zero=True)).html()
    assert "(as stated, within 2 ulps, sign of zero counts)" in html


def test_html_of_an_exception_says_what_was_raised_and_how_its_message_starts():
    html = claim(TypeError, TypeError("no mm\nsecond line")).html()
    assert "raises TypeError" in html and "no mm" in html and "second line" not in html and " = " not in html
    assert "message" not in claim(TypeError, TypeError()).html()
    html = claim(TypeError, TypeError("word " * 100)).html()
    assert "word …" in html and "word " * 33 not in html
    assert "…" not in claim(TypeError, TypeError("w" * 100)).html()
