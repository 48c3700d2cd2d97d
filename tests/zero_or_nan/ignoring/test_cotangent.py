"""The tensor itself: masks are shared between cotangents, and a write reaches just those that see the memory."""

import math

import pytest
import torch

from zero_or_nan.ignoring import Cotangent
from zero_or_nan.masks.cotangent import CHUNK

VALUE = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
MASK = torch.tensor([[False, True], [True, False]])


def cotangent():
    return Cotangent(VALUE.clone(), MASK.clone())


def test_writing_into_a_copy_leaves_the_mask_of_the_original():
    original = cotangent()
    for copy in (original.clone(), original * 2, original + original, original.detach().clone()):
        copy.copy_(torch.ones(2, 2))
    assert original.value.tolist() == VALUE.tolist()
    assert original.mask.tolist() == MASK.tolist()


def test_numbers_written_through_a_view_count_in_its_base():
    base = cotangent() * 2
    base.t().select(1, 0).copy_(torch.ones(2))
    assert base.value.tolist() == [[1, 1], [6, 0]]
    assert base.mask.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize(("size", "stride", "offset"), [((2,), (5,), 3), ((2, 2), (2, 5), 1), ((2,), (3,), 3)])
def test_a_strided_view_of_a_value_with_gaps_in_memory(size, stride, offset):
    """The mask of the view has the elements that the value of the view has."""
    value = torch.zeros(12).as_strided((2, 2), (5, 2), 1).copy_(VALUE)
    view = Cotangent(value, MASK).as_strided(size, stride, offset)
    assert torch.equal(view.mask, view.value != 0)


def test_a_product_with_what_is_not_finite_counts_where_the_cotangent_does():
    product = cotangent() * torch.tensor([[float("nan"), float("inf")], [1.0, float("inf")]])
    assert product.value.tolist() == [[0.0, float("inf")], [3.0, 0.0]]
    assert product.mask.tolist() == MASK.tolist()


def test_a_sum_of_all_entries_may_keep_its_dimensions():
    total = cotangent().sum([], keepdim=True)
    assert total.value.shape == total.mask.shape == (1, 1)
    assert cotangent().sum([]).mask.shape == ()


def test_a_zero_in_place_of_an_ignored_entry_leaves_it_ignored_and_a_number_counts():
    ignored = Cotangent(torch.tensor([0.0, 0.0, 0.0, 3.0]), torch.tensor([False, False, False, True]))
    written, there = torch.tensor([0.0, 5.0, 7.0, 0.0]), torch.tensor([True, True, False, True])
    for result in (torch.where(there, written, ignored), torch.where(~there, ignored, written)):
        assert result.value.tolist() == [0.0, 5.0, 0.0, 0.0]
        assert result.mask.tolist() == [False, True, False, True]
    assert torch.where(there, 5.0, ignored).mask.tolist() == [True, True, False, True]


@pytest.mark.parametrize("used", [
    torch.arange(2 * CHUNK + 3) % 2 == 0, torch.arange(3 * CHUNK) >= 2 * CHUNK, torch.arange(3 * CHUNK) > CHUNK + 5
], ids=["mixed", "in order", "in order, within a part"])  # fmt: skip
def test_a_large_cotangent_is_fixed_in_all_its_parts(used):
    factor = torch.where(used, 3.0, float("nan"))
    factor[-1] = float("nan")
    product = Cotangent(used.float(), used) * factor
    assert product.value[-1].isnan()
    assert torch.equal(product.value[:-1], torch.where(used, 3.0, 0.0)[:-1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_used_entry_that_meets_what_is_not_finite_in_the_other_factor(bad):
    saved = torch.tensor([[1.0, bad], [2.0, 3.0]])
    used = Cotangent(torch.tensor([[1.0, 0.0], [5.0, 0.0]]), torch.tensor([[True, False]]).expand(2, 2))
    product = torch.mm(saved, used)
    torch.testing.assert_close(product.value, torch.tensor([[bad, 0.0], [17.0, 0.0]]), equal_nan=True)
    transposed = torch.mm(used.t(), saved.t())
    torch.testing.assert_close(transposed.value, torch.tensor([[bad, 17.0], [0.0, 0.0]]), equal_nan=True)
    assert product.mask.tolist() == [[True, False]] * 2 and transposed.mask.tolist() == [[True] * 2, [False] * 2]
