"""A mask that is kept in its smallest shape says the same as one that is written out."""

import itertools
import math

import pytest
import torch

from zero_or_nan.ignoring.masks import all_count, anywhere, both, core, either, reduced, reshaped

SHAPES = [(4,), (3, 4), (2, 3, 4), (2, 1, 3), (16, 16, 16)]


def expanded_masks():
    """Masks of each shape, constant along each choice of dimensions."""
    torch.manual_seed(0)
    for shape in SHAPES:
        for constant in itertools.product([False, True], repeat=len(shape)):
            small = [1 if flat else size for flat, size in zip(constant, shape, strict=True)]
            yield (torch.rand(small) > 0.5).expand(shape)


MASKS = list(expanded_masks())


def test_the_core_is_what_was_expanded():
    for mask in MASKS:
        assert torch.equal(core(mask).expand(mask.shape), mask)
        assert core(mask).numel() == math.prod(
            1 if step == 0 else size for size, step in zip(mask.shape, mask.stride(), strict=True)
        )


def test_both_and_either():
    for a, b in itertools.product(MASKS, MASKS):
        if a.shape == b.shape:
            assert torch.equal(both(a, b), a.contiguous() & b.contiguous())
            assert torch.equal(either(a, b), a.contiguous() | b.contiguous())


@pytest.mark.parametrize("keepdim", [False, True])
def test_anywhere(keepdim):
    for mask in MASKS:
        dense = mask.contiguous()
        assert bool(anywhere(mask)) == bool(dense.any())
        assert all_count(mask) == bool(dense.all())
        for count in range(1, mask.dim() + 1):
            for dims in itertools.combinations(range(mask.dim()), count):
                negative = [d - mask.dim() for d in dims]
                expected = torch.any(dense, dims, keepdim)
                assert torch.equal(anywhere(mask, dims, keepdim), expected)
                assert torch.equal(anywhere(mask, negative, keepdim), expected)


def test_reshaped():
    for mask in MASKS:
        sizes = [4, 3, 2, 8, 16, 256, 1, -1]
        for shape in itertools.chain([(mask.numel(),), (-1,)], itertools.product(sizes, repeat=3)):
            known = math.prod(size for size in shape if size != -1)
            if shape.count(-1) > 1 or mask.numel() % known or (-1 not in shape and known != mask.numel()):
                continue
            assert torch.equal(reshaped(mask, shape), mask.contiguous().reshape(shape))


def test_rows_stay_rows():
    rows = (torch.arange(8).reshape(8, 1, 1) % 2 == 0).expand(8, 64, 256)
    assert core(reshaped(rows, (512, 256))).shape == (512, 1)
    assert core(anywhere(rows, -1, keepdim=True)).numel() == 8
    assert core(both(rows, rows[:, :, :1].expand(8, 64, 256))).numel() == 8


def test_reduced_is_the_sum_over_what_was_broadcast():
    for mask in MASKS:
        for shape in itertools.product(*((1, size) for size in mask.shape)):
            expected = mask.contiguous().double().sum_to_size(shape) != 0
            assert torch.equal(reduced(mask, shape), expected)
        assert torch.equal(reduced(mask, mask.shape[1:]), mask.any(0))
