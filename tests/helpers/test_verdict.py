"""A verdict compares each method with the reference, element by element, and has one word for each method."""

import re
from math import inf, nan

import pytest
import torch
from strategies import FLOATS

from helpers import Claim, ClaimFailed
from helpers.entries import MASKED, Entries, outcome
from helpers.verdict import Verdict, judge

ONE = torch.tensor([1.5])


def up(steps):
    return (ONE.view(torch.int32) + steps).view(torch.float32).item()


def verdict(reference, observed, expected, quantity="x.grad", rows=None, ulps=2):
    reference = outcome(reference)
    claims = {name: Claim("4132", name, quantity, outcome(value), outcome(value)) for name, value in observed.items()}
    labels = rows if rows is not None else reference.labels()
    return Verdict("4132", quantity, reference, claims, expected, labels, ulps)


TABLE = [
    # The loss uses the element, and the reference is finite.
    *[(1.5, got, "right") for got in (1.5, up(2), up(-2))],
    *[(1.5, got, "rounded") for got in (up(3), up(-3), up(64), up(-64))],
    *[(1.5, got, "wrong") for got in (up(65), up(-65), 2.0, -1.5, 0.0)],
    *[(0.0, got, "right") for got in (0.0, -0.0, 2e-45)],
    *[(0.0, got, "wrong") for got in (1.5, 1e-43)],
    *[(want, got, "contaminated") for want in (1.5, 0.0) for got in (nan, inf, -inf)],
    # Its gradient is undefined or infinite.
    *[(want, want, "right") for want in (nan, inf, -inf)],
    *[(nan, got, "wrong") for got in (0.0, 1.5, inf)],
    *[(inf, got, "wrong") for got in (-inf, nan, 3e38)],
    # The method masks an element that the loss uses.
    *[(want, MASKED, "missing") for want in (1.5, 0.0, nan, inf)],
    # The loss does not use the element.
    *[(MASKED, got, "right") for got in (0.0, -0.0, MASKED)],
    *[(MASKED, got, "wrong") for got in (1.5, 1e-45)],
    *[(MASKED, got, "contaminated") for got in (nan, inf, -inf)],
]


def observe(values):
    entries = outcome(list(values))
    return Entries(entries.data.float(), entries.mask)


def test_every_word():
    wanted, observed, words = zip(*TABLE, strict=True)
    assert judge(outcome(list(wanted)), observe(observed)) == list(words)
    with pytest.raises(ValueError, match=r"observed has shape \[2, 1\], but the reference has \[2\]"):
        judge(outcome([1.0, 1.0]), outcome([[1.0], [1.0]]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_ulps_are_counted_in_the_observed_dtype_to_which_the_reference_is_rounded(dtype):
    eps = torch.finfo(dtype).eps
    observed = torch.tensor([1 + 2 * eps, 1 + 3 * eps, 1 / 3, 0.1], dtype=torch.float64).to(dtype)
    assert judge(outcome([1.0, 1.0, 1 / 3, 0.1]), outcome(observed)) == ["right", "rounded", "right", "right"]
    assert judge(outcome([1 / 3]), outcome(torch.tensor([1 / 3]).double())) == ["wrong"]


# One word for a method.


@pytest.mark.parametrize(
    ("observed", "word"),
    [
        ([1.5, 0.0, 1.5], "right"),
        ([up(3), 0.0, 1.5], "rounded"),
        ([MASKED, 0.0, up(3)], "missing"),
        ([MASKED, 0.0, 9.0], "wrong"),
        ([9.0, nan, MASKED], "contaminated"),
        ([9.0, 0.0, up(3)], "wrong"),
        (TypeError("no"), "raises TypeError"),
        (None, "missing"),
    ],
)
def test_a_way_is_called_by_the_worst_of_its_entries(observed, word):
    seen = observe(observed) if isinstance(observed, list) else observed
    made = verdict([1.5, MASKED, 1.5], {"vanilla": seen}, {"vanilla": word})
    assert made.words() == {"vanilla": word}
    assert made.holds


def test_a_verdict_holds_only_when_all_words_and_all_methods_agree(capsys):
    observed = {"vanilla": [nan], "masked": [1.0]}
    made = verdict([1.0], observed, {"masked": "right", "vanilla": "contaminated"})
    assert made.check() is made and made.holds and verdict([], {"vanilla": []}, {"vanilla": "right"}).holds
    assert capsys.readouterr().out == made.text() + "\n" and "differs" not in made.text()
    assert not verdict([1.0], observed, {"masked": "right", "vanilla": "wrong"}).holds


def test_a_verdict_that_does_not_hold_is_shown_and_raised_with_both_words(capsys):
    observed = {"vanilla": [1.0, nan], "masked": [1.0, MASKED]}
    made = verdict([1.0, MASKED], observed, {"vanilla": "right", "masked": "right"})
    with pytest.raises(ClaimFailed) as caught:
        made.check()
    text = str(caught.value)
    assert capsys.readouterr().out == text + "\n"
    assert text.split("\n") == [
        f"verdict on 4132 · x.grad  (torch {torch.__version__})",
        "  vanilla: expected right, observed contaminated  <-- differs",
        "  masked: expected right, observed right",
        "  reference: [1, --]",
        "  vanilla: [1, NaN]",
        "  masked: [1, --]",
    ]


# The table.


def cells(html):
    """Rows of plain cell texts."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row)] for row in rows]


def test_html_is_a_table_of_ways_beside_the_reference():
    seen = {
        "vanilla": observe([up(3), nan]),
        "masked": observe([MASKED, 0.0]),
        "jacobian": TypeError("no"),
        "scrub": None,
    }
    words = {"vanilla": "contaminated", "masked": "missing", "jacobian": "raises TypeError", "scrub": "missing"}
    made = verdict([1.5, MASKED], seen, words, rows=["first", "second"])
    assert made.holds
    assert f'data-verdict="{", ".join(f"{name}: {word}" for name, word in words.items())}"' in made.html()
    assert cells(made.html()) == [
        ["element", "reference", "vanilla", "masked", "Jᵀv", "scrub"],
        ["first", "1.5", "1.5 ≈", "-- ?", "", ""],
        ["second", "--", "NaN ✗", "0 ✓", "", ""],
        ["verdict", "", "✗ contaminated", "? missing", "! raises TypeError", "? missing"],
    ]
    assert "Verdict on <code>x.grad</code>" in made.html() and "<pre>" not in made.html()
    assert 'data-judged="rounded"' in made.html() and made.json()["entries"]["vanilla"] == {
        "rounded": 1,
        "contaminated": 1,
    }
    assert "differs from it by at most 2 ulps." in made.html()
    near = verdict([1.5], {"vanilla": observe([up(3)])}, {"vanilla": "right"}, ulps=3)
    assert near.holds and "differs from it by at most 3 ulps." in near.html()
    assert "the gradient equals it." in verdict([1.5], {}, {}, ulps=0).html()
