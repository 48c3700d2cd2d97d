"""What a value is in exact arithmetic, and which number on the way to it does not fit its dtype.

Exact arithmetic is float64 here, which has room for what float32 and smaller dtypes lose.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ...functions.numerics import is_pointwise, numerics_of
from ..births.arithmetic import limit, number
from ..births.call import Call
from ..births.history import Chain
from ..program.expression import expression_at
from ..program.tensors import not_finite, without_side_effects

_FLOORS = {torch.float64: 1e-12, torch.float32: 1e-6}
"""What is added to a positive number that underflowed. Smaller dtypes get 1e-3."""


class Outcome(NamedTuple):
    """A result, and the gradient of its sum by each leaf, by the identity of the leaf."""

    value: Tensor
    gradients: Mapping[int, Tensor]


def outcome(result: Tensor, leaves: Mapping[int, Tensor]) -> Outcome:
    """The outcome of a computation that was recorded."""
    with without_side_effects(), torch.enable_grad():
        found = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return Outcome(result.detach(), dict(zip(leaves, found, strict=True)))


class Lost(NamedTuple):
    """A number before the last call of a chain that is 0 or infinite, and that exact arithmetic has as another number.

    Attributes:
        call, result: the call that lost it, and what it gave.
        how: how it was lost, as a sentence.
        exact: the value or the slope that the last call should have given.
    """

    call: Call
    result: Tensor
    how: str
    exact: str

    def __str__(self) -> str:
        return f"and {self.exact}: {self.how}"


def lost_on_the_way(chain: Chain) -> Lost | None:
    """The first number that was lost; None if the last call gives no number in exact arithmetic either."""
    was, exact = chain.run(), chain.run(torch.float64)
    if not isinstance(was.result, Tensor) or not was.leaves or not was.result.requires_grad:
        return None
    right = _cured(outcome(was.result, was.leaves), outcome(exact.result, exact.leaves))
    for key, value in exact.values.items():
        actual, call = chain.made.get(key, (None, None))
        if not right or actual is None or call is None or not actual.is_floating_point():
            continue
        value = value.detach()
        lost = torch.isfinite(value) & (((actual == 0) & (value != 0)) | actual.isinf())
        if bool(lost.any()):
            at = tuple(lost.nonzero()[0].tolist())
            return Lost(call, actual, _sentence(call, actual, value, at), right)
    return None


def _cured(was: Outcome, exact: Outcome) -> str:
    """The first value, or else the first slope, that exact arithmetic has; empty if it has none."""
    pairs = [("its exact value is", was.value, exact.value)]
    pairs += [("its exact derivative is", found, exact.gradients[key]) for key, found in was.gradients.items()]
    for what, before, after in pairs:
        cured = not_finite(before) & torch.isfinite(after)
        if bool(cured.any()):
            return f"{what} {number(after[cured][0].item())}"
    return ""


def _sentence(call: Call, actual: Tensor, value: Tensor, at: tuple[int, ...]) -> str:
    """How a number was lost."""
    argument = next(iter(call.tensors()), None)
    expression = expression_at(call.place)
    what = call.name
    if is_pointwise(call.name) and argument is not None and argument.shape == value.shape and len(call.tensors()) == 1:
        what = f"{call.name}({number(argument[at].item())})"
    if numerics_of(call.name).written:
        what = "a number" if expression is None else ast.unparse(expression.node)
    dtype = str(actual.dtype).removeprefix("torch.")
    here, there = actual[at].item(), value[at].item()
    what = f"{what} in line {call.place.line} is {number(there)}"
    if math.isinf(here):
        return f"{what}, and {dtype} ends at {limit(actual.dtype)}"
    if abs(there) < torch.finfo(actual.dtype).tiny:
        return f"{what}, and {dtype} has nothing so small and gives 0"
    return f"{what}, and in {dtype} rounding gives 0"


def floor_under(lost: Lost, chain: Chain) -> str:
    """The line that lost a positive number, with a floor under it; empty if that does not help, or can't be written."""
    expression = expression_at(lost.call.place)
    if expression is None or not expression.statement or not expression.calls(lost.call.name):
        return ""
    if bool((lost.result < 0).any()) or bool(lost.result.isinf().any()):
        return ""
    floor = _FLOORS.get(lost.result.dtype, 1e-3)
    key = next(key for key, (tensor, _) in chain.made.items() if tensor is lost.result)
    run = chain.run(given={key: lost.result + floor})
    found = outcome(run.result, {key: run.leaves[key]})
    if any(bool(not_finite(each).any()) for each in (found.value, found.gradients[key])):
        return ""
    written = number(floor)
    line = expression.replaced_by(f"{ast.unparse(expression.node)} + {written}")
    value = number(found.value.flatten()[int(not_finite(chain.run().result.detach()).flatten().int().argmax())].item())
    return (
        f"# a choice: at least {written}, in line {lost.call.place.line}. Tried on your numbers: value {value}\n{line}"
    )
