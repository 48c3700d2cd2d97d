"""The tensor itself: masks are shared between cotangents, and a write reaches just those that see the memory."""

import torch

from helpers.ignoring import Cotangent


def inside(function, value, ignored):
    """What a function makes of a cotangent while a pass is running."""
    kept = []
    x = torch.zeros(value.shape, requires_grad=True)
    y = x.clone()
    y.register_hook(lambda gradient: kept.append(function(gradient)))
    y.backward(Cotangent(value, ignored))
    return kept[0]


VALUE = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
IGNORED = torch.tensor([[True, False], [False, True]])


def test_writing_into_a_copy_leaves_the_mask_of_the_original():
    def write(gradient):
        for copy in (gradient.clone(), gradient * 2, gradient + gradient, gradient.detach().clone()):
            copy.copy_(torch.ones(2, 2))
        return gradient

    gradient = inside(write, VALUE.clone(), IGNORED.clone())
    assert gradient.value.tolist() == VALUE.tolist()
    assert gradient.ignored.tolist() == IGNORED.tolist()


def test_numbers_written_through_a_view_count_in_its_base():
    def write(gradient):
        base = gradient * 2
        base.t().select(1, 0).copy_(gradient.new_ones(2))
        return base

    base = inside(write, VALUE.clone(), IGNORED.clone())
    assert base.value.tolist() == [[1, 1], [6, 0]]
    assert base.ignored.tolist() == [[False, False], [False, True]]


def test_a_write_reaches_one_part_of_a_split():
    def write(gradient):
        base = gradient.clone()
        base.unbind(0)[1].copy_(gradient.new_ones(2))
        return base

    base = inside(write, VALUE.clone(), IGNORED.clone())
    assert base.ignored.tolist() == [[True, False], [False, False]]


def test_a_write_through_a_strided_view():
    def write(gradient):
        base = gradient.t()
        base.as_strided((2,), (3,)).copy_(gradient.new_ones(2))
        return base

    base = inside(write, VALUE.clone(), IGNORED.clone())
    assert base.value.diagonal().tolist() == [1, 1]
    assert base.ignored.tolist() == [[False, False], [False, False]]


def test_outside_of_a_pass_it_is_an_ordinary_tensor():
    cotangent = Cotangent(VALUE.clone(), IGNORED)
    assert type(cotangent * 2) is torch.Tensor
    assert repr(cotangent) == repr(VALUE)
    assert cotangent.numpy().tolist() == VALUE.tolist()
