"""What functions overwrite: told from what is left of it, and copied beforehand only where it can't be."""

import pytest
import torch
from origins import telling
from tensors import leaf
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zero_or_nan import explain
from zero_or_nan.explain.watch import forward

inf, nan = float("inf"), float("nan")


class Clones(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func is torch.ops.aten.clone.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def copies_are_seen(monkeypatch):
    """Modes see nothing of a watch, unless they are let."""
    monkeypatch.setattr(forward, "unseen", torch._C.DisableTorchFunction)


told = telling("kind", "operator", "operands", "entries")
COPIES_NOTHING = {
    "relu": lambda x: x.relu_(),
    "zero": lambda x: x.zero_(),
    "fill": lambda x: x.fill_(2.0),
    "copy": lambda x: x.copy_(torch.ones(2)),
    "setitem": lambda x: x.__setitem__(0, 3.0),
    "masked_fill": lambda x: x.masked_fill_(torch.tensor([True, False]), -1.0),
    "masked_scatter": lambda x: x.masked_scatter_(torch.tensor([True, False]), torch.ones(2)),
    "index_copy": lambda x: x.index_copy_(0, torch.tensor([1]), torch.ones(1)),
    "index_fill": lambda x: x.index_fill_(0, torch.tensor([1]), 2.0),
}


@pytest.mark.usefixtures("copies_are_seen")
@pytest.mark.parametrize("name", COPIES_NOTHING)
def test_nothing_is_copied_beforehand(name):
    x = leaf(1.0, 2.0)
    with Clones() as clones, explain():
        y = x * 1
        COPIES_NOTHING[name](y)
        assert clones.number == 0
        y.sum().backward()


@pytest.mark.usefixtures("copies_are_seen")
def test_what_can_make_an_infinity_is_copied_beforehand():
    with Clones() as clones, explain():
        y = leaf(1.0, 1.0) * 1
        y += y
        assert clones.number == 1
    with explain() as report:
        y = leaf(3e38, 1.0) * 1
        y += y
        y.sum().backward()
    assert told(report) == [("overflow", "add", "3e38 + 3e38 > 3.4e38", [(0,)])]


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("name", COPIES_NOTHING)
def test_what_was_there(name, records):
    """Data with a NaN where it stays: it came in. Where it is overwritten, nothing is told of it."""
    at = {"setitem": 1, "masked_fill": 1, "masked_scatter": 1}.get(name, 0)
    for place in (at, 1 - at):
        data = torch.ones(2)
        data[place] = nan
        with explain() as report:
            with torch.set_grad_enabled(records):
                COPIES_NOTHING[name](data)
            (leaf(1.0, 1.0) * data).sum().backward()
        stays = bool(data.isnan().any())
        assert stays == (name == "relu" or (place == at and name not in ("zero", "fill", "copy")))
        assert told(report) == ([("bad input", name, "nan in data", [(place,)])] if stays else [])


@pytest.mark.parametrize("records", [True, False])
def test_what_is_overwritten_as_a_whole_is_not_told_of(records):
    x, buffer = leaf(0.0, 4.0), torch.tensor([nan, nan])
    with explain() as report:
        with torch.set_grad_enabled(records):
            unused = buffer * 2  # it is known to be NaN
            buffer.copy_(x.log())
        (x * buffer).sum().backward()
    assert unused.isnan().all() and told(report) == [("undefined", "log", "log(0) = -inf", [(0,)])]


def test_what_stays_beside_what_is_put_there():
    x, data = leaf(0.0, 4.0), torch.tensor([nan, 1.0, 1.0])
    with explain() as report:
        data[1] = x.log()[0]
        data.sum().backward()
    assert told(report) == [
        ("undefined", "log", "log(0) = -inf", [(0,)]),
        ("bad input", "setitem", "nan in data", [(0,)]),
    ]


@pytest.mark.parametrize(
    "fill", [lambda x, mask: x.masked_fill_(mask, -inf), lambda x, mask: x.__setitem__(mask, -inf)]
)
def test_an_infinity_that_the_code_writes_down_is_not_what_was_there(fill):
    x = leaf(0.0, 4.0)
    with explain() as report:
        y = x * 1
        fill(y, torch.tensor([True, False]))
        y.softmax(0)[1].backward()
    assert report.ok


@pytest.mark.parametrize(
    "fill", [lambda x, mask: x.masked_fill_(mask, -inf), lambda x, mask: x.__setitem__(mask, -inf)]
)
def test_what_multiplies_an_infinity_that_was_written_down_by_0_is_told_of(fill):
    x = leaf(2.0, 4.0)
    with explain() as report:
        y = x * 1
        fill(y, torch.tensor([True, False]))
        (y * 0).sum().backward()
    assert told(report) == [("undefined", "mul", "-inf × 0", [(0,)])]


@pytest.mark.parametrize("name", ["masked_fill", "setitem"])
def test_what_came_in_does_not_count_what_is_written_down_beside_it(name):
    data = torch.tensor([1.0, nan])
    with explain() as report:
        if name == "setitem":
            data[0] = -inf
        else:
            data.masked_fill_(torch.tensor([True, False]), -inf)
        (leaf(1.0, 1.0) * data).sum().backward()
    assert told(report) == [("bad input", name, "nan in data", [(1,)])]


def test_by_name():
    data = torch.tensor([1.0, nan])
    with explain() as report:
        torch.relu_(input=data)
        (leaf(1.0, 1.0) * data).sum().backward()
    assert [origin.kind for origin in report]


def test_a_nan_that_the_code_writes_was_not_there_before():
    data = torch.ones(2)
    with explain() as report:
        data.fill_(nan)
        (leaf(1.0, 1.0) * data).sum().backward()
    assert told(report) == [("bad input", "fill", "nan", [(0,), (1,)])]


def test_what_a_function_makes_of_what_it_overwrites():
    with explain() as report:
        y = leaf(100.0, 1.0) * 1
        y.exp_().sum().backward()
    assert told(report) == [("overflow", "exp", "exp(100) > 3.4e38", [(0,)])]


@pytest.mark.parametrize("put", [lambda x, value: x.copy_(value), lambda x, value: x.__setitem__(slice(None), value)])
def test_a_number_that_has_no_room_where_it_is_put(put):
    x = torch.tensor([1e300, 1.0], dtype=torch.float64, requires_grad=True)
    with explain() as report:
        y = torch.zeros(2)
        put(y, x)
        y.sum().backward()
    ((kind, _, operands, entries),) = told(report)
    assert (kind, operands, entries) == ("overflow", "1e300 > 3.4e38", [(0,)])


def test_a_number_that_has_no_room_beside_what_stays():
    x, data = torch.tensor([1e300], dtype=torch.float64, requires_grad=True), torch.tensor([nan, 1.0])
    with explain() as report:
        data[1:] = x
        data.sum().backward()
    assert {origin.kind for origin in report} == {"overflow", "bad input"}


def test_subclasses_are_copied_as_ever():
    class Named(Tensor):
        pass

    x = leaf(1.0, 1.0)
    with explain() as report:
        data = torch.tensor([nan, 1.0]).as_subclass(Named)
        data.relu_()
        (x * data).sum().backward()
    assert [origin.kind for origin in report] == ["bad input"]
