"""The course of a training run before it fails: did the loss and the parameters grow from step to step?

If a training run *diverges*, it overflows in the end, but the line that overflows is not the cause. The signs of a
divergence were measured on training runs with a known cause (`test_course.py` has runs of each kind). In each
divergence of several steps, the loss and the largest parameter had both grown more than a millionfold before the step
that failed. In other failures, at most one of the two had: weights that start near 0 grow while the loss falls, and a
loss grows with its data while the weights stay. So both numbers are compared with those of the first step. The
exception is a single bad batch: the loss jumps before the weights grow. If a step was too long, deep and recurrent nets
show the same course, so the report names both causes.

Limits. An overflow in the first step has no course. If the second step overflows, there is only one earlier loss, so
the report says *perhaps*. An inner loop within one step is not seen, nor is a divergence that ends before the loss is a
thousand times the first loss. Clipping the gradient bounds the steps of SGD. It does not bound those of Adam, because
Adam divides by the gradient's own size; the report says so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ...ignoring.inside import functions_unseen
from ..births.arithmetic import number
from ..program.tensors import numbers_of, unrecorded

GROWN = 1000.0
"""A loss, or the largest parameter, has grown if it is at least this many times as large as at first."""

EXPLODED = 10.0
"""A parameter may be why a step overflows if it is at least this large, and this many times its first size."""

_SHOWN = 3
"""The number of losses to show between the last loss that was as small as the first and the loss that failed."""

_DIVERGED = """\
the training diverged: the loss went {went}
  {grew}
  the origin below is where the numbers got too large in the end, and not the cause
    # lower the learning rate. Clipping bounds each step too, unless the optimizer
    # rescales the gradient, as Adam does:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"""

_JUMPED = """\
the loss jumped: it went {went}
  when it jumped, no parameter was above {before}; only then {grew}
    # either the batch of that step is bad, or the training diverges because a step
    # was too long: look at the batch, and lower the learning rate. Clipping bounds
    # each step too, unless the optimizer rescales the gradient, as Adam does:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"""

_PERHAPS = """\
perhaps the training diverges: in the one {unit} before, {grew}
    # if it was not meant to move so far, lower the learning rate"""


class Course:
    """The course of a training run, from its first step on.

    Args:
        unit, units: what the report calls a step.

    Attributes:
        start: the largest absolute value of a parameter before the first step.
        steps: the number of steps that have ended.
    """

    def __init__(self, unit: str = "step", units: str = "steps") -> None:
        self.unit, self._units = unit, units
        self.start = 0.0
        self.steps = 0
        self._first = 0.0
        self._last = 0.0
        self._low = 0.0  # the last loss that was not above the first
        self._higher: deque[float] = deque(maxlen=_SHOWN)  # the losses since
        self._since = 0
        self._jumped_at: float | None = None  # the largest parameter when the loss grew in a single step
        self._largest: float | None = None

    def begin(self, parameters: Iterable[Any]) -> None:
        """Read the parameters before the first step changes them."""
        if not self.steps:
            self.start = max(self.start, largest(parameters) or 0.0)

    def add(self, loss: float, largest_before: Callable[[], float | None]) -> None:
        """Keep the numbers of a step that was finite.

        Args:
            loss: its loss.
            largest_before: returns the largest absolute value of a parameter before the step changed it. It is called
                only if the loss has grown, because it takes as long as a check of the gradients.
        """
        self.steps += 1
        if self.steps == 1:
            self._first = abs(loss)
        if abs(loss) <= self._first:
            self._low, self._since = loss, 0
            self._higher.clear()
        else:
            self._since += 1
            self._higher.append(loss)
        last, self._last = max(abs(self._last), self._first), loss
        if abs(loss) < GROWN * (self._first or 1.0):
            self._jumped_at = self._largest = None
            return
        is_first, self._largest = self._largest is None, largest_before()
        if is_first and abs(loss) >= GROWN * last:
            self._jumped_at = self._largest

    def cause(self, loss: float | None, largest_now: float | None, is_overflow: bool) -> str:
        """What led to the failure of the next step, with the numbers and a remedy; empty if the steps do not show it.

        A line of the remedy is indented by four spaces, as in the text of an origin.

        Args:
            loss: the loss of the step that failed, if it is known.
            largest_now: the largest absolute value of a parameter before this step; None if it is not finite.
            is_overflow: whether the failure began with a number that is too large for its dtype.
        """
        size = self._largest if largest_now is None else largest_now
        if not self.steps or size is None:
            return ""
        grew = f"the largest parameter grew from {number(_short(self.start))} to {number(_short(size))}"
        scale = self.start or 1.0
        if self._largest is not None and size >= max(EXPLODED, GROWN * scale):
            if self._jumped_at is not None and self._jumped_at < EXPLODED * scale:
                before = number(_short(self._jumped_at))
                return _JUMPED.format(went=self._went(loss), before=before, grew=grew)
            return _DIVERGED.format(went=self._went(loss), grew=grew)
        if self.steps == 1 and is_overflow and size >= EXPLODED * max(1.0, self.start):
            return _PERHAPS.format(unit=self.unit, grew=grew)
        return ""

    def _went(self, loss: float | None) -> str:
        losses = [self._low, *self._higher, *(() if loss is None else (loss,))]
        texts = [number(_short(each)) for each in losses]
        if self._since > len(self._higher):
            texts.insert(1, "…")
        steps = self._since + (loss is not None)
        return f"{' → '.join(texts)} in {steps} {self.unit if steps == 1 else self._units}"


@unrecorded
def largest(parameters: Iterable[Any]) -> float | None:
    """The largest absolute value among parameters; None if there is none, or if one is not finite."""
    with functions_unseen():  # otherwise a surrounding `explain` would watch this
        ends = [_ends(here) for here in map(numbers_of, parameters) if here is not None]
    sizes = [abs(float(end)) for pair in ends for end in pair]
    return max(sizes) if sizes and all(map(math.isfinite, sizes)) else None


def _ends(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number. This is several times faster than the largest of all absolute values."""
    return tuple(torch.aminmax(torch.view_as_real(tensor) if tensor.is_complex() else tensor))  # type: ignore[return-value]


def loss_among(tensors: Iterable[Any]) -> Tensor | None:
    """The first tensor that is a single real number."""
    numbers = (here for here in map(numbers_of, tensors) if here is not None and here.numel() == 1)
    return next((here.detach() for here in numbers if not here.is_complex()), None)


def _short(value: float) -> float:
    return float(f"{value:.2g}")
