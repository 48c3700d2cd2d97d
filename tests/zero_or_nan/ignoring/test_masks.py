"""Masks in their smallest shape, and the tensor that has one, with rules for operators that any derivative may call."""

import itertools
import math
from math import nan

import pytest
import torch
from tensors import all_bits

from zero_or_nan.ignoring import Cotangent
from zero_or_nan.masks import mask as masks
from zero_or_nan.masks.mask import (
    and_whatever_is_not_0,
    anywhere,
    both,
    core,
    only,
    reshaped,
)

SHAPES = [(4,), (3, 4), (2, 3, 4), (2, 1, 3), (16, 16, 16)]


def expanded_masks():
    """Masks of each shape, constant along each choice of dimensions."""
    torch.manual_seed(0)
    for shape in SHAPES:
        for constant in itertools.product([False, True], repeat=len(shape)):
            small = [1 if flat else size for flat, size in zip(constant, shape, strict=True)]
            yield (torch.rand(small) > 0.5).expand(shape)


MASKS = list(expanded_masks())


def test_a_mask_says_the_same_in_its_smallest_shape():
    for mask in MASKS:
        dense = mask.contiguous()
        assert torch.equal(core(mask).expand(mask.shape), mask)
        sizes = (1 if step == 0 else size for size, step in zip(mask.shape, mask.stride(), strict=True))
        assert core(mask).numel() == math.prod(sizes)
        assert masks.all_count(mask) == bool(mask.all())
        assert bool(anywhere(mask)) == bool(dense.any())
        for count in range(1, mask.dim() + 1):
            for dims in itertools.combinations(range(-mask.dim(), 0), count):
                for keepdim in (False, True):
                    assert torch.equal(anywhere(mask, dims, keepdim), torch.any(dense, dims, keepdim))
        for other in MASKS:
            if other.shape == mask.shape:
                assert torch.equal(both(mask, other), dense & other.contiguous())
                assert torch.equal(masks.either(mask, other), dense | other.contiguous())
        for shape in itertools.product(*((1, size) for size in mask.shape)):  # what was broadcast
            assert torch.equal(masks.reduced(mask, shape), dense.double().sum_to_size(shape) != 0)
        assert torch.equal(masks.reduced(mask, mask.shape[1:]), mask.any(0))


def test_reshaped():
    for mask in MASKS:
        for shape in itertools.chain([(mask.numel(),)], itertools.product([4, 3, 2, 8, 16, 256, 1], repeat=3)):
            if math.prod(shape) == mask.numel():
                assert torch.equal(reshaped(mask, shape), mask.contiguous().reshape(shape))


DTYPES = [torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.int64]


def values_and_masks(dtype, broadcast):
    """Small and large values, in several layouts, with what is not finite among them; and masks for them."""
    torch.manual_seed(0)
    for shape in [(3, 4), (64, 65), (5, 32, 33)]:
        dense = torch.randn(shape, dtype=torch.float64).mul(10).to(dtype)
        if dtype.is_floating_point or dtype.is_complex:
            flat, special = dense.view(-1), torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45] * 2)
            flat[:: dense.numel() // 5] = special.to(dtype)[: len(flat[:: dense.numel() // 5])]
        sizes = [1 if broadcast and d == len(shape) - 1 else size for d, size in enumerate(shape)]
        counts = torch.rand(sizes) > 0.5
        turned = dense.transpose(0, -1).contiguous().transpose(0, -1)
        apart = torch.empty((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., ::2].copy_(dense)
        for values in (dense, turned, apart):
            yield values, counts


@pytest.mark.parametrize("broadcast", [False, True], ids=["each", "rows"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_counts_is_kept_and_zeros_or_others_are_put_elsewhere(dtype, broadcast):
    for values, counts in values_and_masks(dtype, broadcast):
        zeroed = torch.where(counts, values, torch.zeros((), dtype=dtype))
        kept = only(counts, values)
        assert torch.equal(all_bits(kept), all_bits(zeroed)) and kept.data_ptr() != values.data_ptr()
        assert kept.stride() == values.stride() and kept.dtype is dtype


def test_only_what_counts_of_windows_that_overlap():
    windows, counts = torch.arange(1.0, 6.0).unfold(0, 3, 1), torch.eye(3).bool()
    assert torch.equal(only(counts, windows), windows * counts)


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-45, -1e-45, math.nan, math.inf, 1.0])
def test_whatever_is_not_0_counts(number):
    for mask in MASKS:
        values = torch.zeros(mask.shape)
        values[mask] = 1
        values.view(-1)[values.numel() // 2] = number
        for laid_out in (values, values.transpose(0, -1).contiguous().transpose(0, -1)):
            found = and_whatever_is_not_0(mask, laid_out)
            assert torch.equal(found, mask | (values != 0))
            if not number and mask.numel() > 1000 and mask.stride(-1) == 0 and not math.copysign(1, number) < 0:
                assert core(found).shape == core(mask).shape or laid_out.stride(-1) != 1


def test_what_is_only_said_to_be_conjugate_or_negative():
    rows = (torch.arange(64) % 2 == 0)[:, None]
    for said in (torch.conj, torch._neg_view):
        numbers = torch.randn(64, 64, dtype=torch.complex64 if said is torch.conj else torch.float32)
        kept = torch.where(rows, said(numbers), 0)
        assert torch.equal(only(rows, said(numbers)), kept)
        assert torch.equal(and_whatever_is_not_0(rows.expand(64, 64), said(kept)), rows.expand(64, 64))


# Cotangents.

VALUE = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
MASK = [[False, True], [True, False]]
YES = [[True, True], [True, True]]
TWO = torch.full((2, 2), 2.0)


def cotangent():
    return Cotangent(VALUE.clone(), torch.tensor(MASK))


RESULTS = {
    # name: the operator, the value, the mask
    "masked_select": (lambda c: c.masked_select(torch.tensor(YES)), [0, 2, 3, 0], [False, True, True, False]),
    "addcmul": (lambda c: torch.addcmul(c, TWO, c, value=3), [[0, 14], [21, 0]], MASK),
    "addcdiv": (lambda c: torch.addcdiv(c, c, TWO), [[0, 3], [4.5, 0]], MASK),
    "addcmul to numbers": (lambda c: torch.addcmul(TWO, TWO, c), [[2, 6], [8, 2]], None),
    "complex, of one part": (lambda c: torch.view_as_real(torch.complex(TWO, c))[..., 0], [[2, 2], [2, 2]], None),
    "fill": (lambda c: torch.ops.aten.fill(c, 0.0), [[0, 0], [0, 0]], None),
    "index_fill by a zero that is a number": (
        lambda c: c.index_fill(0, torch.tensor([0]), 0.0), [[0, 0], [3, 0]], [[True, True], [True, False]]),
    "hardsigmoid, which passes NaN on": (
        lambda c: torch.ops.aten.hardsigmoid_backward(c, torch.tensor([[nan, nan], [0.0, 0.0]])), [[0, 0], [0.5, 0]],
        MASK),
    "ones_like": (torch.ones_like, [[1, 1], [1, 1]], None),
    "addmm": (
        lambda c: torch.addmm(c, c, torch.tensor([[nan, nan], [1.0, 2.0]]), beta=2, alpha=3)[0], [6, 16], [True, True]),
    "addr": (lambda c: torch.addr(c, c[0], torch.tensor([nan, 1.0]))[0], [0, 2], [False, True]),
    "mv": (lambda c: c @ torch.tensor([nan, 1.0]), [2, nan], [True, True]),
    "dot": (lambda c: c[0] @ torch.tensor([nan, 1.0]), 2, True),
    "cat of what all counts": (lambda c: torch.cat([c[1:, :1] * 1, torch.ones(1, 1)]), [[3], [1]], [[True], [True]]),
    "padded by a number": (
        lambda c: torch.nn.functional.pad(c, (0, 1), value=5.0), [[0, 2, 5], [3, 0, 5]],
        [[False, True, True], [True, False, True]]),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_what_an_operator_gives_and_what_of_it_counts(name):
    operator, value, mask = RESULTS[name]
    result = operator(cotangent())
    assert type(result) is Cotangent
    assert torch.equal(result.value.nan_to_num(99), torch.tensor(value, dtype=torch.float32).nan_to_num(99))
    found = result.mask
    assert (True if found is None or found.all() else found.tolist()) == (
        True if mask is None or torch.tensor(mask).all() else mask
    )
    everything = operator(Cotangent(VALUE.clone()))
    assert torch.equal(everything.value.nan_to_num(99), operator(VALUE.clone()).nan_to_num(99))
    assert everything.mask is None or everything.mask.all()


@pytest.mark.parametrize("operator", [
    lambda c: c.to(torch.int64), lambda c: torch.zeros_like(c, dtype=torch.bool),
    lambda c: c.new_zeros(2, dtype=torch.int64), lambda c: torch.ones_like(c, dtype=torch.int64),
])  # fmt: skip
def test_whole_numbers_have_no_mask(operator):
    assert type(operator(cotangent())) is torch.Tensor


@pytest.mark.parametrize(("size", "stride", "offset"), [((2,), (5,), 3), ((2, 2), (2, 5), 1), ((2,), (3,), 3)])
def test_a_strided_view_of_a_value_with_gaps_in_memory(size, stride, offset):
    """The mask of the view has the elements that the value of the view has."""
    value = torch.zeros(12).as_strided((2, 2), (5, 2), 1).copy_(VALUE)
    view = Cotangent(value, torch.tensor(MASK)).as_strided(size, stride, offset)
    assert torch.equal(view.mask, view.value != 0)
