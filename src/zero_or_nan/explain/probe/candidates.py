"""The inputs that people meet: zeros, equal rows, an empty mask, a batch of one row, numbers that have grown.

Each input keeps its kind. What is likely comes first, and two inputs change together only after each has changed alone.
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

Make = Callable[[float], Tensor]
"""An input that grows with a number."""

FACTORS = (10.0, 100.0, 1e4)
"""How far numbers grow, at most."""

ONE_ROW = "the batch has one row"

_MOST_PAIRS = 300


class Change(NamedTuple):
    """Another value of one input.

    Attributes:
        at: which input.
        tensor: the value.
        phrase: what is special about it, if the numbers do not say so.
        make: for a value that grows, the value for any factor up to `factor`.
        factor: how far it has grown.
    """

    at: int
    tensor: Tensor
    phrase: str = ""
    make: Make | None = None
    factor: float = 1.0


class Candidate(NamedTuple):
    """A case to try, and the changes that it consists of; none if all inputs or all parameters change."""

    case: Case
    changes: tuple[Change, ...] = ()
    phrase: str = ""


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


def candidates(example: Case, inputs: Sequence[Input], parameters: Sequence[Input]) -> Iterator[Candidate]:
    """All cases to try, in order: the likely ones first."""
    each = [
        [*_changes(at, given, [other for other in (*inputs, *parameters) if other is not given])]
        for at, given in enumerate(inputs)
    ]
    special = [[change for change in changes if change.make is None] for changes in each]
    grown = [[change for change in changes if change.make is not None] for changes in each]
    for changes in (special, grown):
        for change in itertools.chain.from_iterable(changes):
            yield _changed(example, (change,))
    yield from _of_one_row(example)
    if parameters:
        for factor in FACTORS[:2]:
            yield Candidate(example._replace(factor=factor))
    pairs = [
        pair
        for one, other in itertools.combinations(each, 2)
        for pair in itertools.product(one, other)
        if pair[0].make is None or pair[1].make is None
    ]
    pairs.sort(key=lambda pair: sum(change.make is not None for change in pair))
    for pair in pairs[:_MOST_PAIRS]:
        yield _changed(example, pair)


def _changed(example: Case, changes: tuple[Change, ...]) -> Candidate:
    tensors = list(example.tensors)
    for change in changes:
        tensors[change.at] = change.tensor
    return Candidate(
        example._replace(tensors=tuple(tensors)), changes, " and ".join(filter(None, (c.phrase for c in changes)))
    )


def _of_one_row(example: Case) -> Iterator[Candidate]:
    """The last batch of an epoch may have one row."""
    sizes = {tensor.shape[0] for tensor in example.tensors if tensor.dim()}
    if len(sizes) == 1 and sizes != {1} and sizes != {0}:
        tensors = tuple(tensor[:1] if tensor.dim() else tensor for tensor in example.tensors)
        yield Candidate(example._replace(tensors=tensors), phrase=ONE_ROW)


def _changes(at: int, given: Input, others: Sequence[Input]) -> Iterator[Change]:
    """Other values of one input, of its kind."""
    name, x, kind, is_data = given
    if kind == "fixed":
        return
    for value in _values(x, kind):
        yield from _filled(at, x, kind, value)
    if x.dim() > 1 and x.shape[0] > 1:
        yield Change(at, x[:1].expand_as(x).clone(), f"all rows of {name} are equal")
    if x.dim() and x.shape[-1] > 1 and kind in ("numbers", "positives", "counts", "fractions"):
        yield Change(at, x[..., :1].expand_as(x).clone(), f"the numbers in each row of {name} are equal")
    if kind == "labels" and 1 < x.numel() <= int(x.max() - x.min()) + 1:
        yield Change(at, torch.arange(x.numel()).reshape(x.shape).to(x) + x.min(), f"all of {name} are different")
    if kind in ("distributions", "log-distributions", "directions"):
        yield from _of_rows(at, x, kind)
    for other, tensor, of, _ in others:
        if _may_be(kind, of) and (tensor.shape == x.shape or tensor.dim() > 1 and tensor.shape[-1:] == x.shape[-1:]):
            yield Change(at, _like(tensor, x), f"{name} is equal to {other}")
            if kind == "directions":
                yield Change(at, -_like(tensor, x), f"{name} is the opposite of {other}")
    if kind == "positives" and is_data and x.dim():
        for part in (0, (0,) * x.dim()):
            changed = x.clone()
            changed[part] = 0
            yield Change(at, changed)
    yield from _grown(at, x, kind)


def _may_be(kind: Kind, other: Kind) -> bool:
    """Whether an input of a kind may be equal to one of another kind."""
    return kind in ("numbers", "positives", "fractions", "directions", "distributions") and (
        kind == other or kind == "numbers" or other == "choices" and kind == "fractions"
    )


def _like(tensor: Tensor, x: Tensor) -> Tensor:
    """A tensor in the shape of another; its rows are repeated."""
    if tensor.shape == x.shape:
        return tensor.detach().to(x)
    rows = tensor.detach().reshape(-1, x.shape[-1])
    count = x.numel() // x.shape[-1]
    return rows[torch.arange(count, device=rows.device) % len(rows)].reshape(x.shape).to(x)


def _values(x: Tensor, kind: Kind) -> list[float]:
    """The numbers that may fill an input."""
    if kind == "flags":
        return [False, True]
    if kind == "choices":
        return sorted({0.0, 1.0} if bool((x >= 0).all()) else {-1.0, 1.0})
    if kind == "labels":
        return sorted({int(x.min()), int(x.max())})
    return {"counts": [0.0], "fractions": [0.0, 1.0], "numbers": [0.0]}.get(kind, [])


def _filled(at: int, x: Tensor, kind: Kind, value: float) -> Iterator[Change]:
    """All elements are a number, or those of the first row; of a mask, also those of the first column, or one."""
    if bool((x != value).any()):
        yield Change(at, torch.full_like(x, value))
    parts: list[Any] = [0] if x.dim() > 1 and x.shape[0] > 1 else []
    if kind in ("flags", "choices"):
        parts += [(..., 0), (0,) * x.dim()]
    for part in parts:
        changed = x.clone()
        changed[part] = value
        if not torch.equal(changed, x):
            yield Change(at, changed)


def _of_rows(at: int, x: Tensor, kind: Kind) -> Iterator[Change]:
    """Rows of probabilities that are certain, and the unit vector of an axis."""
    size = x.shape[-1]
    for axis in dict.fromkeys((0, size - 1)):
        certain = torch.zeros_like(x)
        certain[..., axis] = 1
        if kind != "log-distributions":
            yield Change(at, certain)


def _grown(at: int, x: Tensor, kind: Kind) -> Iterator[Change]:
    """Larger numbers, also of the other sign, smaller ones, and numbers far from 0."""
    if kind == "log-distributions":
        for factor in (30.0, 300.0):
            make = functools.partial(_sharper, x)
            yield Change(at, make(factor), "", make, factor)
    if kind not in ("numbers", "positives", "counts"):
        return
    for factor in FACTORS:
        for sign in (1.0, -1.0) if kind == "numbers" else (1.0,):
            make = functools.partial(_scaled, x, sign)
            yield Change(at, make(factor), "", make, factor)
    if kind != "counts":
        make = functools.partial(_smaller, x)
        yield Change(at, make(1e4), "", make, 1e4)
    if kind == "numbers":
        for factor, sign in itertools.product((100.0, 1e4), (1.0, -1.0)):
            make = functools.partial(_shifted, x, sign)
            yield Change(at, make(factor), "", make, factor)


def _scaled(x: Tensor, sign: float, factor: float) -> Tensor:
    return x * (sign * factor)


def _smaller(x: Tensor, factor: float) -> Tensor:
    return x / factor


def _shifted(x: Tensor, sign: float, factor: float) -> Tensor:
    return x + sign * factor


def _sharper(x: Tensor, factor: float) -> Tensor:
    return torch.log_softmax(x * factor, -1)
