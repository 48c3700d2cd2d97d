import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import FLOATS, masks, properties, tensors, to_bits
from torch.masked import masked_tensor

from helpers.entries import MASKED, Absent, Entries, Kind, Raised, describe, nested, outcome

nan, inf = math.nan, math.inf
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


# What becomes of each thing that a page may observe or expect.


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_a_tensor_keeps_its_dtype_shape_and_values(dtype):
    tensor = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    entries = outcome(tensor)
    assert entries.data.dtype is dtype
    assert entries.shape == (2, 2)
    assert entries.data.tolist() == tensor.tolist()
    assert entries.mask.dtype is torch.bool
    assert entries.mask.shape == (2, 2)
    assert entries.mask.all()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (0, 3), (1, 1), (2, 3, 4)])
def test_any_shape_is_kept(shape):
    entries = outcome(torch.zeros(shape))
    assert entries.shape == shape == tuple(entries.mask.shape)
    assert len(entries) == math.prod(shape)
    assert len(entries.texts()) == len(entries.labels()) == len(entries.kinds()) == len(entries)


def test_an_outcome_stays_what_it_is():
    for value in (outcome([1.0]), Absent(), Raised("TypeError", "no")):
        assert outcome(value) is value


def test_none_is_absent():
    assert outcome(None) == Absent()
    assert outcome(None).json() == {"absent": True}


def test_an_exception_is_known_by_its_type_and_message():
    assert outcome(TypeError("no method")) == Raised("TypeError", "no method")
    assert outcome(KeyError) == Raised("KeyError", "")
    assert outcome(TypeError("no method")).json() == {"raised": "TypeError", "message": "no method"}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(12.0)[::2].reshape(3, 2),
        torch.tensor([1.0, nan]).expand(3, 2),
        torch.arange(6.0, requires_grad=True).reshape(3, 2),
        torch.nn.Parameter(torch.tensor([1.0])),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.tensor([1 + 2j, 3 - 4j]).imag,
    ],
    ids=["transposed", "strided", "expanded", "requires_grad", "parameter", "negative bit", "view of complex"],
)
def test_data_is_plain_and_contiguous_whatever_the_tensor_was(tensor):
    data = outcome(tensor).data
    assert type(data) is torch.Tensor
    assert data.is_contiguous() and not data.requires_grad and not data.is_neg()
    torch.testing.assert_close(data, tensor.detach().clone().resolve_neg(), rtol=0, atol=0, equal_nan=True)


def test_a_later_change_in_place_does_not_reach_what_was_observed():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    x.sum().backward()
    entries = outcome(x.grad)
    x.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    assert entries.data.tolist() == [1.0, 1.0]
    array = np.array([1.0])
    entries = outcome(array)
    array[0] = 5.0
    assert entries.data.tolist() == [1.0]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_compared_densely():
    coo = torch.sparse_coo_tensor([[0, 2, 2]], [1.0, nan, 3.0], (4,), check_invariants=True)
    assert outcome(coo).texts() == ["1", "0", "NaN", "0"]
    twice = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (2,), check_invariants=True)
    assert outcome(twice).texts() == ["0", "3"]
    assert outcome(torch.tensor([[0.0, 2.0]]).to_sparse_csr()).texts() == ["0", "2"]


def test_a_masked_tensor_brings_its_mask():
    entries = outcome(masked_tensor(torch.tensor([nan, 0.0, 2.0]), torch.tensor([False, True, True])))
    assert entries.texts() == ["--", "0", "2"]
    assert entries.mask.tolist() == [False, True, True]


def test_a_masked_tensor_that_requires_grad_is_detached():
    entries = outcome(masked_tensor(torch.tensor([1.0, 2.0]), torch.tensor([True, False]), requires_grad=True))
    assert entries.texts() == ["1", "--"]
    assert type(entries.data) is torch.Tensor and not entries.data.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_masked_tensor_masks_what_it_does_not_store():
    data = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,), check_invariants=True)
    mask = torch.sparse_coo_tensor([[0, 2]], [True, False], (4,), check_invariants=True)
    assert outcome(masked_tensor(data, mask)).texts() == ["1", "--", "--", "--"]


@pytest.mark.parametrize(
    ("array", "dtype", "values"),
    [
        (np.array([1.5, nan], dtype=np.float32), torch.float32, [1.5, nan]),
        (np.array([1, 2], dtype=np.int8), torch.int8, [1, 2]),
        (np.array([True, False]), torch.bool, [True, False]),
        (np.arange(3.0)[::-1], torch.float64, [2.0, 1.0, 0.0]),
        (np.array([1.0, 2.0], dtype=">f8"), torch.float64, [1.0, 2.0]),
        (np.arange(4.0).reshape(2, 2).T, torch.float64, [[0.0, 2.0], [1.0, 3.0]]),
        (np.float16(1.5), torch.float16, 1.5),
        (np.float32(0.1), torch.float32, float(np.float32(0.1))),
        (np.float64(0.1), torch.float64, 0.1),
        (np.int64(7), torch.int64, 7),
        (np.bool_(True), torch.bool, True),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_numpy_arrays_and_scalars_keep_dtype_and_order(array, dtype, values):
    entries = outcome(array)
    assert entries.data.dtype is dtype
    assert entries.shape == np.shape(array)
    np.testing.assert_array_equal(entries.data.numpy(), np.array(values))


def test_a_read_only_array_gives_no_warning():
    array = np.ones(2)
    array.flags.writeable = False
    assert outcome(array).texts() == ["1", "1"]


@pytest.mark.parametrize(
    ("value", "dtype"), [(True, torch.bool), (3, torch.int64), (0.1, torch.float64), (-inf, torch.float64)]
)
def test_a_python_number_is_one_entry(value, dtype):
    entries = outcome(value)
    assert entries.shape == () and entries.data.dtype is dtype
    assert entries.data.item() == value


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([True, False], torch.bool),
        ([True, MASKED], torch.bool),
        ([True, 2], torch.int64),
        ([2**53 + 1, -(2**63)], torch.int64),
        ([2**63 - 1, MASKED], torch.int64),
        ([2**63], torch.float64),
        ([-(2**63) - 1], torch.float64),
        ([1, 0.5], torch.float64),
        ([True, 0.5], torch.float64),
        ([0.1, 1e300], torch.float64),
        ([1, nan], torch.float64),
        ([MASKED], torch.float64),
        ([], torch.float64),
        ([np.int64(2**53 + 1), np.int8(1)], torch.int64),
        ([np.bool_(True)], torch.bool),
        ([np.float32(0.1)], torch.float64),
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
    assert entries.shape == (2, 3)
    assert entries.texts() == ["1", "--", "NaN", "-inf", "0", "2"]
    assert entries.mask.tolist() == [[True, False, True], [True, True, True]]
    assert outcome([[[1.0]], [[2.0]]]).shape == (2, 1, 1)
    assert outcome([torch.tensor(1.0), torch.tensor(2)]).texts() == ["1", "2"]


@pytest.mark.parametrize(("value", "shape"), [([], (0,)), ([[], []], (2, 0)), ([[[]]], (1, 1, 0)), ((), (0,))])
def test_empty_lists_give_empty_tensors(value, shape):
    entries = outcome(value)
    assert entries.shape == shape and tuple(entries.mask.shape) == shape and entries.mask.dtype is torch.bool


def test_masked_alone_is_one_masked_entry():
    entries = outcome(MASKED)
    assert entries.shape == () and entries.kinds() == [Kind.MASKED]
    assert repr(MASKED) == "MASKED"


@pytest.mark.parametrize(
    "value",
    [[[1.0, 2.0], [3.0]], [1.0, [2.0]], [[1.0], 2.0], [[[1.0]], [[1.0, 2.0]]], [[], [1.0]]],
    ids=str,
)
def test_ragged_lists_are_refused(value):
    with pytest.raises(ValueError, match="rows of different shapes"):
        outcome(value)


@pytest.mark.parametrize("value", [torch.tensor([1j]), np.array([1j]), np.complex64(1j)], ids=repr)
def test_complex_tensors_are_refused_and_told_what_to_do(value):
    with pytest.raises(TypeError, match=r"cannot compare complex tensors.*claim \.real and \.imag"):
        outcome(value)


def test_a_complex_number_is_refused_and_told_what_to_do():
    with pytest.raises(TypeError, match=r"cannot compare a complex.*\.real and \.imag"):
        outcome(1 + 0j)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_refused_and_told_what_to_do():
    with pytest.raises(TypeError, match=r"cannot compare quantized tensors.*\.dequantize\(\)"):
        outcome(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused(layout):
    with pytest.raises(TypeError, match="cannot compare nested tensors"):
        outcome(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout))


@pytest.mark.parametrize(
    "value", ["1.0", {"a": 1}, {1.0}, object(), range(3), int], ids=lambda value: type(value).__name__
)
def test_what_has_no_entries_is_refused_by_name(value):
    with pytest.raises(TypeError, match=f"cannot compare a {type(value).__name__}: give a tensor, numbers, None"):
        outcome(value)


@pytest.mark.parametrize(
    "inside",
    ["1", None, 1j, np.complex64(1j), np.str_("1"), torch.tensor([1.0]), torch.ones(2), torch.tensor(1j), np.ones(2)],
    ids=repr,
)
def test_what_is_no_number_inside_a_list_is_refused_by_name(inside):
    single = isinstance(inside, np.generic) or (isinstance(inside, torch.Tensor) and not inside.dim())
    name = type(inside.item() if single else inside).__name__
    with pytest.raises(TypeError, match=f"expected a number or MASKED inside the sequence, found {name}"):
        outcome([1.0, inside])


# What an entry is, and how it is written.


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1.5, Kind.FINITE, "1.5"),
        (-2.0, Kind.FINITE, "-2"),
        (100.0, Kind.FINITE, "100"),
        (5e-324, Kind.FINITE, "4.9407e-324"),
        (0.0, Kind.ZERO, "0"),
        (-0.0, Kind.ZERO, "-0"),
        (nan, Kind.NAN, "NaN"),
        (inf, Kind.INF, "inf"),
        (-inf, Kind.INF, "-inf"),
        (MASKED, Kind.MASKED, "--"),
        (1 / 3, Kind.FINITE, "0.33333"),
        (123456.0, Kind.FINITE, "1.2346e+05"),
        (0, Kind.ZERO, "0"),
        (7, Kind.FINITE, "7"),
        (True, Kind.FINITE, "True"),
        (False, Kind.FINITE, "False"),
    ],
)
def test_every_kind_has_its_word_and_its_text(value, kind, text):
    assert outcome([value]).kinds() == [kind]
    assert outcome([value]).texts() == [text]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (28.999999999999996, "28.999999999999996"),
        (-28.999999999999996, "-28.999999999999996"),
        (1.00001, "1.00001"),
        (12345.678, "12345.678"),
        (1.5000004, "1.5"),
        (-0.0012345678, "-0.0012346"),
        (29.0, "29"),
        (-29.0, "-29"),
    ],
)
def test_a_fraction_never_looks_like_a_whole_number(value, text):
    assert outcome([value]).texts() == [text]


def test_a_number_written_in_full_is_so_in_its_own_dtype():
    assert outcome(torch.tensor([0.1, 2.5])).texts() == ["0.1", "2.5"]
    # The shortest text of this float16 is 10010, which is not what a reader takes it for.
    assert outcome(torch.tensor([10008.0], dtype=torch.float16)).texts() == ["10008"]
    assert outcome(torch.nextafter(torch.tensor([1.0]), torch.tensor([2.0]))).texts() == ["1.0000001"]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, torch.float16, "0.1"),
        (0.1, torch.bfloat16, "0.100097656"),
        (0.1, torch.float32, "0.1"),
        (0.1, torch.float64, "0.1"),
        (1 / 3, torch.float16, "0.3333"),
        (1 / 3, torch.float32, "0.33333334"),
        (1 / 3, torch.float64, "0.3333333333333333"),
        (4096.0, torch.float32, "4096"),
        (1e20, torch.float32, "1e+20"),
    ],
)
def test_without_digits_the_text_is_the_shortest_of_the_dtype(value, dtype, text):
    assert outcome(torch.tensor([value], dtype=dtype)).texts(None) == [text]


def test_whole_numbers_and_truth_values_are_written_in_full():
    assert outcome(torch.tensor([2**62, 0, -7])).texts() == [str(2**62), "0", "-7"]
    assert outcome(torch.tensor([True, False])).texts() == ["True", "False"]
    assert outcome(torch.tensor([2, 0])).kinds() == [Kind.FINITE, Kind.ZERO]


@properties
@given(tensors())
def test_the_shortest_text_identifies_every_value_of_every_dtype(tensor):
    texts = outcome(tensor).texts(None)
    for text, value, bits in zip(texts, tensor, to_bits(tensor), strict=True):
        parsed = torch.tensor([float(text)], dtype=torch.float64).to(tensor.dtype)
        if value.isnan():
            assert text == "NaN"
        else:
            assert to_bits(parsed) == [bits]


@properties
@given(st.data())
def test_json_keeps_shape_dtype_and_every_value(data):
    tensor = data.draw(tensors())
    mask = data.draw(masks(tensor))
    stored = json.loads(json.dumps(Entries(tensor, mask).json(), allow_nan=False))
    dtype = getattr(torch, stored["dtype"])
    assert dtype is tensor.dtype and stored["shape"] == list(tensor.shape)
    for text, value, used in zip(stored["entries"], tensor, mask.tolist(), strict=True):
        if not used:
            assert text == "--"
            continue
        back = torch.tensor(float(text), dtype=torch.float64).to(dtype)
        assert (back.isnan() and value.isnan()) or to_bits(back.reshape(1)) == to_bits(value.reshape(1))


def test_json_of_whole_numbers_is_exact():
    stored = outcome(torch.tensor([[2**63 - 1, -(2**63)]])).json()
    assert stored == {"dtype": "int64", "shape": [1, 2], "entries": [str(2**63 - 1), str(-(2**63))]}


def test_labels_are_indices_in_row_major_order():
    assert outcome(3.0).labels() == [""]
    assert outcome([1.0, 2.0]).labels() == ["[0]", "[1]"]
    assert outcome([[1.0, 2.0], [3.0, 4.0]]).labels() == ["[0, 0]", "[0, 1]", "[1, 0]", "[1, 1]"]
    assert outcome([]).labels() == []


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((), "0"),
        ((3,), "[0, 1, 2]"),
        ((0,), "[]"),
        ((2, 0), "[[], []]"),
        ((0, 2), "[]"),
        ((2, 2), "[[0, 1], [2, 3]]"),
        ((1, 2, 2), "[[[0, 1], [2, 3]]]"),
        ((3, 1), "[[0], [1], [2]]"),
    ],
)
def test_nested_brackets_follow_the_shape(shape, text):
    assert nested([str(i) for i in range(math.prod(shape))], shape) == text


def test_nested_is_cut_in_the_middle_only_beyond_its_limit_and_counts_what_it_leaves_out():
    texts = [str(i) for i in range(7)]
    assert nested(texts, (7,), limit=7) == "[0, 1, 2, 3, 4, 5, 6]"
    assert nested(texts, (7,), limit=5) == "[0, 1, 2, … 2 more …, 5, 6] of shape [7]"
    assert "more" not in nested(["1"] * 24, (24,))
    assert "… 1 more …" in nested(["1"] * 25, (5, 5))
    assert nested(["1"] * 25, (5, 5)).endswith("of shape [5, 5]")


def test_describe_says_what_stood_in_the_place_of_entries():
    assert describe(Absent()) == "None"
    assert describe(Raised("TypeError", "no")) == "raises TypeError"
    assert describe(outcome([[1 / 3, MASKED]])) == "[[0.33333, --]]"
    assert describe(outcome([1 / 3]), digits=None) == "[0.3333333333333333]"


def test_float8_is_refused_with_a_way_out():
    with pytest.raises(TypeError, match=r"float8_e4m3fn.*claim \.float\(\)"):
        outcome(torch.ones(2).to(torch.float8_e4m3fn))
