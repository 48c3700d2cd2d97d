"""What backward is given, and what it adds up, may be not finite though each derivative is."""

import math

import pytest
import torch
from origins import told
from torch.utils.checkpoint import checkpoint

from zero_or_nan import explain


def test_gradients_of_a_leaf():
    x = torch.tensor([1.0], requires_grad=True)
    with explain() as report:
        (x * x * 3e38).sum().backward()
    assert x.grad.isinf() and told(report) == [("overflow", "backward", "mul")]
    assert report.origins[0].operands == "the sum of 2 gradients > 3.4e38"


def test_gradients_inside_of_a_graph():
    x = torch.tensor([1.0], requires_grad=True)
    with explain() as report:
        y = x.sin()
        (y * y * 3e38).sum().backward()
    assert told(report) == [("overflow", "backward", "mul")]


def test_a_vector_that_is_not_finite():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with explain() as report:
        (x * 2).backward(torch.tensor([1.0, math.inf]))
    assert told(report) == [("bad input", "forward", "backward")]
    assert report.origins[0].source == "(x * 2).backward(torch.tensor([1.0, math.inf]))"


def held(*values):
    """Leaves with a `.grad` from before the block."""
    leaves = [torch.tensor([1.0, 2.0], requires_grad=True) for _ in values]
    for leaf, value in zip(leaves, values, strict=True):
        leaf.grad = torch.tensor([value, 1.0])
    return leaves


PASSES = {
    "plain": lambda w, v: (w * v).sum().backward(),
    "twice": lambda w, v: [(w * v).sum().backward() for _ in range(2)],
    "of one each": lambda w, v: [v.sin().sum().backward(), w.sum().backward()],
    "recomputed": lambda w, v: checkpoint(lambda w: (w * v).sin(), w, use_reentrant=False).sum().backward(),
    "then used": lambda w, v: [(w * v).sum().backward(), (w.grad * v).sum().backward()],
}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", PASSES)
def test_gradients_from_before_the_block(name, bad):
    """What a pass adds to them is not finite, and nothing in the block made it."""
    w, v = held(bad, bad)
    with explain() as report:
        PASSES[name](w, v)
    (origin,) = report
    assert (origin.kind, origin.phase, origin.operator) == ("bad input", "forward", "backward")
    assert (origin.entries, origin.times, origin.fixed) == ([(0,)], 1 + (name == "of one each"), None)
    assert origin.operands == f"{bad} in .grad before this pass" and "zero_grad" in origin.remedy
    assert {"w", "v"} <= set(origin.reached)


def test_gradients_from_before_the_block_beside_others():
    """Each has its own origin: an infinite slope, a contamination, and what was there."""
    w, v = held(math.nan, 1.0)
    with explain() as report:
        torch.where(v > 1, (v - 1).sqrt(), 0).sum().backward()
        (w - 1).sqrt().sum().backward()
    assert told(report) == [
        ("contaminated", "backward", "sqrt"),
        ("bad input", "forward", "backward"),
        ("undefined", "backward", "sqrt"),
    ]
    assert [origin.reached for origin in report] == [["v"], ["w"], ["w"]]


@pytest.mark.parametrize("name", ["none", "zero", "other inputs", "grad", "another leaf"])
def test_gradients_from_before_the_block_that_no_pass_adds_to(name):
    w, v = held(math.nan, 1.0)
    with explain() as report:
        if name in ("none", "zero"):
            torch.optim.SGD([w, v], lr=0.1).zero_grad(set_to_none=name == "none")
        if name == "grad":
            torch.autograd.grad((w * v).sum(), [w, v])
        else:
            (v if name == "another leaf" else w * v).sum().backward(inputs=[v] if name == "other inputs" else None)
    assert report.ok, report


def test_gradients_of_this_block_are_told_of_once():
    w, v = held(1.0, 1.0)
    with explain() as report:
        (w * v - w * v).sqrt().sum().backward()
        (w * v).sum().backward()
    assert told(report) == [("undefined", "backward", "sqrt")]


def test_gradients_of_several_passes():
    """They are finite, and their sum is not."""
    x = torch.tensor([1.0], requires_grad=True)
    with explain() as report:
        for _ in range(3):
            (x * 2e38 - 2e38).sum().backward()
    assert x.grad.isinf() and told(report) == [("overflow", "backward", "mul")]
    assert report.origins[0].operands == "the sum of 2 gradients > 3.4e38"


def test_a_hook_of_a_leaf():
    x = torch.tensor([1.0], requires_grad=True)
    x.register_hook(lambda gradient: gradient * 3e38)
    with explain() as report:
        (x * 2).sum().backward()
    assert x.grad.isinf() and told(report) == [("overflow", "backward", "mul")]


def test_what_comes_in_and_what_is_made_in_one_function():
    """The sum takes in an infinity, and would overflow without it."""
    x = torch.full((4,), 3e4, dtype=torch.half, requires_grad=True)
    with explain() as report:
        x.cumsum(0).sum().backward()
    assert told(report) == [("overflow", "forward", "cumsum"), ("overflow", "forward", "sum")]
    assert [origin.reached for origin in report] == 2 * [["the loss"]]


def test_poles_one_after_the_other():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with explain() as report:
        inverse = 1 / x
        (inverse / 0).sum().backward()
    assert told(report) == 2 * [("undefined", "forward", "div")]
    assert [origin.entries for origin in report] == [[(0,)], [(1,)]]


def test_what_comes_in_beside_what_is_made():
    """Of two rows, one has NaN in its data, and the other overflows: the loss uses the other alone."""
    x = torch.tensor([[math.nan, 1.0], [3e38, 3e38]], requires_grad=True)
    with explain() as report:
        (x * 1).sum(1)[1].backward()
    assert told(report)[-1] == ("overflow", "forward", "sum")
    assert "bad input" not in [origin.kind for origin in report]


@pytest.mark.parametrize("passes", [True, False])
def test_a_nan_that_nansum_leaves_out_is_not_an_origin(passes):
    x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    with explain() as report:
        loss = x.log().nansum()
        if passes:
            loss.backward()
    (origin,) = report
    assert (origin.operands, origin.entries, origin.count) == ("log(0) = -inf", [(1,)], 1)


def test_nan_and_infinity_of_one_call_are_one_origin():
    x = torch.tensor([0.0, -1.0, 2.0], requires_grad=True)
    with explain() as report:
        for _ in range(2):
            x.log().sum().backward()
    (origin,) = report
    assert (origin.operands, origin.entries, origin.count, origin.times) == ("log(-1)", [(0,), (1,)], 2, 2)
