"""Nested tensors: jagged ones carry their mask on their values; what else there is, is told."""

from math import nan

import pytest
import torch
from alone import assert_right
from telling import told
from torch import nn

from zero_or_nan import ignoring

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")


def of(pieces, layout=torch.jagged):
    return torch.nested.as_nested_tensor(pieces, layout=layout)


def padded(nested):
    return torch.nested.to_padded_tensor(nested, 0.0)


ON_JAGGED = {
    "sqrt, unbind": lambda nested, layers: nested.sqrt().unbind()[0],
    "product": lambda nested, layers: padded(nested * nested.sqrt())[0],
    "linear": lambda nested, layers: layers[0](nested).unbind()[0],
    "values": lambda nested, layers: layers[0](nested).values()[:2],
    "chunk": lambda nested, layers: nested.sqrt().chunk(2, -1)[0].unbind()[0],
    "product of matrices": lambda nested, layers: torch.matmul(nested.sqrt(), torch.ones(2, 2)).unbind()[0],
    "where": lambda nested, layers: torch.where(nested.isnan(), torch.zeros_like(nested), nested.sqrt()).unbind()[0],
    "clone, quotient": lambda nested, layers: (nested.sqrt().clone() / nested).unbind()[0],
}


def parts(second):
    """Two pieces, and the parameters of two layers: all of them leaves."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 2), nn.LayerNorm(2)]
    pieces = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[4.0, second]])]
    pieces = [piece.requires_grad_() for piece in pieces]
    return pieces, layers, [*pieces, *(parameter for layer in layers for parameter in layer.parameters())]


def differentiated(grad, loss, leaves, **rest):
    """Gradients, and what was told that could not be followed."""
    try:
        return told(lambda: grad(loss, leaves, materialize_grads=True, allow_unused=True, **rest))
    except NotImplementedError as missing:  # 2.6 has no derivative of a product of matrices
        pytest.skip(f"plain PyTorch: {missing}") if grad is torch.autograd.grad else pytest.fail(str(missing))


@pytest.mark.parametrize("name", ON_JAGGED)
def test_what_a_loss_ignores_of_a_jagged_tensor_stays_out_of_the_gradient_and_a_used_nan_stays(name):
    """The second piece is ignored, and has an element whose derivative is undefined."""
    pieces, layers, leaves = parts(nan)
    loss = ON_JAGGED[name](of(pieces), layers).sum()
    plain, _ = differentiated(torch.autograd.grad, loss, leaves, retain_graph=True)
    ours, messages = differentiated(ignoring.grad, loss, leaves)
    pieces, layers, leaves = parts(2.0)
    wanted, _ = differentiated(torch.autograd.grad, ON_JAGGED[name](of(pieces), layers).sum(), leaves)
    assert not messages and not all(bool(gradient.isfinite().all()) for gradient in plain)
    assert_right(ours, plain, wanted, 1e-6, 1e-7)
    if name in ("chunk", "where"):  # which ignore the element below
        return
    pieces, layers, leaves = parts(2.0)
    with torch.no_grad():
        pieces[0][1, 1] = nan
    result = ON_JAGGED[name](of(pieces), layers)
    plain, _ = differentiated(torch.autograd.grad, result.sum(), leaves, retain_graph=True)
    ours, messages = differentiated(ignoring.grad, result.sum(), leaves)
    assert not messages
    assert_right(ours, plain, plain, 0, 0)


@pytest.mark.parametrize("name", ["sqrt, unbind", "linear"])
def test_what_is_not_followed_is_named(name):
    """Nested tensors of the strided layout carry no masks: the user gets plain PyTorch's gradient, and is told so."""
    pieces, layers, leaves = parts(nan)
    loss = (ON_JAGGED[name](of(pieces, torch.strided), layers) * torch.tensor([1.0, 2.0])).sum()
    plain, _ = differentiated(torch.autograd.grad, loss, leaves, retain_graph=True)
    ours, messages = differentiated(ignoring.grad, loss, leaves)
    assert any("nested tensor" in message for message in messages) or all(bool(t.isfinite().all()) for t in ours)
    for mine, theirs in zip(ours, plain, strict=True):
        assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7)) or mine.isfinite().all()


def jagged_leaf(*numbers):
    values = torch.tensor(numbers).view(3, 2)
    nested = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 3]))
    return nested.detach().requires_grad_()


def test_a_leaf_that_is_jagged():
    nested = jagged_leaf(1.0, 2.0, 3.0, 4.0, 5.0, nan)
    with ignoring.counting() as counted:
        ignoring.backward((nested * nested.sqrt()).unbind()[0].sum())
    assert type(nested.grad) is type(nested)
    wanted = jagged_leaf(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    (wanted * wanted.sqrt()).unbind()[0].sum().backward()
    assert torch.equal(nested.grad.values(), wanted.grad.values())
    assert (counted.entries, counted.kept_clean) == (1, 1)
    with pytest.raises(ValueError, match="jagged"):
        ignoring.grad(nested.sqrt().unbind()[0].sum(), [nested], ignored="masked")


def test_the_gradient_of_a_jagged_gradient_is_plain_pytorchs():
    def penalty(grad, nested):
        (slope,) = grad((nested * nested * nested).unbind()[0].sum(), [nested], create_graph=True)
        return grad(slope.unbind()[0].sum(), [nested])[0].values()

    numbers = 1.0, 2.0, 3.0, 4.0, 5.0, 6.0
    ours, plain = (penalty(grad, jagged_leaf(*numbers)) for grad in (ignoring.grad, torch.autograd.grad))
    assert torch.equal(ours, plain)
