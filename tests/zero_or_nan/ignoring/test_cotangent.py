"""The tensor itself, and rules for operators that derivatives of some release or somebody's own call.

Masks are shared between cotangents, and a write reaches just those that see the memory.
"""

from math import nan

import pytest
import torch

from zero_or_nan.ignoring import Cotangent

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
    "addcmul by NaN": (lambda c: torch.addcmul(c, torch.tensor([[nan, 1.0], [1.0, nan]]), c), [[0, 4], [6, 0]], MASK),
    "addcdiv": (lambda c: torch.addcdiv(c, c, TWO), [[0, 3], [4.5, 0]], MASK),
    "addcdiv by 0": (lambda c: torch.addcdiv(c, c, torch.tensor([[0.0, 1.0], [1.0, 0.0]])), [[0, 4], [6, 0]], MASK),
    "addcmul to numbers": (lambda c: torch.addcmul(TWO, TWO, c), [[2, 6], [8, 2]], None),
    "complex": (lambda c: torch.view_as_real(torch.complex(c, c))[..., 1], [[0, 2], [3, 0]], MASK),
    "complex, of one part": (lambda c: torch.view_as_real(torch.complex(TWO, c))[..., 0], [[2, 2], [2, 2]], None),
    "view_as_complex": (lambda c: torch.view_as_complex(c).imag, [2, 0], [True, True]),
    "fill": (lambda c: torch.ops.aten.fill(c, 0.0), [[0, 0], [0, 0]], None),
    "index_fill by a zero that is a number": (
        lambda c: c.index_fill(0, torch.tensor([0]), 0.0), [[0, 0], [3, 0]], [[True, True], [True, False]]),
    "hardsigmoid, which passes NaN on": (
        lambda c: torch.ops.aten.hardsigmoid_backward(c, torch.tensor([[nan, nan], [0.0, 0.0]])), [[0, 0], [0.5, 0]],
        MASK),
    "ones_like": (torch.ones_like, [[1, 1], [1, 1]], None),
    "full_like": (lambda c: torch.full_like(c, 7.0), [[7, 7], [7, 7]], None),
    "addmm": (
        lambda c: torch.addmm(c, c, torch.tensor([[nan, nan], [1.0, 2.0]]), beta=2, alpha=3)[0], [6, 16], [True, True]),
    "addmv": (lambda c: torch.addmv(c[0], c, torch.ones(2)), [2, 5], [True, True]),
    "addr": (lambda c: torch.addr(c, c[0], torch.tensor([nan, 1.0]))[0], [0, 2], [False, True]),
    "mv": (lambda c: c @ torch.tensor([nan, 1.0]), [2, nan], [True, True]),
    "dot": (lambda c: c[0] @ torch.tensor([nan, 1.0]), 2, True),
    "dot of another": (lambda c: torch.tensor([nan, 1.0]) @ c[0], 2, True),
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
