"""Inputs on which a loss is finite, but wrong: off by more than half of its value in float64.

The loss runs in both dtypes, and each call is recorded. The call at fault has a result that is off, although its
operands are right. Gradients alone are not compared: they are off for many inputs that never occur in training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..births.call import Call
from ..program.code import Place, Places, plan_of
from ..program.tensors import tensors_in
from .loss import Case, Key, Loss, Numbers

HALF = 0.5
"""The largest relative error that is not yet wrong."""

LITTLE = 1e-3
"""An error counts only if it is larger than this fraction of the example's loss."""


class Rounded(NamedTuple):
    """The call at fault, with the loss and gradients in the loss's own dtype and in float64."""

    place: Place
    name: str
    numbers: Numbers
    exact: Numbers

    @property
    def key(self) -> Key:
        return self.place.filename, self.place.line, self.name

    def __str__(self) -> str:
        """What is off, in one sentence."""
        text = f"the loss is {self.numbers.loss.item():.4g}, but {self.exact.loss.item():.4g} in float64"
        is_dead, is_dead_in_float64 = (
            not any(bool(each.any()) for each in of.gradients.values()) for of in (self.numbers, self.exact)
        )
        return f"{text}, and all gradients are 0" if is_dead and not is_dead_in_float64 else text


class Ran(NamedTuple):
    """A call, and the tensors that it returned."""

    call: Call
    results: list[Tensor]


class Calls(TorchFunctionMode):
    """While entered, records calls of functions that compute, in order of time.

    Args:
        wants: whether to record the calls of a function, by its public name. By default, all calls are recorded.
    """

    def __init__(self, wants: Callable[[str], bool] = lambda name: True) -> None:
        super().__init__()
        self.found: list[Ran] = []
        self._wants = wants
        self._places = Places()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        plan = plan_of(func)
        if plan.is_checked and self._wants(plan.name):
            call = Call(func, plan.name, self._places.here(), args, kwargs or {})
            self.found.append(Ran(call, list(tensors_in(result))))
        return result


def rounded(loss: Loss, case: Case, example: Numbers) -> Rounded | None:
    """The call that makes the loss wrong; None if the loss is right, or if no call can be blamed.

    A loss is not compared if it chooses other elements in float64, or calls other functions.

    Args:
        loss: the loss. On its example, its value in float64 is the same.
        case: the inputs on which the loss runs.
        example: the loss and the gradients of its example.
    """
    numbers, exact = loss.numbers(case), loss.numbers(case, torch.float64)
    if numbers is None or exact is None or not (numbers.is_finite and exact.is_finite):
        return None
    if not _is_off(numbers.loss, exact.loss, LITTLE * float(example.loss.abs())):
        return None
    calls, others = Calls(), Calls()
    loss.recorded(case, calls)
    loss.recorded(case, others, torch.float64)
    pairs = list(zip(calls.found, others.found, strict=False))
    if len(calls.found) == len(others.found) and all(_chose_the_same(*pair) for pair in pairs):
        for ran, other in reversed(pairs):
            if _any_off(ran.results, other.results) and not _any_off(ran.call.tensors(), other.call.tensors()):
                return Rounded(ran.call.place, ran.call.name, numbers, exact)
    return None


def _is_off(number: Tensor, exact: Tensor, least: float = 0.0) -> bool:
    """Whether a tensor of floats is off, by more than half of its largest number and by more than `least`."""
    if not exact.dtype.is_floating_point or not exact.numel():
        return False
    number, exact = number.detach().to(exact), exact.detach()
    return float((number - exact).abs().max()) > max(HALF * float(exact.abs().max()), least)


def _any_off(some: list[Tensor], others: list[Tensor]) -> bool:
    return any(_is_off(*pair) for pair in zip(some, others, strict=True))


def _chose_the_same(ran: Ran, other: Ran) -> bool:
    """Whether two runs of a call took and gave equal integers and bools, and tensors of equal shapes."""
    some, others = ([*each.call.tensors(), *each.results] for each in (ran, other))
    return (ran.call.name, [each.shape for each in some]) == (other.call.name, [each.shape for each in others]) and all(
        x.is_floating_point() or torch.equal(x, y) for x, y in zip(some, others, strict=True)
    )
