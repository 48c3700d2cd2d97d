"""The page *What counts as ignored* is the rule: each row of its table, held against the gradient itself."""

import math
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from helpers.counting import what_counts
from tools.steps.read import read
from zero_or_nan import ignoring

PAGE = Path(__file__).parents[3] / "chapters" / "what-counts-as-ignored.md"


def rows_of_the_page():
    """What its cells hand to `what_counts`."""
    rows = []

    def collect(some):
        rows.extend(some)
        return [], []

    names = {"__name__": "page"}
    for cell in read(PAGE).cells:
        is_checks = cell.cell_type != "code" or "hide-cell" in cell.metadata.get("tags", [])
        if "what_counts(" in cell.source or not is_checks:
            exec(cell.source, names)
            names |= {"what_counts": collect, "case": Mock()}
    assert len(rows) > 100, "a table of the page is missing"
    return rows


ROWS = rows_of_the_page()
TITLES = [f"{row[0]}, {row[2]}" for row in ROWS]


def through_an_infinite_slope(row):
    """Function of numbers of which the last has an infinite derivative: its cotangent shows, 0 or not."""
    _, function, _, values, _ = row
    z = torch.tensor([1.0] * (len(values) - 1) + [0.0], requires_grad=True)
    y = torch.tensor(values, dtype=torch.float32) + (z.sqrt() - z.detach().sqrt())
    return z, function(y)


@pytest.mark.parametrize("row", ROWS, ids=TITLES)
def test_a_used_entry_keeps_an_undefined_slope_and_an_ignored_one_does_not(row, capsys):
    used, counts = what_counts([row])
    assert used.tolist() == counts.tolist()
    z, result = through_an_infinite_slope(row)
    (ours,) = ignoring.grad(result.sum(), z, retain_graph=True)
    (plain,) = torch.autograd.grad(result.sum(), z)
    assert not math.isfinite(plain[-1])
    assert math.isfinite(ours[-1]) is not bool(used)
    assert ours[:-1].nan_to_num(7).tolist() == plain[:-1].nan_to_num(7).tolist()
