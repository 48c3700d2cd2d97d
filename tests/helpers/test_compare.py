import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import FLOATS, bits, floats, from_bits, masks, properties, rank, tensors, to_bits
from torch.masked import masked_tensor

from helpers.compare import Tolerance, differing, ulp_distance
from helpers.entries import MASKED, Absent, Entries, Raised, outcome

nan, inf = math.nan, math.inf
LIMIT = 2**63 - 1


def agree(expected, observed, **tolerance):
    return differing(outcome(expected), outcome(observed), Tolerance(**tolerance)) == []


def of(dtype, *values):
    return torch.tensor(values, dtype=dtype)


def next_after(tensor, steps=1):
    """The number that many places further up, by counting bits."""
    (word,) = to_bits(tensor)
    return from_bits(tensor.dtype, word + steps)


# Tolerance.


@pytest.mark.parametrize("name", ["ulps", "rtol", "atol"])
@pytest.mark.parametrize("value", [-1, nan, inf, -1e-9])
def test_a_tolerance_must_be_finite_and_not_negative(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a finite number, at least 0; got {value}"):
        Tolerance(**{name: value})


@pytest.mark.parametrize(
    ("tolerance", "text"),
    [
        (Tolerance(), "exactly"),
        (Tolerance(0, 0.0, 0.0), "exactly"),
        (Tolerance(ulps=1), "within 1 ulp"),
        (Tolerance(ulps=2), "within 2 ulps"),
        (Tolerance(rtol=1e-3), "rtol 0.001"),
        (Tolerance(atol=0.5), "atol 0.5"),
        (Tolerance(signed_zero=True), "sign of zero counts"),
        (Tolerance(4, 1e-6, 2.0, True), "within 4 ulps, rtol 1e-06, atol 2, sign of zero counts"),
    ],
)
def test_a_tolerance_says_what_it_allows(tolerance, text):
    assert str(tolerance) == text


# Distance in ulps.


@properties
@given(st.data(), floats)
def test_distance_is_what_unbounded_integers_say(data, dtype):
    a, b = (from_bits(dtype, data.draw(bits(dtype, finite=True))) for _ in range(2))
    true = rank(b.item(), dtype) - rank(a.item(), dtype)
    assert ulp_distance(a, b).tolist() == [max(-LIMIT, min(LIMIT, true))]


@properties
@given(st.data(), st.integers(0, 40))
def test_small_distances_count_steps_of_nextafter_in_float64(data, steps):
    start = from_bits(torch.float64, data.draw(bits(torch.float64, finite=True) | st.integers(0, 30)))
    end = start.item()
    for _ in range(steps):
        end = math.nextafter(end, -inf)
    assume(math.isfinite(end))
    assert ulp_distance(start, of(torch.float64, end)).tolist() == [-steps]


@pytest.mark.parametrize(
    ("a", "b"), [(2.0, -2.0), (1.0, -4.0), (4.0, -1.0), (1e308, -1e308), (2.0, -3.0), (torch.finfo().max, -3e200)]
)
def test_opposite_signs_in_float64_never_wrap_round(a, b):
    true = rank(b, torch.float64) - rank(a, torch.float64)
    assert ulp_distance(of(torch.float64, a, b), of(torch.float64, b, a)).tolist() == [
        max(-LIMIT, true),
        min(LIMIT, -true),
    ]


def test_distance_is_int64_in_the_shape_of_its_sides_whatever_their_strides():
    a = torch.arange(6.0).reshape(2, 3)
    distance = ulp_distance(a.t(), torch.arange(6.0).reshape(2, 3).t().contiguous())
    assert distance.dtype is torch.int64 and distance.shape == (3, 2) and not distance.any()
    assert ulp_distance(torch.tensor(1.0), torch.tensor(1.0)).shape == ()
    assert ulp_distance(torch.zeros(0, 2), torch.zeros(0, 2)).shape == (0, 2)


def test_distance_takes_tensors_that_require_grad_and_views_with_a_negative_bit():
    one = torch.ones(1, requires_grad=True)
    assert ulp_distance(one, torch.ones(1)).tolist() == [0]
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_neg()
    assert ulp_distance(negated, torch.tensor([-2.0])).tolist() == [0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.float32, torch.float64),
        (torch.float16, torch.bfloat16),
        (torch.int64, torch.int64),
        (torch.bool, torch.bool),
        (torch.complex64, torch.complex64),
    ],
)
def test_distance_needs_one_floating_point_dtype(a, b):
    with pytest.raises(TypeError, match=f"one floating-point dtype, got {a} and {b}"):
        ulp_distance(torch.ones(1, dtype=a), torch.ones(1, dtype=b))


# When is an entry the expected one?


@pytest.mark.parametrize("dtype", FLOATS)
def test_conventions_of_an_exact_comparison(dtype):
    seen = Entries(of(dtype, nan, inf, -inf, -0.0, 1.5, 7.0), torch.tensor([True] * 5 + [False]))
    assert agree([nan, inf, -inf, 0.0, 1.5, MASKED], seen)
    for expected, observed in [(inf, -inf), (nan, inf), (nan, 0.0), (0.0, nan), (inf, nan), (1.5, -1.5), (0.0, 1.5)]:
        assert not agree([expected], of(dtype, observed))
        assert not agree([observed], of(dtype, expected))


@pytest.mark.parametrize("tolerance", [{}, {"ulps": 1000}, {"rtol": 10.0}, {"atol": 1e30}, {"signed_zero": True}])
@pytest.mark.parametrize(("a", "b"), [(nan, 1.0), (inf, 1.0), (inf, -inf), (nan, inf), (-inf, 0.0)])
def test_no_tolerance_joins_what_is_not_finite_to_anything_else(a, b, tolerance):
    for dtype in FLOATS:
        assert not agree([a], of(dtype, b), **tolerance)
        assert not agree([b], of(dtype, a), **tolerance)
        assert agree([a, b], of(dtype, a, b), **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("tolerance", [{"ulps": 10}, {"rtol": 1.0}, {"atol": 1e30}])
def test_inf_is_not_near_the_largest_finite_number(dtype, tolerance):
    largest = torch.finfo(dtype).max
    assert not agree(of(dtype, inf), of(dtype, largest), **tolerance)
    assert not agree(of(dtype, largest), of(dtype, inf), **tolerance)
    assert not agree(of(dtype, -largest), of(dtype, -inf), **tolerance)


@pytest.mark.parametrize("value", [0.0, 1.0, nan, inf])
def test_masked_is_nothing_but_masked(value):
    masked = masked_tensor(torch.tensor([value]), torch.tensor([False]))
    assert agree([MASKED], masked)
    assert agree(masked_tensor(torch.tensor([5.0]), torch.tensor([False])), masked)
    for tolerance in ({}, {"atol": 1e9}, {"ulps": 9}):
        assert not agree([value], masked, **tolerance)
        assert not agree([MASKED], torch.tensor([value]), **tolerance)


def test_the_sign_of_zero_counts_only_when_asked():
    for dtype in FLOATS:
        assert agree([0.0], of(dtype, -0.0))
        assert agree([-0.0], of(dtype, 0.0))
        assert agree([-0.0], of(dtype, -0.0), signed_zero=True)
        assert agree([0.0, 1.0, nan], of(dtype, 0.0, 1.0, nan), signed_zero=True)
        assert agree([nan], of(dtype, -nan), signed_zero=True)
        assert agree([-nan], of(dtype, nan), signed_zero=True)
        for tolerance in ({}, {"ulps": 3}, {"atol": 1.0}, {"rtol": 1.0}):
            assert not agree([0.0], of(dtype, -0.0), signed_zero=True, **tolerance)
            assert not agree([-0.0], of(dtype, 0.0), signed_zero=True, **tolerance)


def test_numbers_differ_also_where_the_sign_of_zero_counts():
    assert differing(outcome([1.0, 2.0]), outcome([1.0, 3.0]), Tolerance(signed_zero=True)) == [1]
    assert differing(outcome([1.0, 2.0]), outcome([1.0, 3.0]), Tolerance(ulps=1, signed_zero=True)) == [1]


def test_the_sign_of_zero_does_not_disturb_a_tolerance_elsewhere():
    least = from_bits(torch.float32, 1)
    assert agree(least, torch.tensor([-0.0]), signed_zero=True, ulps=1)
    assert agree([0.0], least, signed_zero=True, ulps=1)
    assert agree([1.0], torch.tensor([1.25]), signed_zero=True, atol=0.25)


def test_ulps_are_counted_in_the_observed_dtype():
    expected = of(torch.float64, 1.0 + 2.0**-23)
    assert agree(expected, of(torch.float32, 1.0), ulps=1)
    assert not agree(expected, of(torch.float64, 1.0), ulps=1)


def test_rtol_is_relative_to_the_expected_side():
    assert agree([2.0], of(torch.float64, 1.0), rtol=0.5)
    assert not agree([1.0], of(torch.float64, 2.0), rtol=0.5)
    assert agree([-2.0], of(torch.float64, -1.0), rtol=0.5)


def test_atol_and_rtol_add_up_and_the_bound_itself_holds():
    assert agree([2.0], of(torch.float64, 3.5), atol=0.5, rtol=0.5)
    assert not agree([2.0], of(torch.float64, 3.5), atol=0.5)
    assert not agree([2.0], of(torch.float64, 3.5), rtol=0.5)
    assert not agree([2.0], of(torch.float64, 3.75), atol=0.5, rtol=0.5)
    assert agree([1.0], of(torch.float64, 1.5), atol=0.5)


def test_an_absolute_tolerance_is_measured_against_the_number_as_it_was_written():
    # float16 rounds 0.1 up: against the rounded number the distance would be 0.
    assert not agree(of(torch.float64, 0.1), of(torch.float16, 0.1001), atol=1e-9)
    assert agree(of(torch.float64, 0.1), of(torch.float16, 0.1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_number_is_rounded_to_the_observed_dtype(dtype):
    assert agree([0.1, 1 / 3], of(dtype, 0.1, 1 / 3))
    assert not agree([0.1], next_after(of(dtype, 0.1)))


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float16, 1e5), (torch.bfloat16, 1e39), (torch.float32, 1e39), (torch.float32, -1e300)]
)
@pytest.mark.parametrize("tolerance", [{}, {"ulps": 4}, {"rtol": 1.0}, {"atol": 1e300}])
def test_a_finite_number_that_overflows_the_observed_dtype_is_not_inf(dtype, value, tolerance):
    assert not agree([value], of(dtype, math.copysign(inf, value)), **tolerance)
    assert agree([math.copysign(inf, value)], of(dtype, math.copysign(inf, value)), **tolerance)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_a_fraction_is_never_cut_down_to_the_whole_number_observed(dtype):
    assert agree([1, 2.0], of(dtype, 1, 2))
    assert not agree([0.5], of(dtype, 0))
    assert not agree([1.5], of(dtype, 1))
    assert not agree([nan], of(dtype, 0))
    assert not agree([inf], of(dtype, 127))
    assert not agree([1, 0.5], of(dtype, 1, 0))


def test_large_whole_numbers_are_compared_exactly():
    large = 2**53
    assert agree([large + 1], torch.tensor([large + 1]))
    assert not agree([large], torch.tensor([large + 1]))
    assert not agree([float(large)], torch.tensor([large + 1]))
    assert not agree(of(torch.float64, large), torch.tensor([large + 1]))


def test_a_stated_tolerance_holds_for_whole_numbers_too():
    assert agree([3], torch.tensor([4]), atol=1)
    assert not agree([3], torch.tensor([5]), atol=1)
    assert agree([10], torch.tensor([11]), rtol=0.1)
    assert not agree([inf], torch.tensor([5]), rtol=0.1)
    assert not agree([nan], torch.tensor([5]), atol=9)


def test_truth_values_are_compared_as_0_and_1():
    assert agree([True, False], torch.tensor([True, False]))
    assert agree([1, 0], torch.tensor([True, False]))
    assert not agree([True], torch.tensor([False]))
    assert not agree([2], torch.tensor([True]))
    assert not agree([0.5], torch.tensor([True]))


# Which entries differ, and when that cannot be said.


def test_flat_indices_of_all_differences_in_order():
    expected = outcome([[1.0, 2.0, 3.0], [nan, MASKED, MASKED]])
    observed = outcome([[1.0, 5.0, nan], [nan, 0.0, MASKED]])
    assert differing(expected, observed) == [1, 2, 4]


def test_empty_tensors_of_one_shape_agree():
    assert differing(outcome(torch.zeros(0, 2)), outcome(torch.zeros(0, 2))) == []
    assert differing(outcome([]), outcome(torch.zeros(0, dtype=torch.int64))) == []
    assert differing(outcome(torch.zeros(0, 2)), outcome(torch.zeros(2, 0))) is None
    assert differing(outcome(torch.zeros(0)), outcome(torch.zeros(()))) is None


@pytest.mark.parametrize(("a", "b"), [([1.0], 1.0), ([1.0, 1.0], [1.0]), ([[1.0, 1.0]], [[1.0], [1.0]])])
def test_other_shapes_cannot_be_compared_and_do_not_broadcast(a, b):
    assert differing(outcome(a), outcome(b)) is None
    assert differing(outcome(b), outcome(a)) is None


def test_nothing_agrees_only_with_nothing():
    assert differing(Absent(), Absent()) == []
    for other in (outcome([0.0]), outcome([]), Raised("TypeError"), outcome(MASKED)):
        assert differing(Absent(), other) is None
        assert differing(other, Absent()) is None


def test_exceptions_agree_by_type_name_and_message():
    class Special(TypeError):
        pass

    seen = outcome(TypeError("no implementation for mm"))
    assert differing(Raised("TypeError"), seen) == []
    assert differing(Raised("TypeError", "implementation for"), seen) == []
    assert differing(Raised("TypeError", "implementation of"), seen) is None
    assert differing(Raised("ValueError"), seen) is None
    assert differing(seen, Raised("TypeError")) is None
    assert differing(Raised("TypeError"), outcome(Special("x"))) is None
    assert differing(Raised("Special"), outcome(Special("x"))) == []
    assert differing(Raised("TypeError"), outcome([1.0])) is None
    assert differing(outcome([1.0]), Raised("TypeError")) is None


# Properties of the comparison.


@properties
@given(st.data(), st.booleans(), st.integers(0, 3))
def test_everything_agrees_with_itself(data, signed_zero, ulps):
    tensor = data.draw(tensors())
    entries = Entries(tensor, data.draw(masks(tensor)))
    assert differing(entries, entries, Tolerance(ulps=ulps, signed_zero=signed_zero)) == []


@properties
@given(st.data(), st.integers(0, 2))
def test_one_entry_moved_by_one_ulp_is_found_unless_that_much_is_allowed(data, ulps):
    tensor = data.draw(tensors(finite=True, min_size=1))
    index = data.draw(st.integers(0, tensor.numel() - 1))
    words = to_bits(tensor)
    words[index] += 1
    moved = from_bits(tensor.dtype, *words)
    assume(moved.isfinite().all())
    found = [] if ulps else [index]
    assert differing(outcome(tensor), outcome(moved), Tolerance(ulps=ulps)) == found
    assert differing(outcome(moved), outcome(tensor), Tolerance(ulps=ulps)) == found


@properties
@given(st.data())
def test_one_entry_more_or_less_under_the_mask_is_found(data):
    tensor = data.draw(tensors(min_size=1))
    mask = data.draw(masks(tensor))
    index = data.draw(st.integers(0, tensor.numel() - 1))
    other = mask.clone()
    other[index] ^= True
    assert differing(Entries(tensor, mask), Entries(tensor, other)) == [index]


@properties
@given(st.data(), st.integers(0, 5))
def test_finite_numbers_agree_exactly_when_no_further_apart_than_allowed(data, ulps):
    dtype = data.draw(floats)
    a, b = (from_bits(dtype, data.draw(bits(dtype, finite=True))) for _ in range(2))
    apart = abs(rank(a.item(), dtype) - rank(b.item(), dtype))
    assert (differing(outcome(a), outcome(b), Tolerance(ulps=ulps)) == []) == (apart <= ulps)
