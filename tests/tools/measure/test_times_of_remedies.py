"""The measurement of remedies runs the programs of the page, and its record holds what the page says of it."""

import statistics

import pytest
import torch
from scratch import ROOT

from helpers.remedies import COLUMNS
from tools.measure import remedies
from tools.measure.remedies import remedy_times
from tools.project import Project, read_record


@pytest.fixture(scope="module")
def record():
    return read_record(Project(ROOT).results / "measured" / "remedies.json")


def test_the_cases_have_more_elements_and_each_remedy_with_a_program_is_timed():
    names = [situation.name for situation in remedies.ELEMENTWISE]
    assert len(names) == 6 and {"where over exp", "sqrt of 0"} <= set(names)
    found = remedies.seconds(remedies.ELEMENTWISE[0], elements=64, rounds=2)
    assert set(found) == {*COLUMNS, remedies.MODULE} - {"epsilon"}  # no epsilon helps an overflow
    assert all(took > 0 for took in found.values())


def test_each_run_of_a_program_has_a_leaf_of_its_own():
    x = torch.ones(3, requires_grad=True)
    seen = []
    code = compile("seen.append(x)\nx.register_hook(torch.zeros_like)\nx.sum().backward()", "hook", "exec")
    for _ in range(2):
        remedies._once(code, {"torch": torch, "seen": seen, "x": x})
    assert x.grad is None and seen[0] is not seen[1]
    with pytest.raises(ZeroDivisionError):  # what no remedy raises is a mistake
        remedies._once(compile("1 / 0", "wrong", "exec"), {"x": x})


def test_what_the_page_says_of_the_record(record):
    """Sentences of the page, in its order."""
    few, many = remedies.ROUNDS
    middle = {
        (name, size): statistics.median(remedy_times(record, name, size)) for name in COLUMNS for size in (few, many)
    }
    assert 1.1 < middle["ignoring", many] < 1.5 and 2.5 < middle["masked", many] < 3.5
    assert 4.4 < middle["ignoring", few] < 4.8 and 13 < middle["masked", few] < 15
    assert all(min(remedy_times(record, name, many)) < 0.8 for name in ("substitute", "double where"))
