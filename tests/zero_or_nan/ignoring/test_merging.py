"""Compiled results take elements of another run in place of NaN and infinity, and nothing else changes."""

import math

import pytest
import torch

from zero_or_nan.ignoring.extras.compiled.merging import Merging

SIZES = [(3, 5), (700, 300)]
"""Of one piece, and of several."""


def results(size, bad):
    """A compiled result with some bad elements, and what another run gives."""
    exact = torch.rand(size, generator=torch.Generator().manual_seed(0)) + 1
    exact[1:, ::2] = bad
    return exact, torch.full(size, -7.0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("transposed", [False, True])
def test_finite_elements_stay(size, bad, transposed):
    exact, followed = results(size, bad)
    if transposed:
        exact, followed = exact.t(), followed.t()
    expected = torch.where(exact.isfinite(), exact, followed)
    merged = Merging([exact], []).merged(exact, followed)
    assert torch.equal(merged, expected) and merged.stride() == exact.stride()


@pytest.mark.parametrize("size", SIZES)
def test_nan_is_replaced_in_place_and_comes_back(size):
    exact, followed = results(size, math.nan)
    before = exact.clone()
    merging = Merging([exact, None], [followed])
    assert merging.merged(exact, followed) is exact and bool(exact.isfinite().all())
    merging.undo()
    torch.testing.assert_close(exact, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "bad, others",
    [
        (math.inf, lambda exact: []),
        (math.nan, lambda exact: [exact[0]]),  # an argument of the compiled code is returned
        (math.nan, lambda exact: [exact]),
    ],
)
def test_what_could_not_be_undone_or_is_of_others_is_not_written_over(bad, others):
    exact, followed = results((3, 5), bad)
    before = exact.clone()
    merged = Merging([exact], others(exact)).merged(exact, followed)
    assert bool(merged.isfinite().all())
    torch.testing.assert_close(exact, before, rtol=0, atol=0, equal_nan=True)


def test_elements_that_share_memory_are_not_written_over():
    exact = torch.full((1,), math.nan).expand(4)
    merged = Merging([exact], []).merged(exact, torch.arange(4.0))
    assert torch.equal(merged, torch.arange(4.0)) and bool(exact.isnan().all())
