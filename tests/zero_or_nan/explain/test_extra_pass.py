"""An extra pass uses nothing up: the caches of selective checkpoints, groups of passes, modes that count.

A block inside of a block watches the same functions, writes on the same nodes, and runs extra passes, too.
"""

import contextlib
import functools

import pytest
import torch
import torch.nn.functional as F
from origins import report_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tests.zero_or_nan.ignoring.telling import ByOperators
from zero_or_nan import explain, ignoring


class Counts(TorchDispatchMode):
    """Lets so many operators run, and no more."""

    def __init__(self, left=1000):
        super().__init__()
        self.left = left

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        assert self.left >= 0
        return func(*args, **(kwargs or {}))


SAVED = [torch.ops.aten.mm.default, torch.ops.aten.where.self]


def forward(x, weight, scale):
    q, k, v = (x @ weight).split(8, -1)
    y = F.scaled_dot_product_attention(q, k, v)
    return torch.where(y > 0, y.exp(), (y * scale).square().sqrt())


saving = functools.partial(create_selective_checkpoint_contexts, SAVED)


def step(scale, context=saving):
    torch.manual_seed(0)
    weight, x = torch.randn(8, 24, requires_grad=True), torch.randn(2, 4, 8, requires_grad=True)
    y = checkpoint(forward, x, weight, scale, use_reentrant=False, context_fn=context)
    y.sum().backward()
    return str([y, x.grad, weight.grad])


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_selective_checkpoints(scale):
    plain = step(scale)
    with explain() as report:
        watched = step(scale)
    assert watched == plain and report.ok == (scale != 0)
    assert [origin.operator for origin in report] == ["sqrt"][: scale == 0]


def test_a_mode_that_may_run_once():
    needs = Counts()
    plain = step(0.0, lambda: (Counts(), needs))
    with explain() as report:
        watched = step(0.0, lambda: (Counts(), Counts(1000 - needs.left)))
    assert watched == plain and not report.ok
    assert not any(origin.is_sure for origin in report)


# A backward in Python that can run only once runs once, and what is not found out for that is not told.


class Frees(torch.autograd.Function):
    """exp, which lets go of what it kept."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.exp()
        return ctx.kept.clone()

    @staticmethod
    def backward(ctx, gradient):
        kept = ctx.kept
        del ctx.kept
        return gradient * kept


class Writes(torch.autograd.Function):
    """exp, which writes its gradient over what it saved, as kernels do that save memory."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result.clone())
        return result

    @staticmethod
    def backward(ctx, gradient):
        (kept,) = ctx.saved_tensors
        kept.data.mul_(gradient)
        return kept


def step_of(function, last):
    x = torch.tensor([0.5, last], requires_grad=True)
    (torch.where(x < 50, function.apply(x), torch.zeros(2)) * torch.tensor([3.0, 1.0])).sum().backward()
    return x.grad.tolist()


@pytest.mark.parametrize("function", [Frees, Writes])
def test_the_gradient_is_that_of_plain_pytorch_and_nobody_says_what_he_does_not_know(function):
    assert report_of(lambda: step_of(function, 1.0)).ok
    plain = step_of(function, 100.0)
    with explain() as report:
        watched = step_of(function, 100.0)
    assert str(plain) == str(watched) and "nan" in str(plain)
    (origin,) = report
    assert not origin.is_sure and origin.fixed is None and origin.kind == "overflow"
    assert "if the loss uses this element, its exact value is 2.68812e43" in str(origin)
    assert any("may allow only one pass" in note for note in report.notes)


def test_one_that_is_recorded_may_run_twice_and_is_told_apart():
    class Exp(ByOperators):
        """A class of its own: `ignoring.function` keeps what it knows of a class."""

    ignoring.function(Exp)
    (origin,) = report_of(lambda: step_of(Exp, 100.0))
    assert origin.is_sure and (origin.kind, origin.fixed) == ("contaminated", True)


def logarithms(x):
    return torch.where(x > 0, x.log(), 0).sum() + (x * 0).log().sum()


def in_a_checkpoint(x):
    return checkpoint(lambda x: (torch.stack([x.log(), x]) @ x)[1:].sum(), x, use_reentrant=False) + x.exp().sum()


def in_a_reentrant_checkpoint(x):
    return checkpoint(logarithms, x * 1, use_reentrant=True)


@pytest.mark.parametrize("work", [in_a_checkpoint, in_a_reentrant_checkpoint])
def test_each_block_reports_what_it_would_alone(work, depth=3):
    """Hooks run as often as in one block."""

    def run():
        calls = []
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        y = x * 1
        for hooked in (x, y, y.grad_fn):
            hooked.register_hook(lambda *gradients: calls.append(gradients))
        work(y).backward()
        return len(calls), x.grad.nan_to_num(7.0).tolist()

    def told(report):
        origins = [(origin.kind, origin.operator, origin.times, origin.count, origin.reached) for origin in report]
        return origins, report.passes

    plain = run()
    alone = report_of(run)
    with contextlib.ExitStack() as stack:
        reports = [stack.enter_context(explain()) for _ in range(depth)]
        watched = run()
    assert alone.origins and [told(report) for report in reports] == depth * [told(alone)]
    assert plain == watched
