"""The figure says in words what each step does, where a NaN is born, and what `ignoring` does instead."""

from math import inf, nan

import pytest
import torch
from tensors import leaf
from torch.nn import functional

from helpers.backward.graph import record
from helpers.backward.told import short, tell
from helpers.entries import outcome


def told(loss, inputs, **options):
    return tell(record(loss, inputs, **options))


def sliced(weight):
    return functional.linear(torch.tensor([[1.0, 2.0], [nan, nan]]), weight)[:1].sum()


def added(x, other):
    return (x * torch.tensor([other, 1.0])).sum() + (x * torch.tensor([-inf, 1.0])).sum()


SAID = [
    # What the vanilla pass does.
    (lambda x: x.sqrt().sum(), [0.0, 4.0], "x.grad", "vanilla", "inf in 1 of 2 elements."),
    (lambda x: x.sqrt().sum(), [0.0, 4.0], "x.grad", "ignoring", "inf in 1 of 2 elements."),
    (lambda x: (x.sqrt() * torch.tensor([1.0, nan])).sum(), [0.0, 4.0], "x.grad", "vanilla",
     "NaN in 1, inf in 1 of 2 elements."),
    (lambda x: (x * 2).sum(), [0.0, 4.0], "x.grad", "vanilla", "No NaN."),
    (lambda x: (x * torch.tensor([nan, 1.0])).neg().exp().sum(), [1.0, 2.0], "neg", "vanilla",
     "NaN arrives, and is passed on."),
    (lambda x: (torch.where(torch.tensor([False, True]), x, 0) * torch.tensor([nan, 1.0])).sum(), [1.0, 2.0], "where",
     "vanilla", "NaN arrives, and is not passed on."),
    (lambda x: x.cumprod(0).sum(), [1.0, nan], "cumprod", "vanilla", "NaN is born here."),
    (lambda x: added(x, nan), [1.0, 2.0], "x.grad", "vanilla", "NaN in 1 of 2 elements."),
    # A sum of products leaves the ignored product out.
    (sliced, [[0.5, 1.0]], "mm", "vanilla", "NaN is born: 0 × NaN = NaN in a sum at [0, 0] and [1, 0]."),
    (sliced, [[0.5, 1.0]], "mm", "ignoring", "Left out of the sum: -- × NaN at [0, 0] and [1, 0]."),
    (lambda x: (x * torch.tensor([-inf, 2.0]))[1:].sum(), [1.0, 1.0], "mul", "vanilla",
     "NaN is born: 0 × (-inf) = NaN at [0]."),
    # What the loss uses stays.
    (lambda x: (x * x).sum().sqrt(), [0.0, 0.0], "mul", "ignoring", "Not ignored, so NaN stays at [0] and [1]."),
    # The places are told once, and many are counted.
    (lambda x: (x * x).sum().sqrt(), [0.0] * 5, "mul", "vanilla",
     "NaN is born: inf × 0 = NaN at [0], [1] and 3 more elements."),
    (lambda x: (x * x).sum().sqrt(), [0.0] * 3, "mul", "vanilla", "NaN is born: inf × 0 = NaN at [0] and [1] and [2]."),
    (lambda x: (x * x).sqrt(), 0.0, "mul", "vanilla", "NaN is born: inf × 0 = NaN."),
    (lambda x: torch.where(x < 0, x.exp(), x).sum(), [-1.0, 2.0, 3.0], "where", "ignoring",
     "From here on the loss ignores 2 of 3 elements, and 1 of 3 elements (--)."),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "values", "title", "method", "said"), SAID)
def test_what_happens_is_said_in_one_sentence(loss, values, title, method, said):
    x = torch.tensor(values, requires_grad=True)
    (sentence,) = [each.said[method] for each in told(loss(x), {"x": x}) if each.title == title]
    assert sentence == said


def test_numbers_among_the_arguments_and_names_are_told_and_settings_are_not():
    x = leaf(1.0, 2.0)
    for compute, tensors, numbers in (
        (lambda x: x**2, {"self"}, {"exponent": 2}),
        (lambda x: x[torch.tensor([1])], {"indices"}, {}),
        (lambda x: x[1:], set(), {}),
    ):
        first = told(compute(x).sum(), {"x": x})[1]
        assert set(first.tensors) == tensors and first.numbers == numbers
    y = x.exp()
    assert [each.title for each in told(y.sum(), {"x": x, "y": y, "z": x})] == ["sum", "y = exp", "x and z.grad"]
    assert short(outcome([148.41316, 1.0, 5.1847e21])) == ["148.4", "1", "5.18e+21"]
