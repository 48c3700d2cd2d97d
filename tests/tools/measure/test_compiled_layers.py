"""The measurement of compiled layers and losses: it can tell good from bad, and what it recorded still holds."""

import os
import signal

import pytest
import torch
from sample import sample
from scratch import ROOT
from torch import nn

from tools.measure import compiled
from tools.measure.compiled import cases_by_outcome
from tools.project import Project, read_record
from zero_or_nan import ignoring


@pytest.fixture(scope="module")
def record():
    return read_record(Project(ROOT).results / "measured" / "compiled.json")


def test_nothing_is_hidden_and_nothing_is_missed_in_silence(record):
    assert record["totals"]
    for row in record["totals"]:
        assert not any(row[outcome] for outcome in compiled.VIOLATIONS), row
    assert {row["backend"] for row in record["totals"]} <= set(compiled.BACKENDS)


def expected(record, backend, name):
    """The cases of a layer or loss that are not right, with their outcomes."""
    rows = [
        row
        for row in record["exceptions"]
        if (row["torch"], row["backend"], row["name"]) == (compiled.RELEASE, backend, name)
    ]
    return {case: outcome for row in rows for outcome, cases in cases_by_outcome(row) for case in cases}


SAMPLE = [("aot_eager_decomp_partition", "LPPool1d"), ("aot_eager", "L1Loss")]
"""A layer that has programs that are not right, under this backend, and a loss."""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "name"), sample(SAMPLE, 2))
def test_a_sample_is_as_recorded(record, backend, name):
    if not any(row["torch"] == compiled.RELEASE for row in record["totals"]):
        pytest.skip("this PyTorch isn't recorded")
    found = compiled.measure_all([name], backend)[name]
    assert {case: outcome for case, outcome in found.items() if outcome != "right"} == expected(record, backend, name)


def linear(of, uses=2):
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    return compiled.Program(
        "all used" if uses == 4 else "sliced",
        lambda compile: compile(lambda leaves: of(layer(leaves[0]))[:uses].sum()),
        [torch.randn(4, 3)], 2, list(layer.parameters()),
    )  # fmt: skip


def outcomes(program):
    found = compiled.judged(program, "aot_eager")
    return {outcome for outcome in found.values()}


def test_each_outcome(monkeypatch):
    assert outcomes(linear(lambda x: x)) == outcomes(linear(lambda x: x, uses=4)) == {"right"}

    def refusing(x):
        if not torch.compiler.is_compiling() and not x.isfinite().all():
            raise ValueError("not finite")
        return x

    assert outcomes(linear(refusing)) == {"refused"}
    assert outcomes(linear(lambda x: x * 2 if torch.compiler.is_compiling() else x)) == {"miscompiled"}
    monkeypatch.setattr(ignoring, "backward", torch.autograd.backward)
    assert outcomes(linear(lambda x: x)) == {"silent"}


def test_a_nan_that_only_ours_hides(monkeypatch):
    program, turns = linear(lambda x: x, uses=4), ["compiled", "uncompiled"]

    def scrubbed(loss):
        torch.autograd.backward(loss)
        if turns.pop(0) == "compiled":
            for parameter in program.parameters:
                parameter.grad.nan_to_num_()

    monkeypatch.setattr(ignoring, "backward", scrubbed)
    loss, spoiled = program.of(lambda function: function), [torch.full((4, 3), torch.nan)]
    assert compiled._outcome(program, loss, loss, spoiled, []) == "hidden" and not turns


def test_what_can_not_be_measured_has_failed(monkeypatch):
    def killed(name, backend):
        os.kill(os.getpid(), signal.SIGKILL)

    def failing(program, backend):
        raise ValueError("cannot be compiled\nbecause")

    monkeypatch.setattr(compiled, "judged", failing)
    found = compiled.measure("Linear", "aot_eager")
    assert set(found.values()) == {"failed: ValueError: cannot be compiled"} and len(found) == 10
    monkeypatch.setattr(compiled, "measure", killed)
    found = compiled.measure_all(["Linear"], "aot_eager")
    assert found == {"Linear": {"all programs": "failed: the process died: SIGKILL"}}
    assert compiled.tally(found) == {"failed": 1}


def test_a_backend_is_added_beside_the_others_and_drawn(project):
    good, bad = {"sliced, nan": "right"}, {"sliced, nan": "warned", "sliced, inf": "failed: <E>"}
    compiled.add(project, "2.10.0", "inductor", {"Linear": bad, "L1Loss": good})
    compiled.add(project, "2.10.0", "aot_eager", {"Linear": good})
    compiled.add(project, "2.9.0", "inductor", {"Linear": good})
    path = compiled.add(project, "2.10.0", "inductor", {"Linear": bad, "L1Loss": bad})
    content = read_record(path)
    assert [(row["torch"], row["backend"], row["of"], row["warned"]) for row in content["totals"]] == [
        ("2.9.0", "inductor", "layers", 0), ("2.9.0", "inductor", "losses", 0),
        ("2.10.0", "aot_eager", "layers", 0), ("2.10.0", "aot_eager", "losses", 0),
        ("2.10.0", "inductor", "layers", 1), ("2.10.0", "inductor", "losses", 1),
    ]  # fmt: skip
    assert [row["name"] for row in content["exceptions"]] == ["Linear", "L1Loss"]
    drawn = compiled.shown(content)
    assert "Of 6 compiled programs with bad rows, 2 are right, 2 are warned, 2 are failed<" in drawn
    assert drawn.count("some programs of <code>Linear</code>, <code>L1Loss</code>.") == 2  # warned, and failed
    assert "came with a warning" not in drawn
