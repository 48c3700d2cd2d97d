"""The reference is the gradient in float64, computed on the used elements alone."""

from math import inf, nan

import pytest
import torch

from helpers.entries import Kind
from helpers.reference import reference


@pytest.mark.parametrize(
    ("x", "used", "seen", "texts"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], None, [[1.0, 2.0], [3.0, 4.0]], ["2", "4", "6", "8"]),
        ([1.0, nan, inf, 1e30, 2.0], [True, False, False, False, True], [1.0, 2.0], ["2", "--", "--", "--", "4"]),
        # Over the leading dimensions, whole rows are used; over all dimensions, single elements.
        ([[0.0, 1.0], [2.0, 3.0]], [False, True], [[2.0, 3.0]], ["--", "--", "4", "6"]),
        ([[1.0, 2.0], [3.0, 4.0]], [[False, True], [True, True]], [2.0, 3.0, 4.0], ["--", "4", "6", "8"]),
        (3.0, None, 3.0, ["6"]),
        ([1.0, 2.0], [False, False], [], ["--", "--"]),
        ([], None, [], []),
    ],
)
def test_the_loss_sees_the_used_elements_alone(x, used, seen, texts):
    given = []
    mask = None if used is None else torch.tensor(used)
    result = reference(lambda x: given.append(x.tolist()) or (x * x).sum(), torch.tensor(x), used=mask)
    assert given == [seen] and result.texts() == texts
    assert result.shape == tuple(torch.tensor(x).shape) and not result.data[~result.mask].any()


def test_the_gradient_is_computed_in_float64():
    for dtype in (torch.bfloat16, torch.float32, torch.int64):
        for used in (None, torch.tensor([True, True])):
            result = reference(lambda x: (x / 3).sum(), torch.ones(2, dtype=dtype), used=used)
            assert result.data.dtype is torch.float64 and result.data.tolist() == [1 / 3, 1 / 3]
    weight = torch.ones(1, requires_grad=True)
    assert reference(lambda x: weight.sum(), torch.ones(2)).texts() == ["0", "0"] and weight.grad is None


def test_an_undefined_gradient_of_a_used_entry_stays_undefined():
    result = reference(lambda x: (x / 0 * 0).sum() + (1 / x).sum(), torch.tensor([0.0, 1.0]))
    assert result.kinds() == [Kind.NAN, Kind.NAN]
    result = reference(lambda x: (1 / x).sum(), torch.tensor([0.0, 1.0]), used=torch.tensor([True, True]))
    assert result.texts() == ["-inf", "-1"]


def test_a_loss_that_is_no_scalar_and_a_mask_that_does_not_fit_are_refused():
    assert reference(lambda x: x.sum().reshape(1, 1), torch.ones(2)).texts() == ["1", "1"]
    with pytest.raises(ValueError, match=r"loss must return a scalar, got a tensor of shape \(2,"):
        reference(lambda x: x, torch.ones(2))
    message = r"used must be a bool tensor over the leading dimensions of x \(2, 3\), got "
    for used, text in (
        (torch.tensor([1, 0]), r"torch.int64 of shape \(2,\)"),
        (torch.ones(3, 2).bool(), r"torch.bool of shape \(3, 2\)"),
        (torch.ones(2, 3, 1).bool(), r"torch.bool of shape \(2, 3, 1\)"),
    ):
        with pytest.raises(ValueError, match=message + text):
            reference(lambda x: x.sum(), torch.ones(2, 3), used=used)
