"""The calls that have an edge, and a search that goes there by the gradient of the operand.

An edge is a number at which the value or the slope of a function is not finite: the end of its domain, or a pole.
`functions/numerics.py` knows them. The search is that of GRIST: it moves the inputs by the gradient of the distance
between an operand and its edge, with Newton's step where GRIST takes steps of a fixed rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...functions.numerics import numerics_of
from ..births.call import Call, in_order
from ..program.code import Places, plan_of
from .kinds import Kind, is_within
from .running import Case, Loss

_OTHERS = {"norm", "linalg_vector_norm", "std", "var", "atan2", "normalize", "pdist", "cdist", "cosine_similarity"}
"""Functions with an edge at equal or zero operands, which is no end of a domain."""

_STEPS = 6


class Edge(NamedTuple):
    """A call that has an edge."""

    filename: str
    line: int
    function: str
    source: str


class Calls(TorchFunctionMode):
    """While entered, notes the calls that have an edge, with their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Call] = []
        self._places = Places()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plan = plan_of(func)
        if plan.is_checked and has_edge(plan.name):
            call = Call(func, plan.name, self._places.here(), args, kwargs or {})
            self.found += [] if _is_far(call) else [call]
        return func(*args, **(kwargs or {}))


def has_edge(name: str) -> bool:
    """Whether a function is infinite or undefined somewhere, other than for operands that are too large."""
    known = numerics_of(name)
    return known.pole is not None or known.domain != (-math.inf, math.inf) or known.name in _OTHERS


def _is_far(call: Call) -> bool:
    """Whether a number among the operands keeps a call from its edge: a whole exponent, or a divisor other than 0."""
    number = in_order(call)[1] if call.name in ("pow", "div") and len(call.args) > 1 else None
    return isinstance(number, (int, float)) and number != 0 and (call.name == "div" or number == int(number) > 0)


def edge_of(call: Call) -> Edge:
    """A call, in the words of a report."""
    place = call.place
    return Edge(place.filename, place.line, call.name, place.source)


def towards(loss: Loss, number: int, kinds: Sequence[Kind]) -> Iterator[Case]:
    """Cases in which the operand of a call comes nearer to its edge, and passes it.

    Args:
        loss: the loss.
        number: which of the calls with an edge, in order of time.
        kinds: those of the inputs.
    """
    case = loss.example
    moved = [at for at, kind in enumerate(kinds) if kind == "numbers"]
    for _ in range(_STEPS):
        found = loss.recorded(case, Calls())
        if found is None or number >= len(found[0].found):
            return
        calls, given = found
        gap = _gap(calls.found[number])
        leaves = [given[at].requires_grad_() for at in moved]
        if gap is None or not gap.requires_grad or not leaves:
            return
        slopes = torch.autograd.grad(gap, leaves, allow_unused=True, materialize_grads=True)
        size = float(sum(slope.double().square().sum() for slope in slopes))
        if not 0 < size < math.inf or not math.isfinite(gap.item()):
            return
        step = (gap.item() + 0.5 * abs(gap.item()) + 1e-3) / size
        tensors = list(case.tensors)
        for at, slope in zip(moved, slopes, strict=True):
            tensors[at] = tensors[at] - step * slope.detach()
        case = Case(tuple(tensors))
        if not all(is_within(kinds[at], loss.example.tensors[at], tensors[at]) for at in moved):
            return
        yield case


def _gap(call: Call) -> Tensor | None:
    """How far the nearest element of an operand is from an edge; None if that is no single number."""
    known = numerics_of(call.name)
    operands = [each for each in in_order(call) if isinstance(each, Tensor) and each.is_floating_point()]
    if not operands or not operands[0].numel():
        return None
    low, high = known.domain
    if low == -math.inf and high == math.inf:
        return operands[-1].abs().min() if known.name == "div" and len(operands) > 1 else None
    gaps = [operands[0].min() - low] if low != -math.inf else []
    gaps += [high - operands[0].max()] if high != math.inf else []
    return min(gaps, key=Tensor.item)
