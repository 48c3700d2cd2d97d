"""The figure says in words what each step does, where a NaN is born, and what `ignoring` does instead."""

import pytest
import torch
from tensors import leaf
from torch.nn import functional

from helpers.backward.graph import record
from helpers.backward.told import short, tell
from helpers.entries import outcome

nan, inf = float("nan"), float("inf")


def told(loss, inputs, **options):
    return tell(record(loss, inputs, **options))


def said(loss, inputs, title, **options):
    return next(each.said for each in told(loss, inputs, **options) if each.title == title)


def where_over_exp():
    x = leaf(-1.0, 2.0, 100.0)
    return torch.where(x < 0, torch.exp(x), torch.ones_like(x)).sum(), {"x": x}


def test_each_step_has_its_title_formula_and_what_was_saved():
    total, where, exp, end = told(*where_over_exp())
    assert [each.title for each in (total, where, exp, end)] == ["sum", "where", "exp", "x.grad"]
    assert (total.formula, where.formula, exp.formula) == (
        "grad, for every element",
        "grad if condition else 0",
        "grad × result",
    )
    assert list(where.tensors) == ["condition"] and list(exp.tensors) == ["result"]
    assert exp.official == ["self: grad * result.conj()"]
    assert where.official == ["self: where(condition, grad, 0)"], "of the other input nothing is drawn"
    assert total.tensors == {} == total.numbers  # the sizes that it saved are no entries
    assert end.formula == "" and end.official == []


def test_where_nan_is_born_and_what_ignoring_does_instead():
    total, where, exp, end = told(*where_over_exp())
    assert exp.said == {"vanilla": "NaN is born: 0 × inf = NaN at [2].", "ignoring": "Ignored: -- × inf = -- at [2]."}
    assert (exp.born, exp.spared) == ({0: {2: "0 × inf = NaN"}}, {0: {2: "-- × inf = --"}})
    assert exp.meets == {"grad": [2], "result": [2]}
    assert where.said == {"vanilla": "", "ignoring": "From here on the loss ignores 2 of 3 elements (--)."}
    assert total.said == {"vanilla": "", "ignoring": ""}
    assert end.said == {
        "vanilla": "NaN in 1 of 3 elements.",
        "ignoring": "Ignored elements are written as 0. No NaN.",
    }
    assert (where.born, where.spared) == ({}, {}) and not any(where.meets.values())


def test_the_end_tells_what_is_infinite_too():
    x = leaf(0.0, 4.0)
    assert said(x.sqrt().sum(), {"x": x}, "x.grad") == dict.fromkeys(("vanilla", "ignoring"), "inf in 1 of 2 elements.")
    end = said((x.sqrt() * torch.tensor([1.0, nan])).sum(), {"x": x}, "x.grad")
    assert end["vanilla"] == "NaN in 1, inf in 1 of 2 elements."
    assert said((x * 2).sum(), {"x": x}, "x.grad")["vanilla"] == "No NaN."


def test_a_sum_of_products_leaves_the_ignored_one_out():
    weight = leaf([0.5, 1.0])
    rows = torch.tensor([[1.0, 2.0], [nan, nan]])
    loss = functional.linear(rows, weight)[:1].sum()
    assert said(loss, {"weight": weight}, "mm") == {
        "vanilla": "NaN is born: 0 × NaN = NaN in a sum at [0, 0] and [1, 0].",
        "ignoring": "Left out of the sum: -- × NaN at [0, 0] and [1, 0].",
    }
    assert not any(next(each for each in told(loss, {"w": weight}) if each.title == "mm").meets.values())


def test_a_nan_that_the_loss_uses_stays():
    x = leaf(0.0, 0.0)
    both = said((x * x).sum().sqrt(), {"x": x}, "mul")
    assert both["vanilla"] == "NaN is born: inf × 0 = NaN at [0] and [1]."
    assert both["ignoring"] == "Not ignored, so NaN stays at [0] and [1]."


def test_a_nan_that_arrives_is_passed_on_or_not():
    x = leaf(1.0, 2.0)
    y = x * torch.tensor([nan, 1.0])
    assert said(y.neg().exp().sum(), {"x": x}, "neg")["vanilla"] == "NaN arrives, and is passed on."
    kept = torch.where(torch.tensor([False, True]), x, 0)
    assert said(kept, {"x": x}, "where", gradient=torch.tensor([nan, 1.0]))["vanilla"] == (
        "NaN arrives, and is not passed on."
    )


def test_where_no_arithmetic_is_known_it_is_said_that_nan_is_born():
    x = leaf(1.0, nan)
    assert said(x.cumprod(0).sum(), {"x": x}, "cumprod")["vanilla"] == "NaN is born here."


def test_nan_is_born_where_cotangents_are_added():
    x = leaf(1.0, 2.0)
    loss = (x * torch.tensor([inf, 1.0])).sum() + (x * torch.tensor([-inf, 1.0])).sum()
    assert said(loss, {"x": x}, "x.grad")["vanilla"] in (
        "NaN is born where cotangents are added: inf + -inf = NaN at [0].",
        "NaN is born where cotangents are added: -inf + inf = NaN at [0].",
    )
    other = (x * torch.tensor([nan, 1.0])).sum() + (x * torch.tensor([-inf, 1.0])).sum()
    assert said(other, {"x": x}, "x.grad")["vanilla"] == "NaN in 1 of 2 elements."


@pytest.mark.parametrize(
    ("zeros", "places"),
    [([0.0] * 5, " at [0], [1] and 3 more elements."), ([0.0] * 3, " at [0] and [1] and [2]."), (0.0, ".")],
)
def test_the_places_are_told_once_and_many_are_counted(zeros, places):
    x = torch.tensor(zeros, requires_grad=True)
    assert said((x * x).sum().sqrt(), {"x": x}, "mul")["vanilla"] == f"NaN is born: inf × 0 = NaN{places}"


def test_two_inputs_with_different_arithmetic():
    a, b = leaf(1.0, 0.0), leaf(2.0, 0.0)
    both = said(torch.where(b > 0, a / b, 0).sum(), {"a": a, "b": b}, "div")
    assert both["vanilla"] == "NaN is born: 0 ÷ 0 = NaN at [1]; −0 × ((0 ÷ 0) ÷ 0) = NaN at [1]."
    assert both["ignoring"] == "Ignored: -- ÷ 0 = -- at [1]; -- × ((0 ÷ 0) ÷ 0) = -- at [1]."


def test_numbers_among_the_arguments_are_told_and_settings_are_not():
    x = leaf(1.0, 2.0)
    (mul, *_) = told(x * 3, {"x": x}, gradient=torch.ones(2))
    assert mul.tensors.keys() | mul.numbers.keys() == {"other"}
    (power, *_) = told(x**2, {"x": x}, gradient=torch.ones(2))
    assert power.numbers == {"exponent": 2} and list(power.tensors) == ["self"]
    (added, *_) = told(x + x, {"x": x}, gradient=torch.ones(2))
    assert added.numbers == {} == added.tensors
    (index, *_) = told(x[torch.tensor([1])], {"x": x})
    assert index.tensors["indices"].tolist() == [1]
    (cut, *_) = told(x[1:], {"x": x})
    assert cut.numbers == {}


def test_a_title_has_the_names_that_the_reader_knows():
    x = leaf(1.0, 2.0)
    y = x.exp()
    titles = [each.title for each in told(y.sum(), {"x": x, "y": y, "z": x})]
    assert titles == ["sum", "y = exp", "x and z.grad"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(148.41316, "148.4"), (0.36788, "0.368"), (1.0, "1"), (5.1847e21, "5.18e+21"), (nan, "NaN"), (-inf, "-inf")],
)
def test_numbers_are_short_and_a_rounded_one_is_no_whole_one(value, text):
    assert short(outcome(torch.tensor(value))) == [text]
