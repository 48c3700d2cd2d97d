"""The function that users call: `explain.probe`, the search for a NaN that has not happened yet.

The search first tries inputs that are common in practice. Then it follows a gradient, as GRIST does: it moves the
inputs along the gradient of the distance between an operand and its edge. It takes Newton's step where GRIST uses a
fixed rate. An edge is a number at which the value or the slope of a function is not finite: the end of its domain, or a
pole. `functions/numerics.py` knows them. From an input that fails, the search goes back towards the example.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...functions.numerics import numerics_of
from ...ignoring.inside import is_wrapped
from ..births.call import Call, in_order
from ..report.report import place
from .candidates import ROWS, Candidate, Change, Input, Kind, candidates, is_within, kind_of, limits_of
from .finding import Edge, Finding, ProbeReport, distance, test_of
from .loss import Case, Key, Loss, Numbers
from .rounded import Calls, rounded

MOST_EDGES = 50
"""The largest number of calls to whose edges the search follows a gradient."""

NEAR = 10.0
"""The largest factor by which numbers may grow or shrink if the loss is not finite in float64 either."""

FAILS_ON_ONE_ROW = (
    "a batch of one row is not finite at {}, and many losses need two rows: let the DataLoader drop its last batch, or "
    "handle this batch"
)
NO_TENSORS = (
    "no input is a tensor, or a tuple, list or dict of tensors, so only the parameters were changed: give the loss its "
    "batch as tensors"
)
FIXED = "the search does not change {}: it can't change complex or sparse tensors, rare dtypes, and tensors with a NaN"
STOPPED = "the loss itself stopped {} runs because of a NaN, which the search can't locate: {}"
TIME_IS_UP = "the search was stopped after {:g} seconds, and some inputs were not tried: pass a larger `seconds`"

_STEPS, _TRIES = 12, 48
"""The number of steps towards an edge, and of tries between the last case before it and the first case beyond."""

_OVERSHOOTS = 1.0, 1.5
"""How far the steps go, relative to Newton's. His own step ends at a pole, and a longer one ends beyond a bound."""

_MOVED = ("numbers", "positives", "fractions")
"""The kinds that follow a gradient."""

_BISECTIONS = 8
_FIRST_ROWS = 100
"""How many rows of a parameter are read to find its kind. All rows may be a large part of the memory."""

_MOST_PARTS = 64
_MOST_KEPT = 1_000_000

_LONG = 2.0
"""Searches of fewer seconds print nothing while they run."""

_SURE = 0.5
"""The seconds after which the time of a run is reliable, because the first runs take longer."""

_BETWEEN = 0.1
"""The seconds between two counts on a terminal."""


def probe(loss_fn: Callable[..., Any], *inputs: Any, seconds: float = 10.0, seed: int = 0) -> ProbeReport:
    """Search for inputs on which a loss, or its gradient, is a NaN or an infinity, or the loss is finite but wrong.

    A finite loss is wrong if it is off by more than half of its value in float64. This is checked only for inputs that
    have grown, if the parameters have at most 10 million elements and the example has the same loss in float64.

    Args:
        loss_fn: any callable that returns a loss. Its parameters are all leaves of the graph that are not inputs.
        inputs: an example on which the loss works. Tensors may have any shape and dtype, also inside tuples, lists and
            dicts. If no input and no parameter requires a gradient, the first floating-point input does.
        seconds: the time limit. If the search takes more than 2 seconds, stderr says so, and a terminal shows a count.
        seed: for the random numbers in each run. With the same seed and enough time, the findings are the same.

    Returns:
        A report. `report.ok` is True if nothing was found.

    Raises:
        TypeError: if the function does not return its loss, as a tensor of floats.
        ValueError: if `seconds` is not positive, or nothing has a gradient.
        Exception: any error that the loss raises on the example.

    Example:
        >>> import torch
        >>> from zero_or_nan import explain
        >>> def loss_fn(logits, target):
        ...     return -(target * logits.softmax(1).log()).sum(1).mean()
        >>> logits = torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, -3.0]], requires_grad=True)
        >>> report = explain.probe(loss_fn, logits, torch.eye(3)[:2])
        >>> (finding,) = report.findings
        >>> finding.function, finding.distance
        ('log', 'logits is 21 times as large')
        >>> loss_fn(*finding.inputs).item()
        nan
    """
    if not seconds > 0:
        raise ValueError(f"seconds={seconds!r} is not positive: give the search more than 0 seconds")
    search = Search(Loss(loss_fn, inputs, seed), seconds)
    given = zip(search.loss.names, search.kinds, search.loss.example.tensors, strict=True)
    fixed = [name for name, kind, tensor in given if kind == "fixed" and tensor.numel()]
    notes = [NO_TENSORS] * (not search.kinds) + [FIXED.format(", ".join(fixed))] * bool(fixed)
    search.report.notes.extend(notes)
    with search.loss.kept(), search.counted():
        if not search.run():
            search.report.notes.append(TIME_IS_UP.format(seconds))
    if stops := search.loss.stops:
        search.report.notes.append(STOPPED.format(len(stops), stops[-1]))
    search.report.runs, search.report.seconds = search.loss.runs, search.spent()
    return search.report


class Search:
    """A single search, which tries cases and keeps the nearest case of each finding."""

    def __init__(self, loss: Loss, seconds: float) -> None:
        self.loss, self._seconds, self._began = loss, seconds, time.monotonic()
        self._is_long, self._counted = False, 0.0
        self.report = ProbeReport()
        self.kinds = [kind_of(each, not wants) for each, wants in zip(loss.example.tensors, loss.wants, strict=True)]
        self._kept: set[Key] = set()

    def run(self) -> bool:
        """Try the example, common inputs, and the inputs that a gradient leads to; False if the time was up."""
        example = self.loss.example
        first = self.loss.begin()
        if not first.is_finite:
            self._look_at(Candidate(example))
            return True
        calls = Calls(has_edge)
        self.loss.recorded(example, calls)
        edges = [Edge(call.place.filename, call.place.line, call.name, call.place.source) for call in with_edges(calls)]
        self.report.searched = list(dict.fromkeys(edges))
        fail_alone: set[Change] = set()  # what fails alone says nothing new together with another change
        given = self._inputs()
        count = sum(1 for _ in candidates(example, *given, lambda case: []))  # without those that need a run
        is_slow = self.spent() + count * self.loss.seconds > self._seconds
        likely = candidates(example, *given, self.loss.used, is_slow)
        # Training reduces the loss itself to 0. Then perhaps no triplet of a batch counts any more. All elements move.
        trained = map(Candidate, towards(self.loss, self.kinds, lambda loss, calls: loss.reshape(1)))
        began = self.spent()
        grown: list[Candidate] = []
        for tried, candidate in enumerate(itertools.chain(likely, self._towards(edges[:MOST_EDGES]), trained)):
            if self._is_over():
                return False
            each = min(self.loss.seconds, (self.spent() - began) / tried) if tried else self.loss.seconds
            self._say(tried, count, each)
            if fail_alone.isdisjoint(candidate.changes) and self.loss.fails(candidate.case):
                fail_alone.update(candidate.changes if len(candidate.changes) == 1 else ())
                self._look_at(candidate)
            elif candidate.base.tensors is example.tensors and self._grows_alone(candidate.changes):
                grown.append(candidate)
        for candidate in grown if self._has_exact and not self.loss.is_large else ():
            if self._is_over():
                return False
            self._compare(candidate, first)
        return True

    def spent(self) -> float:
        """The seconds since the search began."""
        return time.monotonic() - self._began

    def _is_over(self) -> bool:
        return self.spent() > self._seconds

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """While entered, a long search may count on a terminal."""
        try:
            yield
        finally:
            if self._is_long and sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _say(self, tried: int, count: int, each: float) -> None:
        """Say once how long the search will take if that is long, and count the inputs on a terminal."""
        spent = self.spent()
        total = spent + each * max(0, count - tried)
        if not self._is_long and self._seconds >= _LONG < total and spent > _SURE:
            self._is_long = True
            ends = f", but the search stops after {self._seconds:g}" if total > self._seconds else ""
            said = f"explain.probe tries about {count} inputs, which takes about {total:.0f} seconds{ends}"
            print(said, file=sys.stderr, flush=True)
        if self._is_long and spent - self._counted > _BETWEEN and sys.stderr.isatty():
            self._counted = spent
            print(f"\r{tried} inputs tried", end="", file=sys.stderr, flush=True)

    def _inputs(self) -> tuple[list[Input], list[Input]]:
        """The inputs, and the parameters."""
        given = zip(self.loss.names, self.loss.example.tensors, self.kinds, self.loss.wants, strict=True)
        inputs = [Input(name, tensor, kind, is_data=not wants) for name, tensor, kind, wants in given]
        parameters = self.loss.parameters.items()
        first = [(name, each, each.detach()[:_FIRST_ROWS] if each.dim() else each) for name, each in parameters]
        return inputs, [Input(name, each, kind_of(rows, False), False) for name, each, rows in first]

    def _towards(self, edges: Sequence[Edge]) -> Iterator[Candidate]:
        """Cases that the gradient leads to, for each call that has not failed yet."""
        for number, edge in enumerate(edges):

            def gaps(loss: Tensor, calls: list[Call], number: int = number) -> Tensor | None:
                return _gaps(calls[number]) if number < len(calls) else None

            cases = towards(self.loss, self.kinds, gaps)
            while edge in self.report.searched and (case := next(cases, None)) is not None:
                yield Candidate(case)

    def _look_at(self, candidate: Candidate) -> None:
        """Confirm what a case shows, and keep what is new."""
        for key, kind in self.loss.births(candidate.case).items():
            if candidate.is_one_row and key not in self._kept:
                self.report.notes.append(FAILS_ON_ONE_ROW.format(place(*key[:2])))
                return
            if kind != "bad input" and key not in self._kept:
                self._confirm(candidate, key)

    def _confirm(self, candidate: Candidate, key: Key) -> None:
        """Keep the nearest case that shows a birth. If the time is up, the case stays as far away as it is."""

        def shows(case: Case) -> bool:
            return not self._is_over() and self.loss.fails(case) and key in self.loss.births(case)

        least = less_grown(candidate, shows)
        if self._is_possible(least):
            self._kept.add(key)
            case = nearest(least, self.loss.example, self.kinds, shows)
            for origin in self.loss.explained(case).origins:
                if (origin.filename, origin.line, origin.operator) == key:
                    self._keep(least, case, key, origin.source, origin.kind, remedy=origin.remedy, origin=origin)
                    break

    def _grows_alone(self, changes: Sequence[Change]) -> bool:
        """Whether one input has grown, or the parameters. A fraction may be a probability, which never exceeds 1."""
        return len(changes) < 2 and all(each.grows and self.kinds[each.at] != "fractions" for each in changes)

    def _compare(self, candidate: Candidate, example: Numbers) -> None:
        """Keep a case in which numbers have grown, if the loss is finite there, but wrong."""
        found = rounded(self.loss, candidate.case, example)
        if found is None or any(key[:2] == found.key[:2] for key in self._kept):
            return
        key = found.key

        def shows(case: Case) -> bool:
            other = None if self._is_over() else rounded(self.loss, case, example)
            return other is not None and other.key == key

        least = less_grown(candidate, shows)
        # A difference of squares loses its digits at the inverse root of eps. Digits lost only far beyond are no bug.
        is_far = max(least.factors) > 2 / math.sqrt(torch.finfo(self.loss.dtype).eps)
        if not is_far and (found := rounded(self.loss, least.case, example)) is not None:
            self._kept.add(found.key)
            self._keep(least, least.case, found.key, found.place.source, "rounded", exact=str(found))

    @cached_property
    def _has_exact(self) -> bool:
        """Whether the loss gives the same in float64, so that a run there shows what a number should have been."""
        first, exact = (self.loss.numbers(self.loss.example, dtype) for dtype in (None, torch.float64))
        if first is None or exact is None:
            return False
        return bool(torch.allclose(exact.loss.double(), first.loss.double(), rtol=1e-2, atol=1e-4))

    def _is_possible(self, candidate: Candidate) -> bool:
        """Whether an input can occur: float64 gives an ordinary number there, or the input is near the example.

        A number is ordinary if it is finite, and far from the largest number of the dtype of the loss.
        """
        case = candidate.case
        if max(candidate.factors) <= NEAR and all(map(is_within, self.kinds, self.loss.example.tensors, case.tensors)):
            return True
        exact = self.loss.numbers(case, torch.float64) if self._has_exact else None
        most = math.sqrt(torch.finfo(self.loss.dtype).max)
        return exact is not None and all(
            not each.numel() or float(torch.linalg.vector_norm(each, math.inf)) < most
            for each in (exact.loss, *exact.gradients.values())
        )

    def _keep(self, candidate: Candidate, case: Case, key: Key, source: str, kind: str, **more: Any) -> None:
        """Report a finding, with the nearest case that was found from a candidate."""
        numbers = self.loss.numbers(case)
        assert numbers is not None
        parameters = self.loss.parameters.items() if case.factor != 1 else ()
        self.report.findings.append(
            Finding(
                *(key[0], key[1], source, key[2], kind),
                distance=distance(self.loss, case, candidate.changes, self.kinds),
                inputs=self.loss.inputs_of(case),
                parameters={name: each.detach() * case.factor for name, each in parameters},
                loss=numbers.loss,
                gradients={name: _in_little_memory(each) for name, each in numbers.gradients.items()},
                test=test_of(self.loss, case, self.kinds, numbers.is_finite),
                **more,
            )
        )
        self.report.searched = [edge for edge in self.report.searched if edge[:3] != key]


def _in_little_memory(gradient: Tensor) -> Tensor:
    """The same gradient. If a large one is NaN everywhere, it is a single number in memory."""
    is_nan = gradient.numel() > _MOST_KEPT and bool(gradient.isnan().all())
    return gradient.new_full((), math.nan).expand(gradient.shape) if is_nan else gradient


# The way to an edge.


def with_edges(calls: Calls) -> list[Call]:
    """The calls whose operands may reach an edge, in order of time."""
    return [ran.call for ran in calls.found if not _is_far(ran.call)]


def has_edge(name: str) -> bool:
    """Whether a function is infinite or undefined for some operands that are not too large."""
    known = numerics_of(name)
    return known.pole is not None or known.is_limited or known.no_direction


def _is_far(call: Call) -> bool:
    """Whether a number among the operands keeps a call from its edge: a whole exponent, or a divisor other than 0."""
    known = numerics_of(call.name)
    return known.pole is not None and not known.is_limited and _divisor(call) is None


def _divisor(call: Call) -> Tensor | None:
    """The operand of a call that must not be 0."""
    operands = [*in_order(call), *call.kwargs.values()]
    at = numerics_of(call.name).divisor([None if isinstance(each, Tensor) else each for each in operands])
    return None if at is None else operands[at]


def towards(
    loss: Loss, kinds: Sequence[Kind], gaps_of: Callable[[Tensor, list[Call]], Tensor | None]
) -> Iterator[Case]:
    """Yield cases whose least gap above 0 shrinks until fewer gaps are left, and then cases in between.

    If nothing fails beyond an edge, a bound may hold the operand there. A minimum passes a gradient on at its bound,
    but not beyond, as `clamp` did before PyTorch 2.14: `acos(torch.minimum(x, one))` fails only if x is exactly 1. Sums
    of neighbouring numbers are rounded in many ways, so each element moves by a random part of the distance.

    `gaps_of` returns the gaps for a loss and its calls with an edge, in order of time; None if there are no gaps.
    """
    case, inside, beyond, count = loss.example, loss.example, None, 0
    moved = {at: limits_of(kind, loss.example.tensors[at]) for at, kind in enumerate(kinds) if kind in _MOVED}
    drawn = torch.Generator().manual_seed(0)
    for number in range(_STEPS + _TRIES):
        calls = Calls(has_edge)
        recorded = loss.recorded(case, calls)
        gaps = None if recorded is None else gaps_of(recorded[0], with_edges(calls))
        if recorded is None or gaps is None or not moved:
            return
        ahead = gaps[gaps > 0]
        if len(ahead) < count:
            beyond = case
        else:
            inside, count = case, len(ahead)
        if beyond is not None:
            case = _between(inside, beyond, moved, drawn)
        elif number < _STEPS and len(ahead) and ahead.requires_grad:
            given = [recorded[1][at] for at in moved]
            found = torch.autograd.grad(ahead.min(), given, allow_unused=True, materialize_grads=True)
            slopes = [slope.detach() for slope in found]  # a gradient that PyTorch fills in requires a gradient
            size = float(sum(slope.double().square().sum() for slope in slopes))
            step = _OVERSHOOTS[number % 2] * ahead.min().item() / size if size else math.inf
            if not 0 < step < math.inf:
                return
            before = case
            for (at, (low, high)), slope in zip(moved.items(), slopes, strict=True):
                case = case.with_input(at, (case.tensors[at] - step * slope).clamp(low, high))
            if all(torch.equal(before.tensors[at], case.tensors[at]) for at in moved):
                return
        else:
            return
        yield case


def _between(case: Case, other: Case, moved: Iterable[int], drawn: torch.Generator) -> Case:
    """A case in which each element of some inputs is at a random place between those of two cases."""
    for at in moved:
        x, y = case.tensors[at], other.tensors[at]
        case = case.with_input(at, x.lerp(y, torch.rand(x.shape, generator=drawn, device="cpu").to(x)))
    return case


def _gaps(call: Call) -> Tensor | None:
    """How far the elements of an operand are from the edges of a function; None if the edges are no numbers."""
    known = numerics_of(call.name)
    divisor = None if known.is_limited else _divisor(call)
    operand = next(iter(call.tensors()), None) if divisor is None else divisor
    if operand is None or not operand.is_floating_point() or is_wrapped(operand):
        return None  # the numbers inside a `vmap` can't be read
    if divisor is not None:
        return divisor.abs().flatten()
    low, high = known.domain
    gaps = [operand.flatten() - low] * (low != -math.inf) + [high - operand.flatten()] * (high != math.inf)
    return torch.cat(gaps) if gaps else None


# The way back: smaller factors, fewer rows, fewer elements.


def less_grown(candidate: Candidate, shows: Callable[[Case], bool]) -> Candidate:
    """The candidate with the smallest growth of the parameters and of each input that still `shows` the finding.

    Each factor has two digits, and is the smallest that bisection finds.
    """
    for at, high in enumerate(candidate.factors):
        low = 1.0
        for _ in range(_BISECTIONS if high != 1 else 0):
            middle = math.sqrt(low * high)
            unit = 10.0 ** (math.floor(math.log10(middle)) - 1)
            middle = math.ceil(middle / unit) * unit
            if not low < middle < high:
                break
            if shows(candidate.with_factor(at, middle).case):
                high = middle
            else:
                low = middle
        candidate = candidate.with_factor(at, high)
    return candidate


def nearest(candidate: Candidate, example: Case, kinds: Sequence[Kind], shows: Callable[[Case], bool]) -> Case:
    """The case with as many rows and elements of the example as possible. Inputs that have grown stay as they are."""
    case = candidate.case
    for at in (change.at for change in candidate.changes if not change.grows):
        put = functools.partial(case.with_input, at)
        before, after = example.tensors[at], case.tensors[at]
        shapes = [(len(before), *[1] * (before.dim() - 1))] if before.dim() > 1 else []
        for shape in shapes if kinds[at] in ROWS else [*shapes, before.shape]:
            after = _fewest(before, after, shape, lambda tensor, put=put: shows(put(tensor)))  # type: ignore[misc]
        case = put(after)
    return case


def _fewest(before: Tensor, after: Tensor, shape: Sequence[int], shows: Callable[[Tensor], bool]) -> Tensor:
    """A tensor with fewer of the changes: one of them, or what is left when parts are put back that get smaller.

    Args:
        before, after: the tensor without and with all changes.
        shape: (n, 1, …) if rows are put back as a whole, else that of the tensor.
        shows: whether a tensor has enough of the changes.
    """
    changed = before != after
    changed = changed.flatten(1).any(1) if tuple(shape) != tuple(before.shape) else changed.flatten()
    places = changed.nonzero().flatten()

    def of(*parts: Tensor) -> Tensor:
        chosen = torch.zeros_like(changed)
        chosen[torch.cat(parts)] = True
        return torch.where(chosen.reshape(shape), after, before)

    for single in places[:3].split(1):
        if shows(of(single)):
            return of(single)
    parts, tries = [places], 0
    while tries < _MOST_PARTS and any(len(part) > 1 for part in parts):
        parts = [half for part in parts for half in part.tensor_split(2) if len(half)]
        for part in list(parts):
            rest = [each for each in parts if each is not part]
            tries += 1
            if rest and shows(of(*rest)):
                parts = rest
    return of(*parts)
