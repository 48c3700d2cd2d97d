"""A block inside of a block: both watch the same functions, write on the same nodes, and run extra passes."""

import contextlib

import pytest
import torch
from origins import report_of
from torch.utils.checkpoint import checkpoint

from zero_or_nan import explain


def logarithms(x):
    return torch.where(x > 0, x.log(), 0).sum() + (x * 0).log().sum()


def sliced_after_a_product(x):
    rows = torch.stack([x.log(), x])
    return (rows @ x)[1:].sum()


def in_a_checkpoint(x):
    return checkpoint(sliced_after_a_product, x, use_reentrant=False) + x.exp().sum()


def in_a_reentrant_checkpoint(x):
    return checkpoint(logarithms, x * 1, use_reentrant=True)


def behind_a_contaminated_one(x):
    length = (x * 0).square().sum().sqrt()
    return torch.where(length > 0, x / length, x).sum() + length


WORK = [logarithms, sliced_after_a_product, in_a_checkpoint, in_a_reentrant_checkpoint, behind_a_contaminated_one]


def told(report):
    return [(origin.kind, origin.operator, origin.times, origin.count, origin.reached) for origin in report]


def alone(work):
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    report = report_of(lambda: work(x).backward())
    assert report.origins
    return told(report), x.grad, report.passes


@pytest.mark.parametrize("work", WORK)
def test_each_block_reports_what_it_would_alone(work, depth=3):
    expected, gradient, passes = alone(work)
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with contextlib.ExitStack() as stack:
        reports = [stack.enter_context(explain()) for _ in range(depth)]
        work(x).backward()
    assert [told(report) for report in reports] == depth * [expected]
    assert [report.passes for report in reports] == depth * [passes]
    assert torch.equal(x.grad.nan_to_num(7.0), gradient.nan_to_num(7.0))


def test_hooks_run_once():
    calls = []
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    x.register_hook(calls.append)
    with explain(), explain():
        y = x * 1
        y.register_hook(calls.append)
        y.grad_fn.register_hook(lambda *gradients: calls.append(gradients))
        logarithms(y).backward()
    assert len(calls) == 3
