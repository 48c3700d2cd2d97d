"""Compiled results take elements of another run in place of NaN and infinity, and nothing else changes."""

import math

import pytest
import torch

from zero_or_nan.ignoring.extras.compiled.merging import Merging


def results(bad, size=(3, 5)):
    """A compiled result with some bad elements, and what another run gives."""
    exact = torch.rand(size, generator=torch.Generator().manual_seed(0)) + 1
    exact[1:, ::2] = bad
    return exact, torch.full(size, -7.0)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("transposed", [False, True])
def test_finite_elements_stay_and_nan_is_replaced_in_place(bad, transposed):
    exact, followed = results(bad, size=(700, 300))  # of several pieces
    if transposed:
        exact, followed = exact.t(), followed.t()
    before, expected = exact.clone(), torch.where(exact.isfinite(), exact, followed)
    merging = Merging([exact, None], [followed])
    merged = merging.merged(exact, followed)
    assert torch.equal(merged, expected) and merged.stride() == exact.stride()
    assert (merged is exact) is math.isnan(bad)  # NaN can be written back
    merging.undo()
    assert_same(exact, before)


@pytest.mark.parametrize("part", [lambda exact: exact, lambda exact: exact[0]], ids=["the same", "a part"])
def test_an_argument_that_is_returned_is_not_written_over(part):
    exact, followed = results(math.nan)
    before = exact.clone()
    assert bool(Merging([exact], [part(exact)]).merged(exact, followed).isfinite().all())
    assert_same(exact, before)


def test_elements_that_share_memory_are_not_written_over():
    exact = torch.full((1,), math.nan).expand(4)
    merged = Merging([exact], []).merged(exact, torch.arange(4.0))
    assert torch.equal(merged, torch.arange(4.0)) and bool(exact.isnan().all())
