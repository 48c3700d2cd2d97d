"""The measurement on PyTorch's operator database: it can tell good from bad, and what it recorded still holds."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from sample import sample

from tools.measure import fixed
from tools.project import Project
from zero_or_nan import ignoring
from zero_or_nan.selfcheck import poisoned

RECORDED = json.loads((Project(Path.cwd()).results / "measured" / "fixed.json").read_text(encoding="utf-8"))
ROWS = {row["operator"]: row for row in RECORDED["rows"]}


@pytest.fixture(scope="module")
def operators():
    """By their names. Not at import: the database takes seconds, also in a process that runs none of these tests."""
    return {fixed.name_of(op): op for op in fixed.operators()}


def test_what_is_recorded_as_fixed_is_good_enough(operators):
    total = RECORDED["totals"]
    for count in ("contaminated", "crashed", "fixed", "broken", "other_bits"):
        assert total[count] == sum(row[count] for row in ROWS.values())
    assert RECORDED["operators"] == len(operators)
    assert total["contaminated"] > 9000
    assert total["fixed"] >= 0.99 * total["contaminated"]
    assert total["broken"] == total["other_bits"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("index", sample(range(24, RECORDED["operators"], 36), 4))
def test_an_operator_is_as_recorded(operators, index):
    """One operator in 144, with and without a row, a few samples of each; `make fixed` measures all of all of them.

    An operator without a row is contaminated on some processors at most, as `elu` is, and then it is fixed.
    """
    name = sorted(operators)[index]
    tally = fixed.measure(operators[name], samples=3)
    assert tally.broken == tally.other_bits == 0
    if name not in ROWS:
        assert tally.contaminated == tally.fixed, tally.notes
    elif ROWS[name]["fixed"] == ROWS[name]["contaminated"]:
        assert tally.fixed == tally.contaminated, tally.notes


@pytest.mark.usefixtures("by_rules_alone")
def test_a_missing_rule_is_named(operators, monkeypatch):
    monkeypatch.delitem(ignoring.RULES, torch.ops.aten.mm)
    tally = fixed.measure(operators["mm"])
    assert tally.fixed < tally.contaminated
    assert tally.without_rule == ["aten::mm"]


def test_a_gradient_that_plain_pytorch_has_right_can_be_broken(operators):
    def doubled(*args, **kwargs):
        return [2 * gradient for gradient in torch.autograd.grad(*args, **kwargs)]

    tally = fixed.measure(operators["neg"], doubled, samples=3)
    assert tally.broken == tally.samples == tally.other_bits > 0
    assert tally.notes[0].startswith("broken: sample ")


def killing(samples):
    """An operator whose backward kills the process, where its input has a number that is not finite."""

    def call(x):
        y = x * 1
        if not x.isfinite().all():
            y.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
        return y

    from torch.testing._internal.opinfo.core import SampleInput  # not above, for it imports the database's parts

    def sample_inputs(*args, **kwargs):
        for size in samples:
            yield SampleInput(torch.ones(size, requires_grad=True))

    call.name, call.variant_test_name, call.sample_inputs = "killing", "", sample_inputs
    return call


def test_a_crash_costs_one_sample_and_the_rest_goes_on(operators, capsys):
    crashed, other = fixed.measure_all([killing([4]), operators["neg"]])
    # Half of the input and the last entry; by index and by where; NaN and inf crash, 3e38 does not.
    assert (crashed.samples, crashed.crashed, crashed.contaminated, crashed.fixed) == (12, 8, 8, 0)
    assert fixed.row(crashed)["not_fixed"] == {"no end": 8}
    assert crashed.not_fixed[0].failure == "the process died: SIGKILL"
    assert other.samples > 0 == other.contaminated
    assert "all operators: " in capsys.readouterr().out


@pytest.mark.parametrize(("operator", "sample", "cause"), [
    ("mm", poisoned.NotFixed("a", finite=True), "finite in PyTorch"),
    ("mm", poisoned.NotFixed("a", failure="the process died: SIGSEGV"), "no end"),
    ("mm", poisoned.NotFixed("a", failure="ValueError: no"), fixed.UNEXPLAINED),
    ("mm", poisoned.NotFixed("last element inf"), fixed.UNEXPLAINED),
    ("nn.functional.scaled_dot_product_attention", poisoned.NotFixed("last element inf"), "computed zero"),
    ("nn.functional.scaled_dot_product_attention", poisoned.NotFixed("last entry nan"), "computed zero"),
    ("nn.functional.scaled_dot_product_attention", poisoned.NotFixed("half of dimension 0 nan"), fixed.UNEXPLAINED),
])  # fmt: skip
def test_a_cause_explains_what_it_is_for(operator, sample, cause):
    assert fixed.cause_of(operator, sample) == cause
