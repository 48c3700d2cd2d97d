"""What comes of several tensors has all that they have, each by the longest path that it took."""

import random

import pytest
import torch

from zero_or_nan.explain.births.calls import Call, come_in
from zero_or_nan.explain.births.provenance import MOST_STEPS, NANS, Provenance, joined
from zero_or_nan.explain.program.code import place_here
from zero_or_nan.explain.program.tensors import is_finite


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


def copied(provenances, step, born):
    """What `joined` gives, where each provenance is a dict of its own."""
    paths = {}
    for provenance in provenances:
        for each, path in provenance.items():
            longer = (*path, step) if step and len(path) < MOST_STEPS and path[-1:] != (step,) else path
            if each not in paths or len(longer) > len(paths[each]):
                paths[each] = longer
    return {**dict.fromkeys(born, (step,)), **paths}


@pytest.mark.parametrize("seed", range(40))
def test_provenances_that_share_births_are_those_that_copy_them(seed):
    chance = random.Random(seed)
    births, made = [birth() for _ in range(20)], []
    for _ in range(150):
        last = made[-chance.choice([1, 2, 5, 150]) :]
        operands = [chance.choice(last) for _ in range(chance.choice([1, 1, 2, 3]))] if last else []
        born = chance.sample(births, chance.choice([0, 0, 1, 2]))
        step = chance.choice("abc" if born else ["a", "b", "c", ""])
        copies = copied([copy for _, copy in operands], step, born)
        made.append((joined([provenance for provenance, _ in operands], step, born), copies))
    for provenance, copies in made:  # none has changed since
        assert dict(provenance.paths) == copies and set(provenance.births) == set(copies)
        assert [each in provenance for each in births] == [each in copies for each in births]
        assert bool(provenance.kinds & NANS) == bool(copies)
