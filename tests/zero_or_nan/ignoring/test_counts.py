"""What is ignored and not finite is counted, once, and the gradients are the same bits."""

from collections import Counter

import pytest
import torch
from torch import nn

from zero_or_nan import ignoring

NAN = float("nan")


def backward_of(loss):
    with ignoring.counting() as counted:
        ignoring.backward(loss)
    return counted


def test_rows_through_many_layers_are_counted_once():
    x = torch.randn(6, 3)
    x[4:] = NAN
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    counted = backward_of(net(x)[:4].sum())
    assert (counted.passes, counted.kept_clean, counted.rows, counted.of_rows) == (1, 1, 2, 6)
    assert counted.entries == 10  # of the hidden layer, the widest
    assert counted.functions.most_common(1)[0][0] == "Addmm"


@pytest.mark.parametrize("function", [torch.log, torch.sqrt, torch.reciprocal], ids=lambda function: function.__name__)
def test_a_derivative_that_is_infinite_where_the_value_saved_is_not(function):
    x = torch.tensor([1.0, 0.0, 4.0, 0.0], requires_grad=True)
    counted = backward_of(torch.where(x > 0, function(x), 0).sum())
    assert (counted.entries, counted.rows, counted.of_rows) == (2, 2, 4)
    assert torch.isfinite(x.grad).all()


def test_what_the_loss_uses_is_not_counted():
    x = torch.tensor([[NAN, 1.0], [2.0, 3.0]])
    counted = backward_of(nn.Linear(2, 1)(x).sum())
    assert (counted.passes, counted.kept_clean, counted.entries) == (1, 0, 0)
    assert str(counted) == "nothing that is not finite was ignored, in 1 backward passes"


def test_each_vector_of_a_batch_is_a_pass():
    x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
    with ignoring.counting() as counted:
        ignoring.grad(torch.where(x > 0, x.log(), 0), x, torch.eye(3), is_grads_batched=True)
    assert (counted.passes, counted.kept_clean, counted.entries) == (3, 3, 3)


def test_since_when():
    layer = nn.Linear(2, 1)
    with ignoring.counting() as counted:
        for step in range(10):
            x = torch.ones(4, 2)
            if step in (3, 6):
                x[0] = NAN
            ignoring.backward(layer(x)[1:].sum())
            if step == 4:
                assert (counted.kept_clean, counted.rows) == (1, 1)  # while the block lasts
    assert (counted.passes, counted.kept_clean, counted.first, counted.last) == (10, 2, 4, 7)
    assert (counted.rows, counted.of_rows, counted.entries) == (2, 8, 4)
    assert "from the 4th to the 7th" in str(counted)
    ignoring.backward(layer(x).sum())
    assert counted.passes == 10  # the block is over


def test_of_functions_or_operators_that_ignore_as_many_the_first_is_named():
    counted = ignoring.Counted(1, 1, 4, functions=Counter({"Exp": 2, "Log": 2, "Sin": 1}))
    assert str(counted).endswith("most at Exp")
    x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
    counted = backward_of(torch.where(x > 0, x.reciprocal().sqrt(), 0).sum())
    assert dict(counted.functions) == {"Sqrt": 1}
