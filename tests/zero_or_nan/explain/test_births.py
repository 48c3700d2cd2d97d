"""Each number that is not finite is told of where it was born, once, and not where it arrives or is added up.

The work for a birth does not grow with the number of births.
"""

import sys
from math import inf, nan
from pathlib import Path

import pytest
import torch
from origins import report_of, telling, told
from tensors import leaf
from torch import nn
from torch.utils.checkpoint import checkpoint

from zero_or_nan import explain
from zero_or_nan.explain.births import call
from zero_or_nan.explain.report.narration import BEHIND

with_elements = telling("kind", "phase", "operator", "entries")


def several_passes(x):
    for _ in range(3):
        (x * 2e38 - 2e38).sum().backward()


def hooked(x):
    y = x * 1
    y.register_hook(lambda gradient: gradient * 3e38)
    (y * 2).sum().backward()


@pytest.mark.parametrize(
    ("program", "operands"),
    [
        (lambda x: [y := x.sin(), (y * y * 3e38).sum().backward()], None),  # inside of the graph
        (several_passes, "the sum of 2 gradients > 3.4e38"),  # each is finite
        (hooked, None),
    ],
)
def test_finite_derivatives_whose_sum_is_not(program, operands):
    x = leaf(1.0)
    report = report_of(lambda: program(x))
    assert x.grad.isinf() and told(report) == [("overflow", "backward", "mul")]
    assert operands in (None, report.origins[0].operands)


PASSES = {
    "plain": lambda w, v: (w * v).sum().backward(),
    "of one each": lambda w, v: [v.sin().sum().backward(), w.sum().backward()],
    "recomputed": lambda w, v: checkpoint(lambda w: (w * v).sin(), w, use_reentrant=False).sum().backward(),
    "then used": lambda w, v: [(w * v).sum().backward(), (w.grad * v).sum().backward()],
}


@pytest.mark.parametrize(("name", "bad"), [*((name, nan) for name in PASSES), ("plain", inf)])
def test_gradients_from_before_the_block(name, bad):
    """What a pass adds to them is not finite, and nothing in the block made it."""
    w, v = leaf(1.0, 2.0), leaf(1.0, 2.0)
    w.grad, v.grad = torch.tensor([bad, 1.0]), torch.tensor([bad, 1.0])
    (origin,) = report_of(lambda: PASSES[name](w, v))
    assert (origin.kind, origin.phase, origin.operator) == ("bad input", "forward", "backward")
    assert (origin.entries, origin.times, origin.fixed) == ([(0,)], 1 + (name == "of one each"), None)
    assert origin.operands == f"{bad} in .grad before this pass" and "zero_grad" in origin.remedy
    assert {"w", "v"} <= set(origin.reached)


def poles(x):
    inverse = 1 / x
    (inverse / 0).sum().backward()


SQRT = ("undefined", "backward", "sqrt", [(0,)])
CASES = {
    "gradients of this block are told of once": (
        leaf(1.0), lambda x: [(x - x).sqrt().sum().backward(), (x * 1).sum().backward()], [SQRT],
    ),
    "what comes in and what is made in one function": (
        torch.full((4,), 3e4, dtype=torch.half, requires_grad=True), lambda x: x.cumsum(0).sum().backward(),
        [("overflow", "forward", "cumsum", [(2,), (3,)]), ("overflow", "forward", "sum", [()])],
    ),
    "poles one after the other": (
        leaf(0.0, 1.0), poles,
        [("undefined", "forward", "div", [(0,)]), ("undefined", "forward", "div", [(1,)])],
    ),
    "ignored and used in one tensor": (
        leaf(-1.0, 0.0, 4.0), lambda x: torch.where(x < 0, 0.0, x.sqrt()).sum().backward(),
        [("contaminated", "forward", "sqrt", [(0,)]), ("undefined", "backward", "sqrt", [(1,)])],
    ),
    "what arrives at a root at 0 is not born again": (
        leaf(0.0, 0.25), lambda x: [a := x.sqrt(), torch.where(a < 1e-4, 1 - x / 6, a.sin() / a).sum().backward()],
        [("contaminated", "forward", "div", [(0,)])],
    ),
    "nansum leaves a NaN out": (
        leaf(-1.0, 0.0, 2.0), lambda x: x.log().nansum().backward(), [("undefined", "forward", "log", [(1,)])],
    ),
    "a vector that is not finite": (
        leaf(1.0, 2.0), lambda x: (x * 2).backward(torch.tensor([1.0, inf])),
        [("bad input", "forward", "backward", [(1,)])],
    ),
    "NaN and infinity of one call": (
        leaf(0.0, -1.0, 2.0), lambda x: x.log().sum().backward(), [("undefined", "forward", "log", [(0,), (1,)])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_elements_are_told_apart(name):
    x, program, expected = CASES[name]
    assert with_elements(report_of(lambda: program(x))) == expected


def test_a_hook_that_divides_by_zero_is_not_what_the_loss_ignores():
    """`ignoring` fixes all but the NaN of the hook, which it would run too."""
    v, w = leaf(1.0, 100.0), leaf(1.0, 2.0)
    with explain() as report:
        moved = w * 0
        moved.register_hook(lambda gradient: gradient * 0 / (gradient * 0).norm())
        (torch.where(v < 50, v.exp(), v * 0) + moved).sum().backward()
    assert with_elements(report) == [
        ("contaminated", "forward", "exp", [(1,)]), ("undefined", "backward", "div", [(0,), (1,)]),
    ]  # fmt: skip
    assert report.origins[1].reached == ["w"]


# If fixing a contaminated origin is not enough, the report names the origin behind it, which its NaN hides.


def by_hand(x):
    return x.square().sum(-1).sqrt()


def test_a_slope_behind_a_division():
    """Directions under a where, and the lengths themselves: 0 / 0, and behind it the slope of the length."""
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    with explain() as report:
        n = by_hand(x)
        (torch.where(n[:, None] > 0, x / n[:, None], 0)[:, 0].sum() + n.sum()).backward()
    assert told(report) == [("contaminated", "forward", "div"), ("undefined", "backward", "sqrt")]
    division, root = report
    assert division.fixed is False and "fix the other origins" in division.remedy
    assert root.source == "return x.square().sum(-1).sqrt()" and root.reached == ["x"] and root.entries == [(0,)]
    assert root.operands == "inf, the derivative of sqrt at 0"
    assert report.notes == [BEHIND.format("sqrt", root.line)]


def test_a_function_that_only_passes_a_nan_on_is_not_behind():
    """The root of the whole loss is no step of the shadow, because nothing is ignored there."""
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    with explain() as report:
        n = by_hand(x)[:, None]
        total = torch.where(n > 0, x / n, 0).sum()
        (total - total.detach()).sqrt().backward()
    assert {origin.operator for origin in report} == {"div", "sqrt"} and not report.notes


def test_a_product_that_overflows_behind_it_is_not_named():
    """Its factors are finite, but not their product in the pass of `ignoring`. The remedy promises no gradient."""
    x = leaf(0.0, 0.0)
    with explain() as report:
        n = x * 1e30
        (torch.where(n > 0, x / n, 0) + n * 1e30).sum().backward()
    (origin,) = report
    assert (origin.operator, origin.fixed) == ("div", False) and "does not fix it here" in origin.remedy


@pytest.mark.parametrize("width, weight", [(2, 2e38), (1, 4.0)])
def test_a_product_that_overflows_too_is_an_origin_of_its_own(width, weight):
    x = torch.full((2, width), 1.0)
    x[0, 0] = torch.nan
    large = torch.full((1, width), weight, requires_grad=True)
    with explain() as report:
        nn.functional.linear(x, large).mul(1.0).sum().backward()
    assert [origin.operator for origin in report] == (["linear"] * 2 if width == 2 else ["linear"])


def test_the_names_that_wrappers_give_are_no_part_of_a_name():
    """Of DistributedDataParallel, the compiler, and FSDP. No variable leads to the model."""
    held = [nn.Module()]
    for wrapper in ("module", "_orig_mod", "_fsdp_wrapped_module"):
        held[0].add_module(wrapper, nn.Sequential(nn.Linear(1, 1)))
        with explain() as report:
            getattr(held[0], wrapper)(torch.full((1, 1), torch.nan)).sum().backward()
        assert report.origins[0].reached == ["the loss", "0.weight"]


def test_the_work_for_a_birth_does_not_grow_with_their_number():
    def lines(births):
        """How many lines of the library run."""
        count, package = 0, str(Path(call.__file__).parent)

        def trace(frame, event, arg):
            nonlocal count
            count += event == "line"
            return trace if frame.f_code.co_filename.startswith(package) else None

        weight, loss = torch.zeros(2, requires_grad=True), torch.zeros(())
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with explain() as report:
                for _ in range(births):
                    loss = loss + (weight * 1.0).log().sum()
                loss.backward()
        finally:
            sys.settrace(before)
        assert [origin.times for origin in report] == [births]
        return count

    lines(5)
    few, many = lines(25), lines(100)
    assert many < 4.2 * few


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ones):
        ctx.save_for_backward(x)
        return x * ones

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        power = torch.exp(3 * x)
        return gradient * power / power, None  # of the shape of the result: PyTorch sums over the rows


@pytest.mark.parametrize("shape", [(2,), (3, 1)])
def test_the_line_of_a_derivative_of_the_users_own_is_told(shape):
    (origin,) = report_of(lambda: Steep.apply(leaf(40.0, 1.0), torch.ones(shape)).sum().backward())
    assert (origin.kind, origin.operands) == ("overflow", "exp(120) > 3.4e38")
    assert origin.line == Steep.backward.__code__.co_firstlineno + 3
    assert origin.remedy.endswith("power = (3 * x).clamp(max=20).exp()") and "is exact" in origin.remedy


class Sign(Steep):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.abs() / x, None


def test_in_a_derivative_of_the_users_own_nothing_is_chosen():
    (origin,) = report_of(lambda: Sign.apply(leaf(0.0, 1.0), torch.ones(2)).sum().backward())
    assert origin.operands == "0 / 0" and origin.replaces is None and "a choice" not in origin.remedy


@pytest.mark.parametrize("numbers, is_zero", [((100.0, 95.0), True), ((100.0, 1.0), False)])
def test_a_gradient_that_is_0_everywhere_is_no_silent_fix(numbers, is_zero):
    (origin,) = report_of(lambda: leaf(*numbers).exp().clamp(max=20).sum().backward())
    assert origin.kind == "contaminated" and origin.fixed
    assert ("# this gradient is 0 everywhere" in origin.remedy) is is_zero
