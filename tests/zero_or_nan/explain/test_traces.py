"""What comes of several tensors has all that they have, each by the longest way that it took."""

import pytest
import torch

from zero_or_nan.explain.forward import Call, come_in
from zero_or_nan.explain.places import place_here
from zero_or_nan.explain.traces import MOST_STEPS, Trace, is_finite, joined


def found():
    bad = torch.tensor([torch.nan])
    return come_in(bad, bad, Call(None, "sum", place_here()))


def test_the_longest_way_and_of_equals_the_first():
    one, other = found(), found()
    traces = [Trace({one: ("log",), other: ()}), Trace({one: ("exp", "mul")}), Trace({one: ("sin", "cos")})]
    assert dict(joined(traces).ways) == {one: ("exp", "mul"), other: ()}


def test_by_a_function_each_way_is_one_step_longer_and_what_is_born_begins_there():
    old, new = found(), found()
    trace = joined([Trace({old: ("log",)})], "sum", [new])
    assert dict(trace.ways) == {old: ("log", "sum"), new: ("sum",)}
    assert dict(joined([trace], "sum").ways) == dict(trace.ways)


def test_a_way_ends_somewhere():
    trace = Trace({found(): ()})
    for step in range(MOST_STEPS + 5):
        trace = joined([trace], str(step))
    assert [len(way) for way in trace.ways.values()] == [MOST_STEPS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_numbers_whose_sum_overflows_are_finite(dtype):
    large = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(large) and is_finite(large[:1])
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert not is_finite(torch.cat((large, large.new_tensor([bad]))))
