"""The nearest of the cases that show a finding: fewer inputs, fewer rows, fewer elements, a smaller factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .candidates import Candidate, Change
from .kinds import ROWS, Kind
from .running import Case

Shows = Callable[[Case], bool]
"""Whether a case shows the finding."""

_BISECTIONS = 8
_MOST_PARTS = 64


def nearest(candidate: Candidate, example: Case, kinds: list[Kind], shows: Shows) -> tuple[Case, dict[int, float]]:
    """A case that is as near to the example as was found.

    Returns:
        The case, and by input the factor by which it has grown.
    """
    if not candidate.changes:
        return _with_smaller_factor(candidate.case, shows), {}
    case = candidate.case
    left = list(candidate.changes)
    for change in candidate.changes:
        without = _put(case, change.at, example.tensors[change.at])
        if len(left) > 1 and shows(without):
            case, left = without, [each for each in left if each is not change]
    factors: dict[int, float] = {}
    for change in left:
        if change.grows:
            case, factors[change.at] = _less_grown(case, change, shows)
        else:
            case = _fewer_elements(case, change.at, example.tensors[change.at], kinds[change.at], shows)
    return case, factors


def _put(case: Case, at: int, tensor: Tensor) -> Case:
    return case._replace(tensors=(*case.tensors[:at], tensor, *case.tensors[at + 1 :]))


def _with_smaller_factor(case: Case, shows: Shows) -> Case:
    if case.factor == 1:
        return case
    return case._replace(factor=_least(case.factor, lambda factor: shows(case._replace(factor=factor))))


def _less_grown(case: Case, change: Change, shows: Shows) -> tuple[Case, float]:
    factor = _least(change.factor, lambda factor: shows(_put(case, change.at, change.make(factor))))
    return _put(case, change.at, change.make(factor)), factor


def _least(most: float, shows: Callable[[float], bool]) -> float:
    """A factor of two digits that shows it, found by bisection: no smaller one needs to be looked for much below."""
    low, high = 1.0, most
    for _ in range(_BISECTIONS):
        middle = _rounded(math.sqrt(low * high))
        if not low < middle < high:
            break
        if shows(middle):
            high = middle
        else:
            low = middle
    return high


def _rounded(number: float) -> float:
    """A number of two digits, not smaller."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return math.ceil(number / unit) * unit


def _fewer_elements(case: Case, at: int, before: Tensor, kind: Kind, shows: Shows) -> Case:
    """Put back rows, and then elements, as long as the rest still shows it."""
    after = case.tensors[at]
    if before.shape != after.shape:
        return case
    by_row = (before != after).reshape(len(before), -1).any(-1) if before.dim() > 1 else None
    if by_row is not None:
        kept = _fewest(by_row, lambda rows: shows(_put(case, at, _mixed(before, after, rows))))
        case = _put(case, at, _mixed(before, after, kept))
    if kind in ROWS:
        return case
    after = case.tensors[at]
    changed = (before != after).flatten()
    kept = _fewest(changed, lambda some: shows(_put(case, at, _mixed(before, after, some.reshape(before.shape)))))
    return _put(case, at, _mixed(before, after, kept.reshape(before.shape)))


def _mixed(before: Tensor, after: Tensor, chosen: Tensor) -> Tensor:
    """The new elements where they are chosen; a choice of rows is made wider."""
    while chosen.dim() < after.dim():
        chosen = chosen.unsqueeze(-1)
    return torch.where(chosen, after, before)


def _fewest(changed: Tensor, shows: Callable[[Tensor], bool]) -> Tensor:
    """A part of the changes that is enough: one of them, or else what is left when halves are put back (ddmin)."""
    places = changed.nonzero().flatten().tolist()

    def of(some: list[int]) -> Tensor:
        chosen = torch.zeros_like(changed)
        chosen[some] = True
        return chosen

    for place in places[:3]:
        if shows(of([place])):
            return of([place])
    parts, tries = 2, 0
    while len(places) > 1 and tries < _MOST_PARTS:
        for some in _without_each(places, parts):
            tries += 1
            if shows(of(some)):
                places, parts = some, max(2, parts - 1)
                break
        else:
            if parts >= len(places):
                break
            parts = min(len(places), 2 * parts)
    return of(places)


def _without_each(places: list[int], parts: int) -> Iterator[list[int]]:
    """The places without one part, for each of the parts."""
    size = math.ceil(len(places) / parts)
    for start in range(0, len(places), size):
        yield [*places[:start], *places[start + size :]]
