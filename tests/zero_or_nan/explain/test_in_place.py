"""What functions overwrite: told from what is left of it, and copied beforehand only where it can't be."""

from math import inf, nan

import pytest
import torch
from origins import report_of, telling
from tensors import leaf

from zero_or_nan import explain

told = telling("kind", "operator", "operands", "entries")
COPIES_NOTHING = {
    "relu": lambda x: x.relu_(),
    "fill": lambda x: x.fill_(2.0),
    "setitem": lambda x: x.__setitem__(0, 3.0),
    "masked_fill": lambda x: x.masked_fill_(torch.tensor([True, False]), -1.0),
}


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("name", COPIES_NOTHING)
def test_what_was_there(name, records):
    """Data with a NaN where it stays: it came in. Where it is overwritten, nothing is told of it."""
    at = 1 if name in ("setitem", "masked_fill") else 0
    for place in (at, 1 - at):
        data = torch.ones(2)
        data[place] = nan
        with explain() as report:
            with torch.set_grad_enabled(records):
                COPIES_NOTHING[name](data)
            (leaf(1.0, 1.0) * data).sum().backward()
        stays = bool(data.isnan().any())
        assert stays == (name == "relu" or (place == at and name != "fill"))
        assert told(report) == ([("bad input", name, "nan in data", [(place,)])] if stays else [])


def put(function, value):
    """A function overwrites the second of three elements, of which the first is NaN already."""
    data = torch.tensor([nan, 1.0, 1.0])
    function(data, value)
    data.sum().backward()


def written(fill, after, values=(0.0, 4.0)):
    """The code writes −inf over the first element."""
    y = leaf(*values) * 1
    fill(y, torch.tensor([True, False]))
    after(y).backward()


FILLS = {
    "masked_fill": lambda x, mask: x.masked_fill_(mask, -inf),
    "setitem": lambda x, mask: x.__setitem__(mask, -inf),
}
HERE = {
    "what stays beside what is put there": (
        lambda: put(lambda data, x: data.__setitem__(1, x), leaf(0.0).log()[0]),
        [("undefined", "log", "log(0) = -inf", [(0,)]), ("bad input", "setitem", "nan in data", [(0,)])],
    ),
    "a number without room beside what stays": (
        lambda: put(lambda data, x: data.__setitem__(1, x), leaf(1e300, dtype=torch.float64)[0]),
        [("bad input", "setitem", "nan in data", [(0,)]), ("overflow", "setitem", "1e300 > 3.4e38", [(1,)])],
    ),
    "what a function makes of what it overwrites": (
        lambda: (leaf(100.0, 1.0) * 1).exp_().sum().backward(), [("overflow", "exp", "exp(100) > 3.4e38", [(0,)])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HERE)
def test_what_is_there_and_what_is_put_there(name):
    program, expected = HERE[name]
    assert told(report_of(program)) == expected


@pytest.mark.parametrize("name", FILLS)
def test_an_infinity_that_the_code_writes_down(name):
    """It is not what was there, and no origin where it is meant; what multiplies it by 0 is one."""
    assert report_of(lambda: written(FILLS[name], lambda y: y.softmax(0)[1])).ok
    report = report_of(lambda: written(FILLS[name], lambda y: (y * 0).sum()))
    assert told(report) == [("undefined", "mul", "-inf × 0", [(0,)])]
    data = torch.tensor([1.0, nan])
    with explain() as report:
        FILLS[name](data, torch.tensor([True, False]))
        (leaf(1.0, 1.0) * data).sum().backward()
    assert told(report) == [("bad input", name, "nan in data", [(1,)])]
