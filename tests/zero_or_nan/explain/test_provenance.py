"""What comes of several tensors has all that they have, each by the longest path that it took."""

import pytest
import torch

from zero_or_nan.explain.births import come_in
from zero_or_nan.explain.calls import Call
from zero_or_nan.explain.places import place_here
from zero_or_nan.explain.provenance import MOST_STEPS, Provenance, joined
from zero_or_nan.explain.tensors import is_finite


def birth():
    bad = torch.tensor([torch.nan])
    return come_in(bad, bad, Call(None, "sum", place_here()))


def test_the_longest_path_and_of_equals_the_first():
    one, other = birth(), birth()
    provenances = [
        Provenance({one: ("log",), other: ()}),
        Provenance({one: ("exp", "mul")}),
        Provenance({one: ("sin", "cos")}),
    ]
    assert dict(joined(provenances).paths) == {one: ("exp", "mul"), other: ()}


def test_by_a_function_each_path_is_one_step_longer_and_what_is_born_begins_there():
    old, new = birth(), birth()
    provenance = joined([Provenance({old: ("log",)})], "sum", [new])
    assert dict(provenance.paths) == {old: ("log", "sum"), new: ("sum",)}
    assert dict(joined([provenance], "sum").paths) == dict(provenance.paths)


def test_a_path_ends_somewhere():
    provenance = Provenance({birth(): ()})
    for step in range(MOST_STEPS + 5):
        provenance = joined([provenance], str(step))
    assert [len(path) for path in provenance.paths.values()] == [MOST_STEPS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_numbers_whose_sum_overflows_are_finite(dtype):
    large = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(large) and is_finite(large[:1])
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert not is_finite(torch.cat((large, large.new_tensor([bad]))))
