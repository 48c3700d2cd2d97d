"""The reference is the gradient in float64, computed on the used elements alone."""

import math

import pytest
import torch

from helpers.entries import Kind
from helpers.reference import reference

nan, inf = math.nan, math.inf


def test_without_used_all_entries_count_in_their_own_shape():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    shapes = []
    result = reference(lambda x: shapes.append(x.shape) or (x * x).sum(), x)
    assert shapes == [x.shape]
    assert result.data.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert result.mask.all() and result.mask.shape == x.shape


def test_the_gradient_is_computed_in_float64():
    dtypes = []

    def loss(x):
        dtypes.append(x.dtype)
        return (x / 3).sum()

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        result = reference(loss, torch.ones(2, dtype=dtype))
        assert result.data.dtype is torch.float64 and result.data.tolist() == [1 / 3, 1 / 3]
        result = reference(loss, torch.ones(2, dtype=dtype), used=torch.tensor([True, False]))
        assert result.data.dtype is torch.float64 and result.data.tolist() == [1 / 3, 0.0]
    assert set(dtypes) == {torch.float64}


def test_unused_entries_take_no_part_and_are_masked():
    x = torch.tensor([1.0, nan, inf, 1e30, 2.0])
    seen = []
    result = reference(lambda x: seen.append(x.tolist()) or (x * x).sum(), x, used=x < 10)
    assert seen == [[1.0, 2.0]]
    assert result.texts() == ["2", "--", "--", "--", "4"]
    assert result.data[1:4].tolist() == [0.0, 0.0, 0.0]


def test_an_undefined_gradient_of_a_used_entry_stays_undefined():
    result = reference(lambda x: (x / 0 * 0).sum() + (1 / x).sum(), torch.tensor([0.0, 1.0]))
    assert result.kinds() == [Kind.NAN, Kind.NAN]
    result = reference(lambda x: (1 / x).sum(), torch.tensor([0.0, 1.0]), used=torch.tensor([True, True]))
    assert result.texts() == ["-inf", "-1"]


def test_used_over_leading_dimensions_takes_whole_rows():
    x = torch.arange(6.0).reshape(3, 2)
    shapes = []
    result = reference(
        lambda rows: shapes.append(rows.shape) or (rows * rows).sum(), x, used=torch.tensor([True, False, True])
    )
    assert shapes == [(2, 2)]
    assert result.texts() == ["0", "2", "--", "--", "8", "10"]
    assert result.mask.tolist() == [[True, True], [False, False], [True, True]]


def test_entries_are_contiguous_detached_and_apart_from_x():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    for used in (None, torch.tensor([True, False])):
        result = reference(lambda x: x.sum(), x, used=used)
        assert result.data.is_contiguous() and result.mask.is_contiguous()
        assert not result.data.requires_grad
    used.fill_(False)
    assert x.grad is None and result.mask.tolist() == [True, False]


def test_small_inputs_and_losses():
    assert reference(lambda x: x * x, torch.tensor(3.0)).texts() == ["6"]
    assert reference(lambda x: x.sum().reshape(1, 1), torch.ones(2)).texts() == ["1", "1"]
    result = reference(lambda x: x.sum(), torch.ones(2), used=torch.tensor([False, False]))
    assert result.texts() == ["--", "--"]
    assert reference(lambda x: x.sum(), torch.ones(0)).texts() == []


def test_what_the_loss_does_not_depend_on_has_a_zero_gradient():
    weight = torch.ones(1, requires_grad=True)
    assert reference(lambda x: weight.sum(), torch.ones(2)).texts() == ["0", "0"]
    assert weight.grad is None


@pytest.mark.parametrize("shape", [(2,), (0,), (1, 2)])
def test_a_loss_that_is_no_scalar_is_refused(shape):
    with pytest.raises(ValueError, match=rf"loss must return a scalar, got a tensor of shape \({shape[0]},"):
        reference(lambda x: x.sum().expand(shape), torch.ones(2))


@pytest.mark.parametrize(
    ("used", "text"),
    [
        (torch.tensor([1, 0]), r"got torch.int64 of shape \(2,\)"),
        (torch.tensor([True, False, True]), r"got torch.bool of shape \(3,\)"),
        (torch.ones(3, 2).bool(), r"got torch.bool of shape \(3, 2\)"),
        (torch.ones(2, 3, 1).bool(), r"got torch.bool of shape \(2, 3, 1\)"),
    ],
    ids=repr,
)
def test_used_must_be_a_mask_over_leading_dimensions(used, text):
    with pytest.raises(
        ValueError, match=r"used must be a bool tensor over the leading dimensions of x \(2, 3\), " + text
    ):
        reference(lambda x: x.sum(), torch.ones(2, 3), used=used)
