"""The measurement on PyTorch's operator database: it can tell good from bad, and what it recorded still holds."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from tools.measure import mended
from tools.project import Project
from zero_or_nan import ignoring
from zero_or_nan.selfcheck import poisoned

OPERATORS = {mended.name_of(op): op for op in mended.operators()}
ROWS = {
    row["operator"]: row
    for row in json.loads((Project(Path.cwd()).results / "measured" / "mended.json").read_text(encoding="utf-8"))[
        "rows"
    ]
}


pytestmark = pytest.mark.usefixtures("one_thread")


def test_what_is_recorded_as_mended_is_good_enough():
    total = {key: sum(row[key] for row in ROWS.values()) for key in ("contaminated", "mended", "broken", "other_bits")}
    assert total["contaminated"] > 9000
    assert total["mended"] >= 0.97 * total["contaminated"]
    assert total["broken"] == total["other_bits"] == 0


@pytest.mark.parametrize("name", sorted(ROWS)[::12])
def test_a_recorded_operator_is_as_recorded(name):
    """A twelfth of the operators, a few samples of each."""
    tally = mended.measure(OPERATORS[name], samples=3)
    assert tally.broken == tally.other_bits == 0
    if ROWS[name]["mended"] == ROWS[name]["contaminated"]:
        assert tally.mended == tally.contaminated, tally.notes


def test_plain_pytorch_mends_nothing():
    tally = mended.measure(OPERATORS["mm"], torch.autograd.grad)
    assert tally.contaminated > 0 == tally.mended


def test_scrubbing_mends_what_was_not_summed_and_nothing_else():
    def scrub(*args, **kwargs):
        return [gradient.nan_to_num() for gradient in torch.autograd.grad(*args, **kwargs)]

    entrywise, summed = mended.measure(OPERATORS["exp"], scrub), mended.measure(OPERATORS["mm"], scrub)
    assert entrywise.mended == entrywise.contaminated > 0
    assert summed.mended < summed.contaminated


def test_a_gradient_that_plain_pytorch_has_right_can_be_broken():
    def doubled(*args, **kwargs):
        return [2 * gradient for gradient in torch.autograd.grad(*args, **kwargs)]

    tally = mended.measure(OPERATORS["neg"], doubled, samples=3)
    assert tally.broken == tally.samples == tally.other_bits > 0
    assert tally.notes[0].startswith("broken: sample ")


def test_a_missing_rule_is_named(monkeypatch):
    monkeypatch.delitem(ignoring.RULES, torch.ops.aten.mm)
    tally = mended.measure(OPERATORS["mm"])
    assert tally.mended < tally.contaminated
    assert tally.without_rule == ["aten::mm"]


def test_a_crash_is_told_and_the_rest_goes_on(monkeypatch, capsys):
    def crash(op, **options):
        return os.kill(os.getpid(), signal.SIGKILL) if op.name == "mm" else real(op, **options)

    real = mended.measure
    monkeypatch.setattr(mended, "measure", crash)
    crashed, other = mended.measure_all([OPERATORS["mm"], OPERATORS["neg"]])
    assert crashed.notes == ["the process died: SIGKILL"]
    assert other.samples > 0
    assert "all operators" in capsys.readouterr().out


def test_outputs_that_depend_on_the_poison_are_not_selected():
    sample = next(OPERATORS["mm"].sample_inputs("cpu", torch.float32, requires_grad=True))
    for case in poisoned.cases(OPERATORS["mm"], sample, "sample"):
        before, after = (
            case.function([t.clone().requires_grad_() for t in start]) for start in (case.clean, case.poisoned)
        )
        for used, b, a in zip(case.selected, before, after, strict=True):
            assert used.any() and torch.equal(b[used], a[used])
        assert case.loss([t.requires_grad_() for t in case.clean]).isfinite()
