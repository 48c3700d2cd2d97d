"""Two results agree exactly or within the stated tolerance, and nothing else makes them agree."""

from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import FLOATS, bits, floats, from_bits, properties, rank

from helpers.compare import Tolerance, differing, ulp_distance
from helpers.entries import MASKED, Absent, Entries, Raised, outcome

f16, bf16, f32, f64 = FLOATS
LIMIT = 2**63 - 1


def agree(expected, observed, **tolerance):
    return differing(outcome(expected), outcome(observed), Tolerance(**tolerance)) == []


def of(dtype, *values):
    return torch.tensor(values, dtype=dtype)


# Tolerance.


def test_a_tolerance_is_finite_and_says_what_it_allows():
    for name, value in (("ulps", -1), ("rtol", nan), ("atol", inf)):
        with pytest.raises(ValueError, match=f"{name} must be a finite number, at least 0; got {value}"):
            Tolerance(**{name: value})
    assert (str(Tolerance()), str(Tolerance(ulps=1))) == ("exactly", "within 1 ulp")
    all_of_it = Tolerance(4, 1e-6, 2.0, True, because="of x")
    assert str(all_of_it) == "within 4 ulps, rtol 1e-06, atol 2, sign of zero counts, because of x"


# Distance in ulps.


@properties
@given(st.data(), floats)
def test_distance_is_what_unbounded_integers_say(data, dtype):
    a, b = (from_bits(dtype, data.draw(bits(dtype, finite=True))) for _ in range(2))
    true = rank(b.item(), dtype) - rank(a.item(), dtype)
    assert ulp_distance(a, b).tolist() == [max(-LIMIT, min(LIMIT, true))]


def test_distance_is_int64_never_wraps_round_and_takes_any_view():
    a, b = of(f64, 2.0, 1.0, -2.0), of(f64, -2.0, -4.0, 2.0)
    assert ulp_distance(a, b).tolist() == [-LIMIT, -LIMIT, LIMIT]
    a = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    distance = ulp_distance(a.t(), torch.arange(6.0).reshape(2, 3).t().contiguous())
    assert distance.dtype is torch.int64 and distance.shape == (3, 2) and not distance.any()
    assert ulp_distance(torch.tensor([1 + 2j]).conj().imag, of(f32, -2.0)).tolist() == [0]
    for other in (f64, torch.int64):
        with pytest.raises(TypeError, match=f"one floating-point dtype, got torch.float32 and {other}"):
            ulp_distance(torch.ones(1), torch.ones(1, dtype=other))


# When is an element the expected one?


@pytest.mark.parametrize("tolerance", [{}, {"ulps": 1000}, {"rtol": 10.0}, {"atol": 1e30}, {"signed_zero": True}])
@pytest.mark.parametrize("dtype", FLOATS)
def test_no_tolerance_joins_what_is_not_finite_to_anything_else(dtype, tolerance):
    seen = Entries(of(dtype, nan, inf, -inf, 1.5, 7.0), torch.tensor([True] * 4 + [False]))
    assert agree([nan, inf, -inf, 1.5, MASKED], seen, **tolerance)
    largest = torch.finfo(dtype).max
    if dtype is not f64:  # a finite number that overflows the observed dtype is no infinity
        assert not agree([-1e300], of(dtype, -inf), **tolerance)
    for a, b in [(nan, 1.0), (nan, 0.0), (inf, largest), (inf, -inf), (nan, inf), (-inf, 0.0), (-inf, -largest)]:
        assert not agree(of(f64, a), of(dtype, b), **tolerance)
        assert not agree(of(f64, b), of(dtype, a), **tolerance)
    for value in (0.0, 1.0, nan, inf):
        masked = Entries(of(dtype, value), torch.tensor([False]))
        assert agree([MASKED], masked, **tolerance)
        assert not agree([value], masked, **tolerance) and not agree([MASKED], of(dtype, value), **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_sign_of_zero_counts_only_when_asked(dtype):
    assert agree([0.0, -0.0], of(dtype, -0.0, 0.0))
    assert agree([-0.0, 1.0, nan, -nan], of(dtype, -0.0, 1.0, -nan, nan), signed_zero=True)
    expected, observed = outcome([0.0, -0.0, 1.0]), outcome(of(dtype, -0.0, 0.0, 9.0))
    for tolerance in ({}, {"ulps": 3}, {"atol": 1.0}, {"rtol": 1.0}):
        assert differing(expected, observed, Tolerance(signed_zero=True, **tolerance)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("expected", "observed", "tolerance", "holds"),
    [
        # The sign of zero counts, and disturbs no tolerance elsewhere.
        (from_bits(f32, 1), of(f32, -0.0), {"signed_zero": True, "ulps": 1}, True),
        ([1.0], of(f32, 1.25), {"signed_zero": True, "atol": 0.25}, True),
        # Ulps are counted in the observed dtype, to which the expected number is rounded.
        (of(f64, 1.0 + 2.0**-23), of(f32, 1.0), {"ulps": 1}, True),
        (of(f64, 1.0 + 2.0**-23), of(f64, 1.0), {"ulps": 1}, False),
        # rtol is relative to the expected side, atol is added, and the bound itself holds.
        ([2.0], of(f64, 1.0), {"rtol": 0.5}, True),
        ([1.0], of(f64, 2.0), {"rtol": 0.5}, False),
        ([2.0], of(f64, 3.5), {"rtol": 0.5, "atol": 0.5}, True),
        ([2.0], of(f64, 3.75), {"rtol": 0.5, "atol": 0.5}, False),
        # atol is measured against the number as it was written: float16 rounds 0.1 up, and the distance would be 0.
        (of(f64, 0.1), of(f16, 0.1001), {"atol": 1e-9}, False),
        # A fraction is never cut down to a whole number, and large whole numbers are compared exactly.
        ([0.5], of(torch.uint8, 0), {}, False),
        ([inf], of(torch.int8, 127), {}, False),
        ([2**53 + 1], of(torch.int64, 2**53 + 1), {}, True),
        ([2**53], of(torch.int64, 2**53 + 1), {}, False),
        ([3], of(torch.int64, 5), {"atol": 1}, False),
        ([nan], of(torch.int64, 5), {"atol": 9}, False),
        # Truth values are compared as 0 and 1.
        ([1, 0], of(torch.bool, True, False), {}, True),
        ([0.5], of(torch.bool, True), {}, False),
    ],
)
def test_a_tolerance_reaches_exactly_as_far_as_stated(expected, observed, tolerance, holds):
    assert agree(expected, observed, **tolerance) is holds


# Which elements differ, and when that cannot be said.


SEEN = Raised("TypeError", "no implementation for mm")


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        (torch.zeros(0, 2), torch.zeros(0, 2), []),
        ([], torch.zeros(0, dtype=torch.int64), []),
        (torch.zeros(0, 2), torch.zeros(2, 0), None),
        ([1.0], 1.0, None),
        (Absent(), Absent(), []),
        (Absent(), [0.0], None),
        (Absent(), SEEN, None),
        (Absent(), MASKED, None),
        (Raised("ValueError"), SEEN, None),
        (Raised("TypeError"), SEEN, []),
        (Raised("TypeError", "implementation for"), SEEN, []),
        (Raised("TypeError", "implementation of"), SEEN, None),
        ([[1.0, 2.0, 3.0], [nan, MASKED, MASKED]], [[1.0, 5.0, nan], [nan, 0.0, MASKED]], [1, 2, 4]),
    ],
)
def test_only_alike_results_can_be_compared_and_nothing_broadcasts(a, b, found):
    assert differing(outcome(a), outcome(b)) == found
