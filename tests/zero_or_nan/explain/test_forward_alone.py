"""A value that was not finite in forward has no second origin in backward, whatever multiplies it there."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zero_or_nan import explain


def bad(value, dtype=torch.float32):
    x = torch.randn(4, 3, dtype=dtype)
    x[1, 2] = value
    return x


def filled(value, dtype=torch.float32):
    return torch.randn(4, 3, dtype=dtype).masked_fill(torch.arange(12).view(4, 3) == 5, value)


def in_a_view(value, dtype=torch.float32):
    x = torch.randn(4, 3, dtype=dtype)
    x.t()[2].fill_(value)
    return x


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("data", [bad, filled, in_a_view])
@pytest.mark.parametrize(("layers", "dtype"), [(1, torch.float32), (3, torch.float16)])
def test_data_made_bad_in_the_block_are_the_only_origin(data, value, layers, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3, dtype=dtype) for _ in range(layers)))
    with explain() as report:
        (model(data(value, dtype)) - 1).square().mean().backward()
    assert not report.ok and all(origin.phase == "forward" for origin in report)
    assert layers > 1 or [origin.kind for origin in report] == ["bad input"]


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_to_bad_data_has_no_origin_in_backward(value, outside, masked):
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 3), bad(value) if outside else None
    with explain() as report:
        h = layer(bad(value) if x is None else x)
        mask = torch.full((4, 4), -torch.inf).triu(1) if masked else None
        F.scaled_dot_product_attention(h, h, h, attn_mask=mask).square().mean().backward()
    assert not report.ok and all(origin.phase == "forward" for origin in report)


def test_a_derivative_at_a_finite_value_is_an_origin_beside_bad_data():
    x = torch.zeros(3, requires_grad=True)
    with explain() as report:
        data = torch.ones(2)
        data[1] = torch.inf
        (x.square().sum().sqrt() + data.sum()).backward()
    assert ("undefined", "backward", "sqrt") in [(each.kind, each.phase, each.operator) for each in report]
    with explain() as report:  # a mask that the loss does not take in
        scores = torch.zeros(2, 2, requires_grad=True)
        weights = scores.masked_fill(torch.eye(2, dtype=torch.bool), -torch.inf).softmax(-1)
        weights.sqrt().sum().backward()
    assert [(each.phase, each.operator) for each in report] == [("backward", "sqrt")]
