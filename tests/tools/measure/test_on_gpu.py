"""What is measured on a GPU: the time of a step, and how the self-check is reported."""

import pytest
import torch
from scratch import ROOT

from tools.measure import empty_rows, on_gpu
from tools.project import Problem, Project, read_record


def test_a_step_is_timed_clean_and_contaminated(monkeypatch):
    monkeypatch.setattr(on_gpu, "ROUNDS", 3)
    found = on_gpu.costs_of(torch.nn.Linear(4, 4), torch.randn(8, 4), "cpu")
    assert found.keys() == {"plain_ms", "clean", "contaminated"} and all(value > 0 for value in found.values())


def test_what_is_not_right_is_named():
    record = read_record(ROOT / "results" / "measured" / "on_gpu.json")
    wrong = [row["name"] for row in record["selfcheck"] if row["ignoring"] not in ("right", "rounded", "no sample")]
    page = on_gpu.shown(record)
    assert wrong and all(f"{name}: <em>" in page for name in wrong)
    assert all(row["model"] in page for row in record["costs"])


@pytest.mark.parametrize("command", [empty_rows.empty_rows, on_gpu.on_gpu])
def test_without_a_gpu_the_command_says_what_it_needs(monkeypatch, command):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Problem, match="needs a GPU"):
        command(Project(ROOT))
