"""What users call: `explain.probe`, the search for a NaN that has not happened yet."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..report.report import Origin, place
from .candidates import ONE_ROW, Candidate, Input, candidates
from .edges import Calls, edge_of, towards
from .finding import Finding, ProbeReport, distance, named_gradients
from .kinds import is_within, kind_of
from .nearest import nearest
from .running import Case, Key, Loss, TimeIsUp
from .testing import test_of

MOST_TRIES = 6
"""How many inputs are tried for a line before it is given up: float64 fails on all of them, or gives a huge number."""

MOST_EDGES = 50
"""How many calls the gradient is followed to."""

NEAR = 10.0
"""How many times as large or small numbers may be where float64 gives no number either."""


FAILS_ON_ONE_ROW = (
    "a batch of one row is not finite at {}, and many losses need two rows: let the DataLoader drop its last batch, or "
    "handle this batch"
)
TIME_IS_UP = "the search was stopped after {:g} seconds, and some inputs were not tried: pass a larger `seconds`"


def probe(loss_fn: Callable[..., Any], *inputs: Any, seconds: float = 10.0, seed: int = 0) -> ProbeReport:
    """Search for inputs on which a loss, or its gradient, is a NaN or an infinity.

    Args:
        loss_fn: any callable that gives a loss. Its parameters are the leaves of the graph that are no inputs.
        inputs: an example, with which the loss works. Tensors may have any shape and dtype, also inside of tuples,
            lists and dicts. If neither an input nor a parameter requires a gradient, the first input of floats does.
        seconds: how long the search may take.
        seed: of the random numbers in each run. With the same seed, and enough time, the findings are the same.

    Returns:
        A report. `report.ok` is True if nothing was found.

    Raises:
        TypeError: if the function does not return its loss, as a tensor of floats.
        ValueError: if `seconds` is not positive, or nothing has a gradient.
        Exception: what the loss raises on the example.

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
        raise ValueError(f"seconds={seconds!r} is not positive: give the search some time")
    search = Search(Loss(loss_fn, inputs, seed, seconds))
    began = time.monotonic()
    with search.loss.kept():
        try:
            search.run()
        except TimeIsUp:
            search.report.notes.append(TIME_IS_UP.format(seconds))
    search.report.runs, search.report.seconds = search.loss.runs, time.monotonic() - began
    return search.report


class Search:
    """One search: it tries cases, and keeps the nearest case of each finding."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.report = ProbeReport()
        self.kinds = list(map(kind_of, loss.example.tensors))
        self._tries: Counter[Key] = Counter()

    def run(self) -> None:
        """Try the example, the inputs that people meet, and then those that a gradient leads to."""
        if not self.loss.begin().is_finite:
            self._look_at(Candidate(self.loss.example))
            return
        recorded = self.loss.recorded(self.loss.example, Calls())
        edges = [] if recorded is None else list(map(edge_of, recorded[0].found))
        self.report.searched = list(dict.fromkeys(edges))
        tries = candidates(self.loss.example, *self._inputs())
        self.loss.announce(len(tries))
        for candidate in tries:
            if self.loss.fails(candidate.case):
                self._look_at(candidate)
        for number, edge in enumerate(edges[:MOST_EDGES]):
            if edge in self.report.searched:
                for case in towards(self.loss, number, self.kinds):
                    if self.loss.fails(case):
                        self._look_at(Candidate(case))
                        break

    def _inputs(self) -> tuple[list[Input], list[Input]]:
        """The inputs, and the parameters."""
        given = zip(self.loss.names, self.loss.example.tensors, self.kinds, strict=True)
        inputs = [Input(*each, is_data=not self.loss.wants(at)) for at, each in enumerate(given)]
        return inputs, [Input(name, each, kind_of(each), False) for name, each in self.loss.parameters.items()]

    @cached_property
    def _has_exact(self) -> bool:
        """Whether the loss gives the same in float64, so that a run there shows what a number should have been."""
        first, exact = self.loss.numbers(self.loss.example), self.loss.exact(self.loss.example)
        if first is None or exact is None:
            return False
        return bool(torch.allclose(exact.loss.double(), first.loss.double(), rtol=1e-2, atol=1e-4))

    def _look_at(self, candidate: Candidate) -> None:
        """Confirm what a case shows, and keep what is new. If the time is up, the case is kept as far away as it is."""
        births = self.loss.births(candidate.case)
        if candidate.phrase == ONE_ROW:
            known = [key for key in births if self._tries[key] <= MOST_TRIES]
            self.report.notes += [FAILS_ON_ONE_ROW.format(place(*key[:2])) for key in known[:1]]
            return
        ends = self.loss.ends
        for key, kind in births.items():
            if kind == "bad input" or self._tries[key] > MOST_TRIES:
                continue

            def shows(case: Case, key: Key = key) -> bool:
                return time.monotonic() < ends and self.loss.fails(case) and key in self.loss.births(case)

            self._tries[key] += 1
            with self.loss.overtime():
                case, factors = nearest(candidate, self.loss.example, self.kinds, shows)
                if self._is_possible(case, max([case.factor, *factors.values()])):
                    self._tries[key] = MOST_TRIES + 1
                    origins = self.loss.explained(case).origins
                    origin = next((each for each in origins if (each.filename, each.line, each.operator) == key), None)
                    if origin is not None:
                        self._keep(candidate, case, factors, origin)

    def _is_possible(self, case: Case, growth: float) -> bool:
        """Whether an input can occur: float64 gives an ordinary number there, or the input is near the example."""
        exact = self.loss.exact(case) if self._has_exact else None
        dtype = self.loss.dtype
        if exact is not None and all(_is_ordinary(each, dtype) for each in (exact.loss, *exact.gradients)):
            return True
        return growth <= NEAR and all(map(is_within, self.kinds, self.loss.example.tensors, case.tensors))

    def _keep(self, candidate: Candidate, case: Case, factors: dict[int, float], origin: Origin) -> None:
        numbers = self.loss.numbers(case)
        assert numbers is not None
        parameters = self.loss.parameters.items() if case.factor != 1 else ()
        self.report.findings.append(
            Finding(
                file=origin.filename,
                line=origin.line,
                source=origin.source,
                function=origin.operator,
                kind=origin.kind,
                distance=distance(self.loss, case, candidate.phrase, factors, self.kinds),
                inputs=self.loss.inputs_of(case),
                parameters={name: each.detach() * case.factor for name, each in parameters},
                loss=numbers.loss,
                gradients=named_gradients(self.loss, numbers),
                remedy=origin.remedy,
                test=test_of(self.loss, case, self.kinds),
                origin=origin,
            )
        )
        key = origin.filename, origin.line, origin.operator
        self.report.searched = [edge for edge in self.report.searched if edge[:3] != key]


def _is_ordinary(exact: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether numbers in float64 are finite, and far from the largest number of a dtype."""
    return exact is None or bool((exact.abs() < math.sqrt(torch.finfo(dtype).max)).all())
