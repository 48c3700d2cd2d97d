"""A block inside of a block: both watch the same functions, write on the same nodes, and run extra passes."""

import contextlib

import pytest
import torch
from origins import report_of
from torch.utils.checkpoint import checkpoint

from zero_or_nan import explain


def logarithms(x):
    return torch.where(x > 0, x.log(), 0).sum() + (x * 0).log().sum()


def in_a_checkpoint(x):
    return checkpoint(lambda x: (torch.stack([x.log(), x]) @ x)[1:].sum(), x, use_reentrant=False) + x.exp().sum()


def in_a_reentrant_checkpoint(x):
    return checkpoint(logarithms, x * 1, use_reentrant=True)


def behind_a_contaminated_one(x):
    length = (x * 0).square().sum().sqrt()
    return torch.where(length > 0, x / length, x).sum() + length


@pytest.mark.parametrize("work", [in_a_checkpoint, in_a_reentrant_checkpoint, behind_a_contaminated_one])
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
