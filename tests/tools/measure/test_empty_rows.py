"""Rows without a key in the kernel of a GPU: how an outcome is said. On a CPU, each outcome is known."""

import torch
from scratch import ROOT

from tools.measure import empty_rows as measured
from tools.project import read_record


def test_on_a_cpu_the_rows_are_0_or_the_mean_and_all_gradients_are_right(monkeypatch):
    monkeypatch.setattr(measured, "LENGTHS", (64,))
    found = {(row["dtype"], row["mask"]): row for row in measured.measure("cpu")}
    assert len(found) == 6
    for (_, mask), row in found.items():
        assert row["output"] == {"other numbers" if mask == "finfo.min" else "0": row["cases"]}
        assert row["plain"] == row["ours"] == {"right": row["cases"]}


def test_a_gradient_is_right_wrong_or_has_nan():
    wanted = (torch.tensor([1.0, -2.0]).double(),) * 3
    far, bad = torch.tensor([1.0, -2.5]), torch.tensor([1.0, torch.nan])
    near = torch.tensor([1.0, -2.01])
    assert measured._word((near, near, near), wanted) == "right"
    assert measured._word((near, far, near), wanted) == "wrong"
    assert measured._word((bad, near, bad), wanted) == "NaN in q, v"


def test_the_table_shows_each_recorded_outcome_with_its_count():
    record = read_record(ROOT / "results" / "measured" / "empty_rows.json")
    table = measured.shown(record)
    assert table.count("<tr ") == len(record["rows"]) + 1  # one for the head
    assert "NaN in q (1 of 6)<br>right (5 of 6)" in table and record["device"] in table
