"""Every node of a graph is recorded with what arrives, what it saved and what it sends, by both methods."""

from math import nan

import pytest
import torch
from tensors import leaf
from torch.masked import MaskedTensor

from helpers.backward.graph import METHODS, MOST, record
from helpers.entries import Absent, describe, outcome
from zero_or_nan import ignoring


def graphs():
    a, b, x = leaf(1.0, 0.0), leaf(2.0, 0.0), leaf(-1.0, 2.0, 100.0)
    weight, rows = leaf([0.5, 1.0]), torch.tensor([[1.0, 2.0], [nan, 3.0]])
    return {
        "where over exp": (x, torch.where(x < 0, torch.exp(x), torch.ones_like(x)).sum()),
        "used twice": (x, torch.where(x < 0, torch.exp(x), x).sum()),
        "division": (b, torch.where(b > 0, a / b, 0).sum()),
        "matrix": (weight, (rows @ weight.t())[:1].sum()),
    }


@pytest.mark.parametrize("name", graphs())
def test_what_arrives_is_the_sum_of_what_was_sent_and_what_the_public_functions_give(name):
    x, loss = graphs()[name]
    steps = record(loss, {"x": x})
    for number, step in enumerate(steps[1:], 1):
        for output, arrived in step.arrives.items():
            for method in METHODS:
                parts = [
                    sent.value[method]
                    for each in steps
                    for sent in each.sends
                    if (sent.to, sent.output) == (number, output)
                ]
                total = outcome(sum(part.data for part in parts))
                mask = torch.stack([part.mask for part in parts]).any(0)
                assert torch.equal(mask, arrived[method].mask)
                assert total.texts(None) == outcome(arrived[method].data).texts(None)
        for sent in step.sends:
            assert sent.to > number
    vanilla = torch.autograd.grad(loss, x, retain_graph=True)
    careful = ignoring.grad(loss, x, ignored="masked")
    assert describe(steps[-1].arrives[0]["vanilla"]) == describe(outcome(vanilla[0]))
    assert isinstance(careful[0], MaskedTensor)
    assert describe(steps[-1].arrives[0]["ignoring"]) == describe(outcome(careful[0]))


def test_nothing_is_changed():
    x = leaf(-1.0, 2.0)
    y = x.exp()
    y.retain_grad()
    loss = y.sum()
    x.grad, kept = torch.tensor([7.0, 7.0]), torch.tensor([5.0, 5.0])
    y.grad = kept
    record(loss, {"x": x, "y": y})
    assert torch.equal(x.grad, torch.tensor([7.0, 7.0])) and y.grad is kept
    for node in (loss.grad_fn, y.grad_fn):
        handle = node.register_hook(lambda *_: None)
        assert len(handle.hooks_dict_ref()) == 1, "a hook was left"
        handle.remove()
    x.grad = None
    loss.backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_intermediate_results_have_names_and_what_leads_nowhere_is_left_out():
    x, other = leaf(1.0, 2.0), leaf(1.0, 1.0)
    y = x * other
    assert [step.name for step in record(y.sum(), {"x": x, "y": y})] == ["", "y", "x"]
    assert [step.node for step in record(y.sum(), {"y": y})] == ["SumBackward0", "MulBackward0"]
    assert record(y.sum(), {"y": y})[-1].sends == []
    assert [step.name for step in record(y.sum(), {"a": x, "b": x})][-1] == "a and b"
    assert {step.name for step in record(y.sum(), {"x": x, "o": other})} == {"", "x", "o"}


def test_where_pytorch_gives_nothing_nothing_is_told():
    class Stop(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: (ctx.save_for_backward(x), x.clone())[1])
        backward = staticmethod(lambda ctx, grad: None)

    x = leaf(1.0)
    stop, end = record(Stop.apply(x), {"x": x})
    assert torch.equal(stop.saved["saved_tensors[0]"], x) and stop.sends == []
    assert end.arrives[0] == dict.fromkeys(METHODS, Absent())


def test_what_can_not_be_drawn_is_told_in_clear_words():
    x, other = leaf(1.0, 2.0), leaf(1.0)
    deep = x
    for _ in range(MOST):
        deep = deep + 1
    for message, loss, inputs, gradient in (
        (r"the loss has shape \[2\]: give gradient=", x * 1, {"x": x}, None),
        ("the loss does not depend on y, z", x.sum(), {"y": other, "x": x, "z": leaf(1.0)}, None),
        (f"a figure of {MOST + 1} nodes can't be read", deep, {"x": x}, torch.ones(2)),
    ):
        with pytest.raises(ValueError, match=message):
            record(loss, inputs, gradient)
