"""What backward is given, and what it adds up, may be not finite though each derivative is."""

import math

import torch

from zero_or_nan import explain


def told(report):
    return [(origin.kind, origin.phase, origin.operator) for origin in report]


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


def test_a_gradient_from_before_the_block():
    """Nothing in the block made it."""
    x = torch.tensor([1.0], requires_grad=True)
    x.grad = torch.tensor([math.nan])
    with explain() as report:
        (x * 2 + x).sum().backward()
    assert report.ok
