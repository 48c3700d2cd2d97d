"""A page states its claims, exceptions and verdicts with one `Case`, which keeps and checks them."""

import platform
from math import nan

import pytest
import torch
from torch.masked import masked_tensor

from helpers import MASKED, Case, ClaimFailed, reference
from helpers.entries import Absent, outcome
from helpers.show import MIME


@pytest.fixture
def case():
    return Case("4132")


def test_an_unknown_case_is_refused_and_the_known_ones_are_named():
    with pytest.raises(KeyError, match="no case has the key '1'; the keys are .*52248.*4132"):
        Case("1")


# Claims.


@pytest.mark.parametrize(
    ("tolerance", "said"),
    [
        ({"atol": 1e-9}, "because="),
        ({"rtol": 1e-9}, "because="),
        ({"ulps": 65, "because": "x"}, "64 ulps"),
        ({"atol": 1, "because": "x"}, "more than 20% of the largest"),
        ({"rtol": 0.21, "because": "x"}, "more than 20% of the largest"),
    ],
)
def test_a_tolerance_is_small_or_has_a_reason_and_an_end(case, tolerance, said):
    with pytest.raises(ValueError, match=f"the claim 'x.grad' is compared .*: .*{said}"):
        case.claim("vanilla", "x.grad", [1.5, nan], [1.5, nan], **tolerance)
    with pytest.raises(ValueError, match="the verdict on 'x.grad': more than 64 ulps"):
        case.verdict("x.grad", outcome(1.0), {}, ulps=65)
    assert case.claims == []
    case.claim("vanilla", "x.grad", [1.5, nan], [1.5, nan], ulps=64, atol=0.3, because="a < b")
    assert "because a &lt; b)" in case.claims[0].html() and "because a < b" in case.claims[0].json()["tolerance"]


def test_a_claim_that_is_to_be_filled_in_says_so_and_is_not_made(case):
    with pytest.raises(NotImplementedError, match=r"fill in what masked gives for x\.grad, in place of \.\.\."):
        case.claim("masked", "x.grad", torch.ones(1), ...)
    to_fill = pytest.raises(NotImplementedError, match="fill in what vanilla gives for backward")
    with to_fill, case.raises("vanilla", "backward", ...):
        raise RuntimeError
    with pytest.raises(NotImplementedError, match=r"fill in the word that vanilla gets for x\.grad"):
        case.verdict("x.grad", outcome(torch.ones(1)), {"vanilla": ...})
    assert case.claims == []


def test_a_mistake_in_a_claim_is_an_error_and_no_claim(case):
    for error, message, method, expected, options in (
        (KeyError, "no method is called 'vanila'", "vanila", [1.0], {}),
        (TypeError, "cannot compare", "vanilla", "1", {}),
        (ValueError, "rows of different shapes", "vanilla", [1.0, [2.0]], {}),
        (ValueError, "ulps must be", "vanilla", [1.0], {"ulps": -1}),
    ):
        with pytest.raises(error, match=message):
            case.claim(method, "x.grad", torch.ones(1), expected, **options)
    assert case.claims == []


# Exceptions.


def test_another_exception_or_message_or_none_fails_the_claim(case):
    for expected, match, raised, message in (
        (RuntimeError, "", NotImplementedError("x"), "raises NotImplementedError"),  # a subclass is another exception
        (TypeError, "linear", TypeError("addmm"), "raises TypeError: addmm"),
        (AssertionError, "", ClaimFailed("x"), "raises ClaimFailed"),  # a failed claim is not swallowed
    ):
        with pytest.raises(ClaimFailed, match=message), case.raises("masked", "mm", expected, match):
            raise raised
    failed = pytest.raises(ClaimFailed, match=r"expected  raises TypeError\n  observed  None")
    with failed, case.raises("masked", "mm", TypeError):
        pass
    assert case.claims[-1].observed == Absent() and not case.claims[-1].holds


def test_an_interrupt_goes_through(case):
    with pytest.raises(KeyboardInterrupt), case.raises("masked", "mm", TypeError):
        raise KeyboardInterrupt
    assert case.claims == []


# The verdict.


def test_a_verdict_judges_the_newest_claim_of_each_method(case, capsys):
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


def test_a_verdict_needs_a_claim_by_each_method_and_a_label_for_each_element(case):
    case.claim("vanilla", "x.grad", torch.tensor([1.0]), [1.0])
    case.claim("masked", "loss", torch.tensor([1.0]), [1.0])
    lacking = r"no claim about 'x.grad' before the verdict: masked, scrub; methods that made one: vanilla$"
    with pytest.raises(LookupError, match=lacking):
        case.verdict("x.grad", outcome([1.0]), {"vanilla": "right", "masked": "right", "scrub": "right"})
    lacking = "no claim about 'y.grad' before the verdict: vanilla; methods that made one: none$"
    with pytest.raises(LookupError, match=lacking):
        case.verdict("y.grad", outcome([1.0]), {"vanilla": "right"})
    with pytest.raises(ValueError, match="2 row labels for 1 elements"):
        case.verdict("x.grad", outcome([1.0]), {"vanilla": "right"}, rows=["a", "b"])


def test_a_case_shows_its_thread_and_the_versions_that_this_run_verifies(case):
    bundle = case._repr_mimebundle_()
    thread = case.thread
    for text in (bundle["text/plain"], bundle["text/html"]):
        parts = (thread.url, thread.title, thread.looked_up, torch.__version__, platform.python_version())
        assert all(part in text for part in parts)
    assert bundle[MIME] == {**thread.json(), "type": "case"}
