"""Entries of one tensor are told apart: what the forward pass made, what a derivative made, and what only arrived."""

import torch
from origins import telling

from zero_or_nan import explain

told = telling("kind", "phase", "operator", "entries")


def test_ignored_and_used_in_one_tensor():
    """sqrt(-1) is dropped, and sqrt(0) is used: the gradient that one would want does not exist all the same."""
    x = torch.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    with explain() as report:
        root = x.sqrt()
        torch.where(x < 0, 0.0, root).sum().backward()
    assert told(report) == [
        ("contaminated", "forward", "sqrt", [(0,)]),
        ("undefined", "backward", "sqrt", [(1,)]),
    ]


def test_what_arrives_is_not_born_again():
    """NaN arrives at sqrt'(0), of 0 / 0 behind it: that is the origin, and the root is on its way."""
    x = torch.tensor([0.0, 0.25], requires_grad=True)
    with explain() as report:
        angle = x.sqrt()
        torch.where(angle < 1e-4, 1 - x / 6, angle.sin() / angle).sum().backward()
    assert told(report) == [("contaminated", "forward", "div", [(0,)])]
    assert "sqrt" in report.origins[0].path


def test_a_hook_that_divides_by_zero_is_not_what_the_loss_ignores():
    """`ignoring` fixes all but the NaN of the hook, which it would run too."""
    v = torch.tensor([1.0, 100.0], requires_grad=True)
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    with explain() as report:
        moved = w * 0
        moved.register_hook(lambda gradient: gradient * 0 / (gradient * 0).norm())
        (torch.where(v < 50, v.exp(), v * 0) + moved).sum().backward()
    assert told(report) == [
        ("contaminated", "forward", "exp", [(1,)]),
        ("undefined", "backward", "div", [(0,), (1,)]),
    ]
    assert report.origins[1].reached == ["w"]
