import math
import platform
import warnings

import pytest
import torch
from torch.masked import masked_tensor

from helpers import MASKED, Case, ClaimFailed, reference
from helpers.compare import Tolerance
from helpers.entries import Absent, Raised, outcome
from helpers.show import MIME

nan, inf = math.nan, math.inf


@pytest.fixture
def case():
    return Case("4132")


def test_an_unknown_case_is_refused_and_the_known_ones_are_named():
    with pytest.raises(KeyError, match="no case has the key '1'; the keys are .*52248.*4132"):
        Case("1")


# Claims.


def test_a_claim_is_kept_as_it_was_stated(case, capsys):
    case.claim("masked", "x.grad", torch.tensor([0.5]), [0.5], ulps=1, rtol=0.1, atol=0.2, signed_zero=True)
    (made,) = case.claims
    assert (made.case, made.method, made.quantity) == ("4132", "masked", "x.grad")
    assert made.tolerance == Tolerance(ulps=1, rtol=0.1, atol=0.2, signed_zero=True)
    assert made.observed.data.dtype is torch.float32
    assert made.holds
    assert capsys.readouterr().out.startswith("holds: 4132 · masked · x.grad = [0.5]")


def test_a_claim_that_is_to_be_filled_in_says_so_and_is_not_made(case):
    with pytest.raises(NotImplementedError, match=r"fill in what masked gives for x\.grad, in place of \.\.\."):
        case.claim("masked", "x.grad", torch.ones(1), ...)
    to_fill = pytest.raises(NotImplementedError, match="fill in what vanilla gives for backward")
    with to_fill, case.raises("vanilla", "backward", ...):
        raise RuntimeError
    with pytest.raises(NotImplementedError, match=r"fill in the word that vanilla gets for x\.grad"):
        case.verdict("x.grad", outcome(torch.ones(1)), {"vanilla": ...})
    assert case.claims == []


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (torch.tensor([0.1]), [0.1]),
        (torch.tensor([0.1], dtype=torch.float16), [0.1]),
        (torch.tensor(0.1, dtype=torch.bfloat16), 0.1),
        (torch.tensor([[1, 2]]), [[1, 2]]),
        (torch.tensor([True]), [True]),
        (torch.tensor([2**53 + 1]), [2**53 + 1]),
        (masked_tensor(torch.tensor([nan, 1.0]), torch.tensor([False, True])), [MASKED, 1.0]),
        (torch.tensor([1.0, nan], requires_grad=True), torch.tensor([1.0, nan])),
        (None, None),
        (3.5, 3.5),
        (torch.tensor(0.0), -0.0),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        (RuntimeError("x"), RuntimeError),
    ],
    ids=repr,
)
def test_claims_that_hold(case, observed, expected):
    case.claim("vanilla", "x.grad", observed, expected)
    assert case.claims[-1].holds


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (torch.tensor([0.1]), torch.tensor([0.1], dtype=torch.float64) + 1e-8),
        (torch.tensor([1]), [1.5]),
        (torch.tensor([2**53 + 1]), [2**53]),
        (torch.tensor([inf]), [1e39]),
        (torch.tensor([1.0]), None),
        (None, [1.0]),
        (None, [0.0]),
        (None, [MASKED]),
        (torch.tensor([1.0]), 1.0),
        (torch.tensor([0.0]), [MASKED]),
        (torch.tensor([nan]), [MASKED]),
        (RuntimeError("x"), ValueError),
    ],
    ids=repr,
)
def test_claims_that_do_not_hold(case, observed, expected):
    with pytest.raises(ClaimFailed, match="claim does not hold: 4132 · vanilla · x.grad"):
        case.claim("vanilla", "x.grad", observed, expected)
    assert not case.claims[-1].holds


def test_a_misspelt_way_is_an_error_and_no_claim(case):
    with pytest.raises(KeyError, match="no method is called 'vanila'"):
        case.claim("vanila", "x.grad", torch.ones(1), [1.0])
    assert case.claims == []


def test_what_has_no_entries_is_an_error_and_no_claim(case):
    for observed, expected in [(1j, 1.0), (torch.ones(1), "1"), (torch.tensor([1j]), [1.0])]:
        with pytest.raises(TypeError, match="cannot compare"):
            case.claim("vanilla", "x.grad", observed, expected)
    with pytest.raises(ValueError, match="rows of different shapes"):
        case.claim("vanilla", "x.grad", torch.ones(2), [1.0, [2.0]])
    with pytest.raises(ValueError, match="ulps must be"):
        case.claim("vanilla", "x.grad", torch.ones(1), [1.0], ulps=-1)
    assert case.claims == []


def test_a_second_backward_does_not_change_the_claim_about_the_first(case):
    x = torch.tensor([1.0], requires_grad=True)
    x.sum().backward()
    case.claim("vanilla", "x.grad", x.grad, [1.0])
    x.sum().backward()
    case.claim("masked", "x.grad", x.grad, [2.0])
    case.verdict("x.grad", reference(lambda x: x.sum(), x), {"vanilla": "right", "masked": "wrong"})


# Exceptions.


def test_an_expected_exception_is_a_claim(case, capsys):
    with case.raises("masked", "mm", TypeError, match="no implementation"):
        raise TypeError("there is no implementation of mm")
    (made,) = case.claims
    assert made.holds and (made.method, made.quantity) == ("masked", "mm")
    assert made.expected == Raised("TypeError", "no implementation")
    assert made.observed == Raised("TypeError", "there is no implementation of mm")
    assert made.tolerance == Tolerance()
    assert "raises TypeError" in capsys.readouterr().out


def test_no_exception_fails_the_claim(case):
    with (
        pytest.raises(ClaimFailed, match=r"expected  raises TypeError\n  observed  None"),
        case.raises("masked", "mm", TypeError),
    ):
        pass
    assert case.claims[0].observed == Absent()


def test_a_subclass_is_another_exception(case):
    with pytest.raises(ClaimFailed, match="raises NotImplementedError"), case.raises("masked", "mm", RuntimeError):
        raise NotImplementedError("x")
    with pytest.raises(ClaimFailed), case.raises("masked", "mm", Exception):
        raise ValueError("x")


def test_another_message_fails_the_claim(case):
    with pytest.raises(ClaimFailed, match="raises TypeError: addmm"), case.raises("masked", "mm", TypeError, "linear"):
        raise TypeError("addmm")


def test_the_match_is_plain_text(case):
    with case.raises("masked", "mm", TypeError, match="f(x) [1+"):
        raise TypeError("f(x) [1+")


def test_a_failed_claim_inside_the_block_is_not_swallowed(case):
    with pytest.raises(ClaimFailed, match="raises ClaimFailed"), case.raises("masked", "mm", AssertionError):
        case.claim("vanilla", "x.grad", torch.ones(1), [2.0])


def test_an_interrupt_goes_through(case):
    with pytest.raises(KeyboardInterrupt), case.raises("masked", "mm", TypeError):
        raise KeyboardInterrupt
    assert case.claims == []


def test_warnings_on_the_way_go_with_the_claim_once_each(case):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with case.raises("masked", "mm", TypeError):
            warnings.warn("first line\nsecond line", UserWarning, stacklevel=1)
            warnings.warn("another", UserWarning, stacklevel=1)
            warnings.warn("another", UserWarning, stacklevel=1)
            raise TypeError("x")
    assert case.claims[0].holds
    assert case.claims[0].warned == ("first line", "another")


# The verdict.


def test_a_verdict_judges_the_newest_claim_of_each_way(case, capsys):
    used = torch.tensor([True, False])
    wanted = reference(lambda x: x.sum(), torch.zeros(2), used=used)
    case.claim("vanilla", "x.grad", torch.tensor([1.0, 5.0]), [1.0, 5.0])
    case.claim("vanilla", "x.grad", torch.tensor([1.0, nan]), [1.0, nan])
    case.claim("vanilla", "loss", torch.tensor([1.0, 7.0]), [1.0, 7.0])
    case.claim("masked", "x.grad", masked_tensor(torch.tensor([1.0, 0.0]), used), [1.0, MASKED])
    case.claim("scrub", "x.grad", torch.zeros(2), [0.0, 0.0])
    capsys.readouterr()
    case.verdict("x.grad", wanted, {"masked": "right", "vanilla": "contaminated"})
    out = capsys.readouterr().out
    assert out.startswith("verdict on 4132 · x.grad")
    assert out.index("masked: expected right") < out.index("vanilla: expected contaminated")
    assert "scrub" not in out


def test_a_verdict_needs_a_claim_by_each_way(case):
    case.claim("vanilla", "x.grad", torch.tensor([1.0]), [1.0])
    case.claim("masked", "loss", torch.tensor([1.0]), [1.0])
    with pytest.raises(
        LookupError, match=r"no claim about 'x.grad' before the verdict: masked, scrub; methods that made one: vanilla$"
    ):
        case.verdict("x.grad", outcome([1.0]), {"vanilla": "right", "masked": "right", "scrub": "right"})
    to_make = "no claim about 'y.grad' before the verdict: vanilla; methods that made one: none$"
    with pytest.raises(LookupError, match=to_make):
        case.verdict("y.grad", outcome([1.0]), {"vanilla": "right"})


def test_a_verdict_needs_a_label_for_each_entry(case):
    case.claim("vanilla", "x.grad", torch.tensor([1.0, 1.0]), [1.0, 1.0])
    for rows in (["a"], ["a", "b", "c"], []):
        with pytest.raises(ValueError, match=f"{len(rows)} row labels for 2 elements"):
            case.verdict("x.grad", outcome([1.0, 1.0]), {"vanilla": "right"}, rows=rows)
    case.verdict("x.grad", outcome([1.0, 1.0]), {"vanilla": "right"}, rows=("a", "b"))


def test_a_verdict_takes_exceptions_and_nothing(case):
    with case.raises("masked", "x.grad", TypeError):
        raise TypeError("no")
    case.claim("vanilla", "x.grad", None, None)
    case.verdict("x.grad", outcome([1.0]), {"masked": "raises TypeError", "vanilla": "missing"})
    with pytest.raises(ClaimFailed, match="masked: expected raises ValueError, observed raises TypeError"):
        case.verdict("x.grad", outcome([1.0]), {"masked": "raises ValueError"})


# How a notebook shows the case itself.


def test_a_case_shows_its_thread_and_the_versions_that_this_run_verifies(case):
    bundle = case._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", MIME}
    for text in (bundle["text/plain"], bundle["text/html"]):
        assert case.thread.url in text and case.thread.title in text and case.thread.looked_up in text
        assert torch.__version__ in text and platform.python_version() in text
    assert case.thread.label in bundle["text/html"]
    assert repr(case) == case.text() == bundle["text/plain"]
    assert bundle["text/html"].startswith('<div class="zn"><style>')
    assert bundle[MIME] == {"type": "case", "case": "4132", "title": case.thread.title, "url": case.thread.url}


def test_a_case_takes_what_ipython_passes(case):
    assert case._repr_mimebundle_(include=None, exclude=None) == case._repr_mimebundle_()
