"""Whatever a page observes or expects becomes exact elements with a mask, or a clear error."""

import math
from math import inf, nan

import numpy as np
import pytest
import torch
from strategies import FLOATS
from torch.masked import masked_tensor

from helpers.entries import MASKED, Absent, Kind, describe, nested, outcome

f16, bf16, f32, f64 = FLOATS


def test_a_later_change_in_place_does_not_reach_what_was_observed():
    for changing in (torch.ones(1), np.ones(1), masked_tensor(torch.ones(1), torch.tensor([True])).get_data()):
        entries = outcome(changing)
        changing += 1
        assert entries.data.tolist() == [1.0]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_compared_densely():
    twice = torch.sparse_coo_tensor([[0, 2, 2]], [1.0, nan, 3.0], (4,), check_invariants=True)
    assert outcome(twice).texts() == ["1", "0", "NaN", "0"]
    mask = torch.sparse_coo_tensor([[0, 2]], [True, False], (4,), check_invariants=True)
    data = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,), check_invariants=True)
    assert outcome(masked_tensor(data, mask)).texts() == ["1", "--", "--", "--"]


def test_numpy_arrays_are_read_in_any_byte_order():
    assert outcome(np.array([1.0, 2.5], dtype=">f8")).texts() == ["1", "2.5"]


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([True, MASKED], torch.bool),
        ([True, 2], torch.int64),
        ([2**63 - 1, -(2**63), MASKED], torch.int64),
        ([2**63], f64),
        ([-(2**63) - 1], f64),
        ([1, nan], f64),
        ([MASKED], f64),
        ([np.int64(2**53 + 1), np.int8(1)], torch.int64),
        ([np.float32(0.1)], f64),
        ([torch.tensor(2), torch.tensor(True)], torch.int64),
    ],
    ids=str,
)
def test_plain_numbers_become_the_first_dtype_that_holds_them_all(numbers, dtype):
    entries = outcome(numbers)
    assert entries.data.dtype is dtype
    for number, value, used in zip(numbers, entries.data.tolist(), entries.mask.tolist(), strict=True):
        assert used is (number is not MASKED)
        assert not used or value == float(number) or value == number or math.isnan(number)


def test_nested_lists_give_their_shape_and_row_major_order():
    entries = outcome([[1.0, MASKED, nan], (-inf, 0, np.float32(2))])
    assert entries.shape == (2, 3) and entries.texts() == ["1", "--", "NaN", "-inf", "0", "2"]
    assert entries.mask.tolist() == [[True, False, True], [True, True, True]]
    assert entries.labels()[2:4] == ["[0, 2]", "[1, 0]"] and outcome(3.0).labels() == [""]
    assert outcome(MASKED).shape == () and outcome(MASKED).kinds() == [Kind.MASKED] and repr(MASKED) == "MASKED"
    for empty, shape in (([], (0,)), ([[], []], (2, 0)), ([[[]]], (1, 1, 0))):
        assert outcome(empty).shape == shape == tuple(outcome(empty).mask.shape)
    for ragged in ([[1.0, 2.0], [3.0]], [1.0, [2.0]], [[], [1.0]]):
        with pytest.raises(ValueError, match="rows of different shapes"):
            outcome(ragged)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.tensor([1j]), r"cannot compare complex tensors.*claim \.real and \.imag"),
        (lambda: 1 + 0j, r"cannot compare a complex.*\.real and \.imag"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), r"quantized.*\.dequantize\(\)"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "cannot compare nested tensors"),
        (lambda: torch.ones(2).to(torch.float8_e4m3fn), r"float8_e4m3fn.*claim \.float\(\)"),
        (lambda: "1.0", "cannot compare a str: give a tensor, numbers, None"),
        (lambda: int, "cannot compare a type: give"),
        (lambda: [1.0, "1"], "expected a number or MASKED inside the sequence, found str"),
        (lambda: [1.0, torch.ones(1)], "found Tensor"),
    ],
)
def test_what_has_no_elements_to_compare_is_refused_with_advice(make, message):
    with pytest.raises(TypeError, match=message):
        outcome(make())


# How an element is written.


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1 / 3, Kind.FINITE, "0.33333"),
        (5e-324, Kind.FINITE, "4.9407e-324"),
        (123456.0, Kind.FINITE, "1.2346e+05"),
        (0.0, Kind.ZERO, "0"),
        (-0.0, Kind.ZERO, "-0"),
        (nan, Kind.NAN, "NaN"),
        (inf, Kind.INF, "inf"),
        (-inf, Kind.INF, "-inf"),
        (MASKED, Kind.MASKED, "--"),
        (0, Kind.ZERO, "0"),
        (-(2**62), Kind.FINITE, str(-(2**62))),
        (False, Kind.FINITE, "False"),
        # A fraction never looks like a whole number.
        (-28.999999999999996, Kind.FINITE, "-28.999999999999996"),
        (1.5000004, Kind.FINITE, "1.5"),
    ],
)
def test_every_kind_has_its_word_and_its_text(value, kind, text):
    assert outcome([value]).kinds() == [kind]
    assert outcome([value]).texts() == [text]


@pytest.mark.parametrize(
    ("value", "dtype", "digits", "text"),
    [(0.1, f16, None, "0.1"), (0.1, bf16, None, "0.100097656"), (1 / 3, f32, None, "0.33333334"),
     (1 / 3, f64, None, "0.3333333333333333"), (4096.0, f32, None, "4096"),
     # The shortest text of this float16 is 10010, which is not what a reader takes it for.
     (10008.0, f16, 5, "10008"), (1 + 2**-23, f32, 5, "1.0000001")],
)  # fmt: skip
def test_the_shortest_text_is_that_of_the_dtype(value, dtype, digits, text):
    assert outcome(torch.tensor([value], dtype=dtype)).texts(digits) == [text]


def test_a_line_follows_the_shape_and_a_long_one_is_cut_in_the_middle():
    for shape, text in (((), "0"), ((2, 0), "[[], []]"), ((0, 2), "[]"), ((1, 2, 2), "[[[0, 1], [2, 3]]]")):
        assert nested([str(i) for i in range(math.prod(shape))], shape) == text
    texts = [str(i) for i in range(7)]
    assert nested(texts, (7,), limit=7) == "[0, 1, 2, 3, 4, 5, 6]"
    assert nested(texts, (7,), limit=5) == "[0, 1, 2, … 2 more …, 5, 6] of shape [7]"
    assert describe(Absent()) == "None" and describe(outcome([[1 / 3, MASKED]]), digits=3) == "[[0.333, --]]"
