"""The inputs that are tried: zeros, equal rows, an empty mask, padding, a batch of one row, numbers that have grown.

Each input keeps its kind: labels stay labels, and a row of probabilities sums to 1. Without this rule, a search blames
losses for inputs that they never get. Likely inputs come first, and two inputs change together only after each has
changed alone. Each input is computed only when it is tried, because inputs may be large.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .loss import Case

Kind = Literal[
    "flags", "labels", "choices", "counts", "distributions", "log-distributions", "directions", "fractions",
    "positives", "numbers", "fixed",
]  # fmt: skip
"""The kinds of tensors, by their numbers:

- flags: bools. labels: integers in the range of the example; they may also be lengths. choices: at most two different
  floats, 0 and 1, -1 and 1, or 0 and -inf. counts: other floats without a gradient that are whole numbers.
- distributions: rows that are at least 0, and sum to 1, such as one-hot integers. log-distributions: their logarithms.
  directions: rows of length 1.
- fractions: between 0 and 1. Those with a gradient may grow, because the output of a model may start small.
- positives: larger than 0. numbers: all other floats.
- fixed: tensors that the search does not change, such as complex, sparse and empty tensors.
"""

_DTYPES = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    + (torch.float16, torch.bfloat16, torch.float32, torch.float64)
)
"""The dtypes whose numbers PyTorch can compare and sum."""

MASKS = ("flags", "choices", "labels")
"""The kinds that may mask elements of other inputs."""

ROWS = ("distributions", "log-distributions", "directions")
"""The kinds whose rows change as a whole."""

_FLOATS = ("numbers", "positives", "fractions", "directions", "distributions")

FACTORS = (10.0, 100.0, 1e4)
"""The largest factors by which numbers grow."""

_ROUNDED = 2e-3
"""The largest distance from 1 that the sum or the length of a row may have."""

_MOST_PAIRS = 1000
_MOST_LABELS = 10_000
_MOST_VALUES = 6
"""How many elements are read to find the labels that appear, and how many of these labels fill an input."""


def kind_of(example: Tensor, is_data: bool = True) -> Kind:
    """The kind of a tensor of the example."""
    is_dense = example.layout is torch.strided and not example.is_nested
    if not is_dense or not example.numel() or example.dtype not in _DTYPES:
        return "fixed"
    if example.dtype is torch.bool:
        return "flags"
    values = example.detach().double()
    if not bool(values.isfinite().all()):
        return "choices" if bool(((values == 0) | (values == -math.inf)).all()) else "fixed"
    has_rows = values.dim() > 0 and values.shape[-1] > 1
    low, high = values.min().item(), values.max().item()
    is_binary = values.dim() > 0 and bool(((values == 0) | (values.abs() == 1)).all())
    if has_rows and low >= 0 and _is_one(values.sum(-1)) and (values.dim() > 1 or not is_binary):
        return "distributions"
    if not example.is_floating_point():
        return "labels"
    if is_binary and (low >= 0 or bool((values != 0).all())):
        return "choices"
    if has_rows and high <= 0 and _is_one(values.exp().sum(-1)):
        return "log-distributions"
    if has_rows and values.dim() > 1 and _is_one(values.norm(dim=-1)):
        return "directions"
    if is_data and bool((values == values.round()).all()):
        return "counts"
    if low < 0:
        return "numbers"
    return "fractions" if high <= 1 else "positives"


def _is_one(numbers: Tensor) -> bool:
    return bool(((numbers - 1).abs() < _ROUNDED).all())


def limits_of(kind: Kind, example: Tensor) -> tuple[float, float]:
    """The least and the largest number for an input: ten times the example's, or 1 if the example's are up to 1."""
    if kind not in ("numbers", "positives", "counts", "fractions"):
        return -math.inf, math.inf
    largest = float(example.detach().abs().max())
    most = 1.0 if largest <= 1 else 10 * largest
    return -most if bool((example < 0).any()) else 0.0, most


def is_within(kind: Kind, example: Tensor, found: Tensor) -> bool:
    """Whether numbers are within their limits. A factor of two digits may pass them by a little."""
    low, high = limits_of(kind, example)
    rounding = 1.0 if high == 1 else 1.001
    return bool(((found >= low * rounding) & (found <= high * rounding)).all())


class Input(NamedTuple):
    """An input of the example, or a parameter to which an input may be equal. It `is_data` if it has no gradient."""

    name: str
    value: Tensor
    kind: Kind
    is_data: bool


class Change(NamedTuple):
    """Another value of one input.

    Attributes:
        at: which input.
        make: returns the value for a factor. Only a value that grows depends on the factor.
        phrase: what is special about the value, with {:g} for the factor; empty if the numbers show it.
        factor: the largest factor by which the value grows; 1 if it does not grow.
    """

    at: int
    make: Callable[[float], Tensor]
    phrase: str = ""
    factor: float = 1.0

    @property
    def grows(self) -> bool:
        return self.factor != 1


class Candidate(NamedTuple):
    """A case to try.

    Attributes:
        base: the case before the changes.
        changes: the changes of single inputs.
        is_one_row: whether the batch was cut to one row.
    """

    base: Case
    changes: tuple[Change, ...] = ()
    is_one_row: bool = False

    @property
    def case(self) -> Case:
        case = self.base
        for change in self.changes:
            case = case.with_input(change.at, change.make(change.factor))
        return case

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors by which the parameters, and the input of each change, have grown."""
        return self.base.factor, *(change.factor for change in self.changes)

    def with_factor(self, at: int, factor: float) -> Candidate:
        """The candidate with the factor at this position replaced."""
        if at == 0:
            return self._replace(base=self.base._replace(factor=factor))
        changes = [*self.changes]
        changes[at - 1] = changes[at - 1]._replace(factor=factor)
        return self._replace(changes=tuple(changes))


def candidates(
    example: Case,
    inputs: Sequence[Input],
    parameters: Sequence[Input],
    used: Callable[[Case], Sequence[Tensor]],
    is_slow: bool = False,
) -> Iterator[Candidate]:
    """All cases to try, in order: likely cases come first.

    Args:
        example, inputs, parameters: those of the loss.
        used: returns which elements of the inputs a loss depends on, as a bool for each element.
        is_slow: whether there is no time for all cases. Then numbers that are 100 times as large come first.
    """
    each = [
        [*_changes(at, given, [other for other in (*inputs, *parameters) if other is not given])]
        for at, given in enumerate(inputs)
    ]
    singles = [Candidate(example, (change,)) for change in itertools.chain.from_iterable(each)]
    if is_slow:
        yield from (single for single in singles if single.changes[0].factor == FACTORS[1])
        singles = [single for single in singles if single.changes[0].factor != FACTORS[1]]
    yield from (single for single in singles if not single.changes[0].grows)
    yield from _without_examples(example, inputs, parameters)
    yield from _left_out(example, inputs, each, used)
    yield from (single for single in singles if single.changes[0].grows)
    sizes = {tensor.shape[0] for tensor in example.tensors if tensor.dim()}
    is_strided = all(tensor.layout is torch.strided for tensor in example.tensors)
    if is_strided and len(sizes) == 1 and sizes not in ({0}, {1}):  # the last batch of an epoch may have one row
        yield Candidate(example.of_row(0), is_one_row=True)
    for factor in FACTORS[:2] if parameters else ():
        yield Candidate(example._replace(factor=factor))
    far = [[change for change in changes if not 1 < change.factor < FACTORS[-1]] for changes in each]
    pairs = [pair for two in itertools.combinations(far, 2) for pair in itertools.product(*two)]
    pairs.sort(key=lambda pair: pair[0].grows + pair[1].grows)
    for pair in pairs[:_MOST_PAIRS]:
        yield Candidate(example, pair)


def _without_examples(example: Case, inputs: Sequence[Input], parameters: Sequence[Input]) -> Iterator[Candidate]:
    """Cases in which a class has no examples: an integer that counts them is 0, and no label is this class.

    Integers without a 0 may also be lengths or sizes, which are never 0. Counts have one for each class, not for each
    row. Up to three integers may be a size.
    """
    sizes = {size for each in (*inputs, *parameters) if not each.is_data for size in each.value.shape}
    whole = [
        (at, each.value)
        for at, each in enumerate(inputs)
        if each.kind == "labels" and each.value.dim() and each.value.numel()
    ]
    for (at, counts), (of, labels) in itertools.permutations(whole, 2):
        classes = len(counts)
        is_for_each = counts.dim() == 1 and classes in sizes and len(labels) != classes > max(3, int(labels.max()))
        if is_for_each and int(counts.min()) > 0:
            is_absent = ~torch.isin(torch.arange(classes, device="cpu"), labels.cpu())
            rarest = int(counts.cpu().masked_fill(~is_absent & is_absent.any(), int(counts.max()) + 1).argmin())
            others = labels.masked_fill(labels == rarest, (rarest + 1) % classes)
            change = Change(at, lambda _, x=counts, part=rarest: _filled(x, part, 0))  # type: ignore[misc]
            yield Candidate(example.with_input(of, others), (change,))


def _left_out(
    example: Case, inputs: Sequence[Input], each: Sequence[Sequence[Change]], used: Callable[[Case], Sequence[Tensor]]
) -> Iterator[Candidate]:
    """Cases in which a mask leaves out elements, and these are what padding is: zero, or far from all others."""
    before = used(example)
    masks = [change for given, changes in zip(inputs, each, strict=True) if given.kind in MASKS for change in changes]
    for mask in sorted(masks, key=lambda mask: int((mask.make(1.0) != inputs[mask.at].value).sum())):
        case = example.with_input(mask.at, mask.make(1.0))
        for at, (given, was, now) in enumerate(zip(inputs, before, used(case), strict=False)):
            if bool((out := was & ~now).any()):
                for change in _padding(at, given, out):
                    yield Candidate(case, (change,))


def _padding(at: int, given: Input, out: Tensor) -> Iterator[Change]:
    """Other values of one input, where its elements are left out."""
    name, x, kind, _ = given

    def filled(value: float) -> Change:
        return Change(at, lambda _: _filled(x, out, value))

    yield from map(filled, [0.0] if kind == "positives" else _values(x, kind))
    phrase = f"the numbers in {name} that the loss leaves out are "
    if kind in ("numbers", "positives") and bool((x > 0).any()):  # the logarithm of a probability is never above 0
        yield Change(at, lambda factor: _filled(x, out, factor), phrase + "{:g}", FACTORS[-1])
    if kind == "numbers":
        yield Change(at, lambda factor: _filled(x, out, -factor), phrase + "-{:g}", FACTORS[-1])


def _changes(at: int, given: Input, others: Sequence[Input]) -> Iterator[Change]:
    """Other values of one input, of its kind."""
    name, x, kind, is_data = given
    if kind == "fixed":
        return

    def change(make: Callable[[], Tensor], phrase: str = "") -> Change:
        return Change(at, lambda _: make(), phrase)

    rows, row = x.shape[0] if x.dim() > 1 else 1, x.shape[-1] if x.dim() else 1
    for value in _values(x, kind):
        for part in _parts(x, kind):
            yield change(functools.partial(_filled, x, part, value))
        if kind in MASKS and x.numel() > 1:
            yield change(functools.partial(_all_but_one, x, value))
    if kind == "positives" and x.dim():  # a pixel without depth, a month without sales, a batch without
        for part in (0, (0,) * x.dim(), ...):
            yield change(functools.partial(_filled, x, part, 0.0))
    if rows > 1:
        yield change(lambda: x[:1].expand_as(x).clone(), f"all rows of {name} are equal")
    if row > 1 and kind in ("numbers", "positives", "counts", "fractions"):
        yield change(lambda: x[..., :1].expand_as(x).clone(), f"the numbers in each row of {name} are equal")
        if x.dim() > 1:
            yield change(lambda: torch.full_like(x, x.flatten()[0].item()), f"the numbers in {name} are equal")
    if x.dim() > 1 and row == x.shape[-2] > 1 and kind in (*_FLOATS, "choices"):
        yield change(
            lambda: torch.eye(row, dtype=x.dtype, device=x.device).expand(x.shape).clone(), f"{name} is the identity"
        )
    if kind in ("distributions", "directions"):  # rows with a single 1
        for axis in dict.fromkeys((0, row - 1)):
            yield change(functools.partial(_filled, torch.zeros_like(x), (..., axis), 1.0))
    for other, tensor, of, _ in others if x.is_floating_point() else ():
        if (
            _may_be(kind, of)
            and tensor.numel()
            and (tensor.shape == x.shape or tensor.dim() > 1 and tensor.shape[-1] == row)
        ):
            yield change(functools.partial(_like, tensor, x, 1), f"{name} is equal to {other}")
            if kind in ("numbers", "directions"):
                yield change(functools.partial(_like, tensor, x, -1), f"{name} is the opposite of {other}")
    for factor, make, phrase in _grown(x, kind if kind != "fractions" or is_data else "positives"):
        yield Change(at, make, f"{name} {phrase}", factor)


def _values(x: Tensor, kind: Kind) -> list[float]:
    """The numbers that may fill an input."""
    if kind == "choices":
        return [0.0, 1.0] if bool((x >= 0).all()) else [-math.inf, 0.0] if bool(x.isinf().any()) else [-1.0, 1.0]
    if kind == "labels":
        found = x.flatten()[:_MOST_LABELS].unique().tolist()
        return [0, 1] if found == [1] else [*found[:_MOST_VALUES], int(x.max()), *[1] * (found[0] > 1)]
    values = {"flags": (False, True), "counts": (0.0,), "fractions": (0.0, 1.0), "numbers": (0.0,)}
    may_end_at_1 = kind == "numbers" and float(x.detach().abs().max()) <= 1  # such as a cosine, or a correlation
    return [*values.get(kind, ()), *(1.0, -1.0) * may_end_at_1]


def _parts(x: Tensor, kind: Kind) -> Iterator[Any]:
    """What a number may fill: an input, or its first row; of a mask also its first column, and its first element."""
    yield ...
    if x.dim() > 1:
        yield 0
    if kind in ("flags", "choices") or kind == "labels" and {*x.flatten()[:_MOST_LABELS].tolist()} <= {0, 1}:
        if x.dim() > 1:
            yield ..., 0
        yield (0,) * x.dim()


def _filled(x: Tensor, part: Any, value: float) -> Tensor:
    changed = x.clone()
    changed[part] = value
    return changed


def _all_but_one(x: Tensor, value: float) -> Tensor:
    """One number in all elements but one: a mask with a single True, a row without a partner of its class."""
    others = x != value
    return x.masked_fill(~others | (others.flatten().cumsum(0).reshape(x.shape) > 1), value)


def _may_be(kind: Kind, other: Kind) -> bool:
    """Whether an input of a kind may be equal to one of another kind."""
    also = {"numbers": other, "fractions": "choices", "positives": "counts"}
    return kind in _FLOATS and other in (kind, also.get(kind))


def _like(tensor: Tensor, x: Tensor, sign: int) -> Tensor:
    """A tensor in the shape of another; its rows are repeated."""
    if tensor.shape == x.shape:
        return sign * tensor.detach().to(x)
    rows = tensor.detach().reshape(-1, x.shape[-1])
    count = x.numel() // x.shape[-1]
    return sign * rows[torch.arange(count, device=rows.device) % len(rows)].reshape(x.shape).to(x)


def _grown(x: Tensor, kind: Kind) -> Iterator[tuple[float, Callable[[float], Tensor], str]]:
    """Larger numbers, also of the other sign, smaller ones, and numbers far from 0, each with the largest factor."""
    if kind == "log-distributions":
        for factor in (30.0, 300.0):
            phrase = "has the probabilities of logits that are {:g} times as large"
            yield factor, lambda factor: torch.log_softmax(x * factor, -1), phrase
    if kind in ("numbers", "positives", "counts"):
        for factor in FACTORS[:1] if kind == "counts" else FACTORS:  # a grade of 3 is never 129
            yield factor, lambda factor: x * factor, "is {:g} times as large"
            if kind == "numbers":
                yield factor, lambda factor: x * -factor, "is {:g} times as large, with the other sign"
    if kind in ("numbers", "positives"):
        yield 1e4, lambda factor: x / factor, "is {:g} times as small"
    if kind == "numbers":
        for factor in FACTORS[1:]:
            yield factor, lambda factor: x + factor, "is larger by {:g}"
            yield factor, lambda factor: x - factor, "is smaller by {:g}"
