"""No false alarm: where nothing that is not finite reached the loss or a gradient, there is nothing to tell."""

from dataclasses import replace
from math import inf

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from origins import report_of
from sample import examples
from torch import nn

from tests.zero_or_nan.ignoring.programs import PLAIN, SIZE, programs
from zero_or_nan import explain, ignoring
from zero_or_nan.explain.program.tensors import are_finite

drawn = settings(
    deadline=None, derandomize=True, database=None, max_examples=examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


def gradients(program, backward):
    """The loss of a random program, and the gradients that a backward pass gives."""
    leaves, loss = program.by_pytorch(torch.float32)
    backward(loss)
    return [loss.detach(), *(leaf.grad for leaf in leaves)]


@given(program=programs())
@drawn
def test_random_programs(program):
    """Something is told just where the loss or a gradient is not finite: contaminations, if `ignoring` fixes all."""
    for leaves in (program.leaves, [PLAIN[:SIZE], PLAIN[-SIZE:]]):
        each = replace(program, leaves=leaves)
        with explain() as report:
            found = gradients(each, torch.Tensor.backward)
        assert report.ok == are_finite(found), report
        if not report.ok:
            fixed = are_finite(gradients(each, ignoring.backward))
            assert fixed == ({origin.kind for origin in report} == {"contaminated"}), report


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_training(precision):
    """Steps of Adam, with all that has infinities for good reasons; and the scaler's own."""
    torch.manual_seed(0)
    layer, head = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 2)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=precision is not None)
    mask, largest, best = torch.full((3, 3), -inf).triu(1), torch.tensor([3.0, inf, 3.0, inf]), torch.tensor(inf)
    with explain() as report:
        for _ in range(5):
            x, y = torch.randn(8, 3, 4), torch.randint(0, 2, (8,))
            with torch.autocast("cpu", dtype=precision, enabled=precision is not None):
                pooled = layer(x, src_mask=mask, is_causal=True).mean(1)
                loss = F.cross_entropy(head(torch.minimum(pooled, largest)), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
            best = torch.minimum(best, loss.detach())
    assert report.ok and report.passes == 5, report


def test_inputs_that_are_not_finite_and_not_used():
    """A mask, buffers, data and parameters with NaN and inf lie about, and no loss takes them in."""
    report = report_of(lambda: torch.full((3, 3), -inf).triu(1).softmax(-1).sum())
    assert report.ok and report.passes == 0, report
    bad = torch.full((4,), float("nan"), requires_grad=True)
    with explain() as report:
        kept = [bad, torch.empty(3).fill_(inf), bad.detach().clone()]
        x = torch.ones(4, requires_grad=True)
        (x * 2).sum().backward()
    assert report.ok and kept, report
