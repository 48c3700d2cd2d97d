"""`explain.zeros` names the call that left a leaf without a gradient, or with zeros alone, and no other call."""

import pytest
import torch
import torch.nn.functional as F
from tensors import leaf
from torch import nn

from zero_or_nan import explain


def under_no_grad(x):
    with torch.no_grad():
        weights = x * 2
    return weights * leaf(1.0, 1.0)


ZEROS = {
    "round": lambda x: x.round(), "relu": lambda x: (-x * 3).relu(),
    "clamp": lambda x: x.clamp(0.5, 0.75),
    "where": lambda x: torch.where(x > 10, x * x, 0), "mul": lambda x: x.half() * 1e-4 * 1e-5,
    "cross_entropy": lambda x: F.cross_entropy((x * 1e3)[None], torch.tensor([1])),
}  # fmt: skip
CUTS = {
    "argmax": lambda x: (x.argmax().float() - 1) ** 2, 
    "detach": lambda x: x.detach() * leaf(1.0, 1.0), "long": lambda x: leaf(1.0, 2.0, 3.0, 4.0)[x.long()],
    "mul": under_no_grad, "data": lambda x: x.data * leaf(1.0, 1.0),
}  # fmt: skip


def found_in(function, x):
    with explain.zeros() as found:
        loss = function(x).sum()
        if loss.requires_grad:
            loss.backward()
        else:
            with pytest.raises(RuntimeError, match="does not require grad"):
                loss.backward()
    return found


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_call_is_named(is_cut):
    for name, function in (CUTS if is_cut else ZEROS).items():
        x = leaf(1.2, 2.7)
        found = found_in(function, x)
        assert [(zero.operator, zero.is_cut, zero.leaves) for zero in found] == [(name, is_cut, ["x"])], name
        assert (x.grad is None) if is_cut else not x.grad.any()
        assert function.__code__.co_filename == found[0].filename and name in f"mul data gt {found[0].source}"


def test_a_dead_layer_is_named_with_its_parameters_and_its_line():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    nn.init.constant_(net[0].bias, 1e3)
    (zero,) = found_in(lambda x: [net(x).sum().backward(), net(x)][1], torch.ones(4, 2))  # two passes
    assert (zero.operator, zero.leaves) == ("tanh", ["0.weight", "0.bias"])
    assert str(zero).endswith("a gradient arrived, and all that was passed on to 0.weight, 0.bias is 0")


def healthy():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    layer(torch.rand(2, 3, 4), src_key_padding_mask=torch.tensor([[False, True, True]] * 2)).square().mean().backward()
    gate = leaf(-1.0, 2.0)
    (gate.relu() * (gate > 0) * (2 * gate).detach()).sum().backward()
    logits = nn.Linear(2, 3)(torch.rand(4, 2))
    nn.Embedding(3, 2, sparse=True)(torch.tensor([1])).sum().backward()
    print((logits.argmax(1) == 0).float().mean())
    F.cross_entropy(logits, torch.tensor([0, 1, 2, 0])).backward()


def test_what_leaves_no_leaf_without_a_gradient_is_not_named():
    """A mask, a condition, a metric; half of a relu; an optimizer that changes parameters in place."""
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(layer.parameters())
    with explain.zeros() as found:
        healthy()
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.rand(3, 2)).sum().backward()
            optimizer.step()
    assert found == []
