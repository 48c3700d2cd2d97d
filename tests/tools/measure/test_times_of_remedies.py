"""The measurement of remedies runs the programs of the page, and its record holds what the page says of it."""

import pytest
import torch

from helpers.remedies import COLUMNS
from tools.measure import remedies


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
