"""Nested tensors carry no masks: what plain PyTorch's gradient is there, the user gets, and is told so."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zero_or_nan import ignoring

nan = math.nan
LAYOUTS = pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])


def of(pieces, layout):
    return torch.nested.as_nested_tensor(pieces, layout=layout)


def padded(nested):
    return torch.nested.to_padded_tensor(nested, 0.0)


FUNCTIONS = {
    "sqrt, unbind": lambda nested, layers: nested.sqrt().unbind()[0],
    "sqrt, padded": lambda nested, layers: padded(nested.sqrt())[0],
    "product": lambda nested, layers: padded(nested * nested.sqrt())[0],
    "linear": lambda nested, layers: layers[0](nested).unbind()[0],
    "layer norm": lambda nested, layers: layers[1](nested).unbind()[0],
    "softmax": lambda nested, layers: padded(nested.softmax(-1))[0],
}


@LAYOUTS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_followed_is_named(name, layout):
    """The second piece is ignored, and has an entry whose derivative is undefined."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 2), nn.LayerNorm(2)]
    pieces = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[4.0, nan]])]
    pieces = [piece.requires_grad_() for piece in pieces]
    leaves = [*pieces, *(parameter for layer in layers for parameter in layer.parameters())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says PyTorch
        loss = (FUNCTIONS[name](of(pieces, layout), layers) * torch.tensor([1.0, 2.0])).sum()
        plain = torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True, allow_unused=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = ignoring.grad(loss, leaves, materialize_grads=True, allow_unused=True)
    told = [str(warning.message) for warning in caught if "ignoring could not follow" in str(warning.message)]
    assert any("nested tensor" in message for message in told) or all(bool(t.isfinite().all()) for t in ours)
    for mine, theirs in zip(ours, plain, strict=True):
        assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7)) or mine.isfinite().all()


def test_layers_on_the_values_of_a_jagged_tensor_are_followed():
    """What surrounds a nested tensor is dense: there the gradient is right, as long as no NaN is inside."""
    torch.manual_seed(0)
    layer = nn.Linear(2, 2)
    values = torch.randn(5, 2)
    spoilt = values.clone()
    spoilt[4] = nan
    loss = torch.nested.nested_tensor_from_jagged(layer(spoilt)[:4], offsets=torch.tensor([0, 1, 4])).unbind()[1].sum()
    wanted = torch.autograd.grad(layer(values)[1:4].sum(), list(layer.parameters()))
    ours = ignoring.grad(loss, list(layer.parameters()))
    assert all(torch.allclose(a, b) for a, b in zip(ours, wanted, strict=True))


def test_attention_on_jagged_tensors_is_named():
    torch.manual_seed(0)
    pieces = [torch.randn(3, 2, 4).requires_grad_(), torch.full((2, 2, 4), nan).requires_grad_()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = of(pieces, torch.jagged).transpose(1, 2)
        loss = F.scaled_dot_product_attention(nested, nested, nested).transpose(1, 2).unbind()[0].sum()
    with pytest.warns(UserWarning, match="nested tensor"):
        ours = ignoring.grad(loss, pieces)
    assert ours[0].isfinite().all()
