"""What is measured on a GPU: a step, the self-check, and rows without a key, whose outcome on a CPU is known."""

import pytest
import torch
from scratch import ROOT

from tools.measure import on_gpu
from tools.project import Problem, Project, read_record


def test_a_step_is_timed_clean_and_contaminated(monkeypatch):
    monkeypatch.setattr(on_gpu, "SECONDS", 0.01)
    found = on_gpu.costs_of(torch.nn.Linear(4, 4), torch.randn(8, 4), "cpu")
    assert found.keys() == {"plain_ms", "clean", "contaminated"} and all(value > 0 for value in found.values())


def test_what_is_not_right_is_named():
    record = read_record(ROOT / "results" / "measured" / "on_gpu.json")
    assert all(row["model"] in on_gpu.shown(record) for row in record["costs"])
    first, *others = record["selfcheck"]
    page = on_gpu.shown({**record, "selfcheck": [{**first, "ignoring": "wrong"}, *others]})
    assert f"{first['name']}: <em>wrong</em>" in page and page.count("<em>") == 1


def test_without_a_gpu_the_command_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Problem, match="needs a GPU"):
        on_gpu.on_gpu(Project(ROOT))


def test_on_a_cpu_the_rows_are_0_or_the_mean_and_all_gradients_are_right(monkeypatch):
    monkeypatch.setattr(on_gpu, "LENGTHS", (64,))
    found = {(row["dtype"], row["mask"]): row for row in on_gpu.empty_rows("cpu")}
    assert len(found) == 6
    for (_, mask), row in found.items():
        assert row["output"] == {"other numbers" if mask == "finfo.min" else "0": row["cases"]}
        assert row["plain"] == row["ours"] == row["without"] == {"right": row["cases"]}
    low = on_gpu.low_scores("cpu")
    assert [row["plain"] + row["ours"] + row["without"] for row in low] == 4 * [3 * "finite"]


def test_a_gradient_is_right_wrong_or_has_nan():
    wanted = (torch.tensor([1.0, -2.0]).double(),) * 3
    far, bad = torch.tensor([1.0, -2.5]), torch.tensor([1.0, torch.nan])
    near = torch.tensor([1.0, -2.01])
    assert on_gpu._word((near, near, near), wanted) == "right"
    assert on_gpu._word((near, far, near), wanted) == "wrong"
    assert on_gpu._word((bad, near, bad), wanted) == "NaN in q, v"


def test_the_table_shows_each_recorded_outcome_with_its_count():
    record = read_record(ROOT / "results" / "measured" / "empty_rows.json")
    table = on_gpu.rows_shown(record)
    right = [{"right": row["cases"]} for row in record["rows"]]  # what the page says of two remedies
    assert [row["without"] for row in record["rows"]] == right
    assert all(row["plain"] == {"right": row["cases"]} for row in record["rows"] if row["mask"] == "-inf")
    assert {(row["plain"], row["ours"], row["without"]) for row in record["low"]} == {(*2 * ["NaN in q"], "finite")}
    assert "other numbers" not in table and "Of these 36 runs, plain PyTorch's gradients are right in 18." in table
    assert "With 100 keys, all" in table and "has NaN in 4 runs, with <code>ignoring</code> in 4, and without" in table
    assert table.count("<tr ") == len(record["rows"]) / 2 + 1  # one for the head, none for a length that is all right
    assert "NaN in q" in table and record["device"] in table
    assert on_gpu._counted({"NaN in q": 1, "right": 5}, 6) == "NaN in q (1 of 6)<br>right (5 of 6)"
