"""The inputs that people meet: zeros, equal rows, an empty mask, a batch of one row, numbers that have grown.

Each input keeps its kind. What is likely comes first, and two inputs change together only after each has changed alone.
Nothing is computed before it is tried, because inputs may be large.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kinds import Kind
from .running import Case

FACTORS = (10.0, 100.0, 1e4)
"""How far numbers grow, at most."""

ONE_ROW = "the batch has one row"

_MOST_PAIRS = 300
_MOST_LABELS = 10_000
_MOST_VALUES = 6
"""How many elements are looked at for the labels that appear, and how many of these fill an input."""

_FLOATS = ("numbers", "positives", "fractions", "directions", "distributions")


class Input(NamedTuple):
    """An input of the example, or a parameter to which an input may be equal.

    Attributes:
        name: its name.
        value: the tensor.
        kind: what it is.
        is_data: whether it has no gradient.
    """

    name: str
    value: Tensor
    kind: Kind
    is_data: bool


class Change(NamedTuple):
    """Another value of one input.

    Attributes:
        at: which input.
        make: gives the value for a factor. Only a value that grows depends on it.
        factor: how far the value has grown, at most; 1 if it does not grow.
        phrase: what is special about it, if the numbers do not say so.
    """

    at: int
    make: Callable[[float], Tensor]
    factor: float = 1.0
    phrase: str = ""

    @property
    def grows(self) -> bool:
        return self.factor != 1


class Candidate(NamedTuple):
    """A case to try.

    Attributes:
        base: the case before the changes.
        changes: of single inputs.
        phrase: what is special about it, if the numbers do not say so.
    """

    base: Case
    changes: tuple[Change, ...] = ()
    phrase: str = ""

    @property
    def case(self) -> Case:
        tensors = list(self.base.tensors)
        for change in self.changes:
            tensors[change.at] = change.make(change.factor)
        return self.base._replace(tensors=tuple(tensors))


def candidates(example: Case, inputs: Sequence[Input], parameters: Sequence[Input]) -> list[Candidate]:
    """All cases to try, in order: the likely ones first."""
    each = [
        [*_changes(at, given, [other for other in (*inputs, *parameters) if other is not given])]
        for at, given in enumerate(inputs)
    ]
    alone = sorted(itertools.chain.from_iterable(each), key=lambda change: change.grows)
    pairs = [
        pair
        for one, other in itertools.combinations(each, 2)
        for pair in itertools.product(one, other)
        if not (pair[0].grows and pair[1].grows)
    ]
    pairs.sort(key=lambda pair: pair[0].grows + pair[1].grows)
    return [
        *(_changed(example, (change,)) for change in alone),
        *_of_one_row(example),
        *(Candidate(example._replace(factor=factor)) for factor in FACTORS[:2] if parameters),
        *(_changed(example, pair) for pair in pairs[:_MOST_PAIRS]),
    ]


def _changed(example: Case, changes: tuple[Change, ...]) -> Candidate:
    return Candidate(example, changes, " and ".join(filter(None, (change.phrase for change in changes))))


def _of_one_row(example: Case) -> Iterator[Candidate]:
    """The last batch of an epoch may have one row."""
    sizes = {tensor.shape[0] for tensor in example.tensors if tensor.dim()}
    if len(sizes) == 1 and sizes not in ({0}, {1}):
        tensors = tuple(tensor[:1] if tensor.dim() else tensor for tensor in example.tensors)
        yield Candidate(example._replace(tensors=tensors), phrase=ONE_ROW)


def _changes(at: int, given: Input, others: Sequence[Input]) -> Iterator[Change]:
    """Other values of one input, of its kind."""
    name, x, kind, is_data = given
    if kind == "fixed":
        return
    for value in _values(x, kind):
        for part in _parts(x, kind):
            yield Change(at, functools.partial(_filled, x, part, value))
    if kind == "positives" and is_data and x.dim():  # a pixel without depth, a month without sales
        for part in (0, (0,) * x.dim()):
            yield Change(at, functools.partial(_filled, x, part, 0.0))
    if x.dim() > 1 and x.shape[0] > 1:
        yield Change(at, lambda _: x[:1].expand_as(x).clone(), phrase=f"all rows of {name} are equal")
    if x.dim() and x.shape[-1] > 1 and kind in ("numbers", "positives", "counts", "fractions"):
        phrase = f"the numbers in each row of {name} are equal"
        yield Change(at, lambda _: x[..., :1].expand_as(x).clone(), phrase=phrase)
        if x.dim() > 1:
            whole = f"the numbers in {name} are equal"
            yield Change(at, lambda _: x.flatten()[:1].expand(x.shape).clone(), phrase=whole)
    if x.dim() > 1 and x.shape[-1] == x.shape[-2] > 1 and kind in (*_FLOATS, "choices"):
        phrase = f"{name} is the identity"
        yield Change(at, lambda _: torch.eye(x.shape[-1]).expand(x.shape).clone().to(x), phrase=phrase)
    if kind == "labels" and 1 < x.numel() <= int(x.max() - x.min()) + 1:
        phrase = f"all of {name} are different"
        yield Change(at, lambda _: torch.arange(x.numel()).reshape(x.shape).to(x) + x.min(), phrase=phrase)
    if kind in ("distributions", "directions"):
        for axis in dict.fromkeys((0, x.shape[-1] - 1)):
            yield Change(at, functools.partial(_certain, x, axis))
    for other, tensor, of, _ in others:
        if _may_be(kind, of) and (tensor.shape == x.shape or tensor.dim() > 1 and tensor.shape[-1:] == x.shape[-1:]):
            yield Change(at, functools.partial(_like, tensor, x, 1), phrase=f"{name} is equal to {other}")
            if kind in ("numbers", "directions"):
                yield Change(at, functools.partial(_like, tensor, x, -1), phrase=f"{name} is the opposite of {other}")
    for factor, make in _grown(x, kind):
        yield Change(at, make, factor)


def _values(x: Tensor, kind: Kind) -> list[float]:
    """The numbers that may fill an input."""
    if kind == "flags":
        return [False, True]
    if kind == "choices":
        return sorted({0.0, 1.0} if bool((x >= 0).all()) else {-1.0, 1.0})
    if kind == "labels":
        return x.flatten()[:_MOST_LABELS].unique().tolist()[:_MOST_VALUES] + [int(x.max())]
    return {"counts": [0.0], "fractions": [0.0, 1.0], "numbers": [0.0]}.get(kind, [])


def _parts(x: Tensor, kind: Kind) -> Iterator[Any]:
    """What a number may fill: an input, or its first row; of a mask also its first column, and its first element."""
    yield ...
    if x.dim() > 1:
        yield 0
    if kind in ("flags", "choices") or kind == "labels" and {*x.flatten()[:_MOST_LABELS].tolist()} == {0, 1}:
        if x.dim() > 1:
            yield ..., 0
        yield (0,) * x.dim()


def _filled(x: Tensor, part: Any, value: float, _: float) -> Tensor:
    changed = x.clone()
    changed[part] = value
    return changed


def _certain(x: Tensor, axis: int, _: float) -> Tensor:
    """Rows with a single 1."""
    certain = torch.zeros_like(x)
    certain[..., axis] = 1
    return certain


def _may_be(kind: Kind, other: Kind) -> bool:
    """Whether an input of a kind may be equal to one of another kind."""
    return kind in _FLOATS and (kind in (other, "numbers") or (kind, other) == ("fractions", "choices"))


def _like(tensor: Tensor, x: Tensor, sign: int, _: float) -> Tensor:
    """A tensor in the shape of another; its rows are repeated."""
    if tensor.shape == x.shape:
        return sign * tensor.detach().to(x)
    rows = tensor.detach().reshape(-1, x.shape[-1])
    count = x.numel() // x.shape[-1]
    return sign * rows[torch.arange(count, device=rows.device) % len(rows)].reshape(x.shape).to(x)


def _grown(x: Tensor, kind: Kind) -> Iterator[tuple[float, Callable[[float], Tensor]]]:
    """Larger numbers, also of the other sign, smaller ones, and numbers far from 0, each with the largest factor."""
    if kind == "log-distributions":
        for factor in (30.0, 300.0):
            yield factor, lambda factor: torch.log_softmax(x * factor, -1)
    if kind in ("numbers", "positives", "counts"):
        for factor in FACTORS:
            yield factor, lambda factor: x * factor
            if kind == "numbers":
                yield factor, lambda factor: x * -factor
    if kind in ("numbers", "positives"):
        yield 1e4, lambda factor: x / factor
    if kind == "numbers":
        for factor in FACTORS[1:]:
            yield factor, lambda factor: x + factor
            yield factor, lambda factor: x - factor
