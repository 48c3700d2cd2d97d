"""Layer normalisation of which the loss uses some rows, next to its formula for those rows alone in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from zero_or_nan import ignoring

INF = torch.tensor(math.inf)

POISONS = {
    "rows": lambda x, used: x.masked_fill_(~used[:, None, None], math.nan),
    "a row": lambda x, used: x.index_put_(((~used).nonzero()[:1, 0],), INF),
    "rows of large numbers": lambda x, used: x.masked_fill_(~used[:, None, None], 3e38),
    "one that is used": lambda x, used: x.masked_fill_(~used[:, None, None], math.nan).index_put_(
        (used.nonzero()[:1, 0],), INF
    ),
}


@pytest.mark.parametrize("entries", [slice(None), slice(1)], ids=["rows", "parts of rows"])
@pytest.mark.parametrize("leaves", ["input", "input, weight", "input, weight, bias", "weight, bias"])
@pytest.mark.parametrize("shape", [(7,), (3, 7)], ids=str)
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("size", [6, 1200])
def test_the_gradients_are_those_of_the_used_rows(size, poison, shape, leaves, entries):
    torch.manual_seed(size)
    used = torch.rand(size) < 0.5
    used[:2] = torch.tensor([True, False])
    x, grad, row = torch.randn(size, 3, 7), torch.randn(size, 3, 7), list(range(-len(shape), 0))
    POISONS[poison](x, used)
    weight, bias = torch.randn(shape), torch.randn(shape)
    given = {"input": x, "weight": weight, "bias": bias}
    asked_for = [given[name].requires_grad_() for name in leaves.split(", ")]

    loss = (F.layer_norm(x, shape, weight, bias)[used] * grad[used])[..., entries].sum()
    plain = torch.autograd.grad(loss, asked_for, retain_graph=True)
    ours = ignoring.grad(loss, asked_for)

    kept = torch.zeros(x.shape, dtype=torch.bool)
    kept[..., entries] = used[:, None, None]
    arriving = grad.double() * kept
    centred = x.detach().double() - x.detach().double().mean(row, keepdim=True)
    scaled = centred / (centred.square().mean(row, keepdim=True) + 1e-5).sqrt()
    to_scaled = arriving * weight.detach()
    to_input = to_scaled - to_scaled.mean(row, keepdim=True)
    to_input -= scaled * (to_scaled * scaled).mean(row, keepdim=True)
    to_input /= (centred.square().mean(row, keepdim=True) + 1e-5).sqrt()
    rows = kept.any(dim=tuple(row), keepdim=True)
    right = {
        "input": to_input.masked_fill(~rows, 0),
        "weight": (arriving * scaled).masked_fill(~kept, 0).sum_to_size(shape),
        "bias": arriving.sum_to_size(shape),
    }
    for name, mine, theirs in zip(leaves.split(", "), ours, plain, strict=True):
        torch.testing.assert_close(mine.double(), right[name], rtol=1e-3, atol=1e-4, equal_nan=True)
        assert torch.equal(mine[theirs.isfinite()], theirs[theirs.isfinite()])
