"""No false alarm: where nothing that is not finite reached the loss or a gradient, there is nothing to tell."""

import random

import pytest
import torch
import torch.nn.functional as F
from origins import report_of
from torch import nn

from tests.zero_or_nan.ignoring import programs as random_programs
from tests.zero_or_nan.ignoring.test_modules import LOSSES
from zero_or_nan import explain, ignoring
from zero_or_nan.explain.program.tensors import is_finite

inf = float("inf")


def drawn(number, values=random_programs.NUMBERS):
    """A random program: what hypothesis would draw, from a seed."""
    draw = random.Random(number)
    size = random_programs.SIZE
    masks = [draw.random() < 0.5 for _ in range(size)]
    parameters = {
        id(random_programs.nothing): lambda: None,
        id(random_programs.masks): lambda: [draw.random() < 0.5 for _ in range(size)],
        id(random_programs.values): lambda: [draw.choice(values) for _ in range(size)],
        id(random_programs.indices): lambda: [draw.randrange(size) for _ in range(size)],
    }

    def parameter(strategy):
        if id(strategy) in parameters:
            return parameters[id(strategy)]()
        if strategy is random_programs.LAST["dot"][2]:
            return random_programs.PLAIN[:4]
        return masks, parameters[id(random_programs.values)]()

    steps = []
    for at in range(draw.randint(1, 7)):
        one = draw.random() < 0.75
        table = random_programs.ONE if one else random_programs.TWO
        name = draw.choice(sorted(table))
        steps.append((name, [at + 1] if one else [at + 1, draw.randint(0, at + 1)], parameter(table[name][2])))
    name = draw.choice(sorted(random_programs.LAST))
    leaves = [[draw.choice(values) for _ in range(size)] for _ in range(2)]
    return random_programs.Program(leaves, steps, (name, parameter(random_programs.LAST[name][2])))


def all_finite(tensors):
    return all(tensor is None or is_finite(tensor) for tensor in tensors)


FEW = random_programs.PLAIN * 20 + [0.0, -0.0, 100.0, -inf, float("nan")]
"""Most programs on these are clean."""


def told_of(program):
    """The report, and whether the loss and all gradients were finite."""
    with explain() as report:
        leaves, loss = program.by_pytorch(torch.float32)
        loss.backward()
    return report, all_finite([loss, *(leaf.grad for leaf in leaves)])


@pytest.mark.slow
def test_random_programs():
    """On 300 programs that are clean nothing is told, and on each that is not something is."""
    clean, number = 0, 0
    while clean < 300:
        number += 1
        report, is_clean = told_of(drawn(number, FEW))
        assert report.ok == is_clean, (number, report)
        clean += is_clean
    assert number > 330


def test_random_programs_that_are_not():
    """Every origin is a contamination just where `ignoring` makes all of it finite."""
    for number in range(100):
        report, is_clean = told_of(drawn(number))
        assert report.ok == is_clean, (number, report)
        if not is_clean:
            leaves, loss = drawn(number).by_pytorch(torch.float32)
            ignoring.backward(loss)
            fixed = all_finite([loss, *(leaf.grad for leaf in leaves)])
            assert fixed == ({origin.kind for origin in report} == {"contaminated"}), (number, report)


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    torch.manual_seed(0)
    target = {
        "same": torch.rand(4, 5),
        "sign": torch.randint(0, 2, (4, 5)) * 2.0 - 1,
        "unit": torch.rand(4, 5),
        "class": torch.arange(4),
        "classes": torch.tensor([[0, 2, -1, 0, 0]] * 4),
    }[LOSSES[name]]
    output = nn.Linear(3, 5)(torch.randn(4, 3))
    with explain() as report:
        loss = getattr(nn, name)()(output.sigmoid() if name == "BCELoss" else output, target)
        loss.backward()
    assert report.ok, report


class Masked(nn.Module):
    """Attention with a mask of -inf, dropout, batch norm, a minimum that drops an infinity."""

    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Linear(4, 12), nn.BatchNorm1d(4)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 2)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT
        scores = scores + torch.full(scores.shape[-2:], -inf).triu(1)
        corner = torch.eye(len(x[0]), dtype=torch.bool).roll(1, 0).triu(1)
        scores = scores.masked_fill(corner, torch.finfo(scores.dtype).min)
        attended = self.drop(scores.softmax(-1)) @ v
        pooled = self.norm(attended.mean(1))
        return self.head(torch.minimum(pooled, torch.tensor([3.0, inf, 3.0, inf])))


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_training(precision):
    """Steps of Adam, with all that has infinities for good reasons; and the scaler's own."""
    torch.manual_seed(0)
    model = Masked()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=precision is not None)
    best = torch.tensor(inf)
    with explain() as report:
        for _ in range(30):
            x, y = torch.randn(8, 3, 4), torch.randint(0, 2, (8,))
            with torch.autocast("cpu", dtype=precision, enabled=precision is not None):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            best = torch.minimum(best, loss.detach())
    assert report.ok and report.passes == 30, report


def test_without_a_backward_pass():
    report = report_of(lambda: torch.full((3, 3), -inf).triu(1).softmax(-1).sum())
    assert report.ok and report.passes == 0, report


def test_inputs_that_are_not_finite_and_not_used():
    """Buffers, data and parameters with NaN and inf lie about, and no function takes them in."""
    bad = torch.full((4,), float("nan"), requires_grad=True)
    with explain() as report:
        kept = [bad, torch.empty(3).fill_(inf), bad.detach().clone()]
        x = torch.ones(4, requires_grad=True)
        (x * 2).sum().backward()
    assert report.ok and kept, report
