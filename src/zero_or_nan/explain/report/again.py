"""Runs the calls of a program again, up to the loss, with other tensors or in another dtype."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ignoring.inside import tree_leaves, tree_map, tree_map_only
from ..births.arithmetic import number
from ..births.call import Call
from ..births.chain import in_dtype, result_of, view_like
from ..program.code import Callers
from ..program.rerun import on_copies, without_side_effects
from ..program.tensors import node_of
from .exact import Outcome, weights
from .limits import Slopes, as_written, beside, limits_of_slopes, rounds

Calls = Sequence[tuple[int, Call]]
"""Calls in order of time, each with the identity of its result."""

Change = Callable[[Tensor], Tensor]
"""A function that is applied to an operand before a call reads it."""

MOST_NUMBERS = 20_000_000
"""The largest total size of all operands for which the calls run again."""

FAR = 1e-1
"""The relative error from which on a loss in a 16-bit dtype is wrong. Other lines round it, too."""

_MOST_SECONDS = 60.0
"""The time from which on no more runs begin. One run of thousands of calls may take seconds."""

_NOISE = 1e-15
"""The relative size of a change in the last digits of a number in float64."""

_MOST_ELSEWHERE = 24
"""About how many other calls of a line are tried, apart from those with other constants."""


@dataclass(frozen=True, eq=False)
class Program:
    """The known calls of a program.

    Attributes:
        calls: the calls in order of time, each with the identity of its result.
        loss: the identity of the loss; 0 if there was no backward pass, and None if it is not known.
        callers: for the code of each function, the lines that led to its calls, the outermost first.
        begun: when the first run may have begun, in seconds.
    """

    calls: Calls
    loss: int | None
    callers: Mapping[CodeType, Collection[Callers]]
    begun: float = field(default_factory=time.monotonic)

    def around(self, code: CodeType) -> tuple[list[CodeType], set[CodeType]]:
        """The user's functions that led to all calls of a function, the outermost first, and those that led to some."""
        if code not in self._around:
            stacks = [[each.code for each in led] for led in self.callers.get(code, ())] or [[]]
            common, every = set(stacks[0]).intersection(*stacks), set().union(*stacks)
            self._around[code] = [each for each in stacks[0] if each in common], every
        return self._around[code]

    @cached_property
    def _around(self) -> dict[CodeType, tuple[list[CodeType], set[CodeType]]]:
        return {}

    @cached_property
    def again(self) -> Again | None:
        """The results of the calls, which run once more as they are."""
        return once_more(self)

    @cached_property
    def fails_again(self) -> bool:
        """Whether the calls can run again with the same results, and the loss or a gradient is again not finite.

        If all are finite, the NaN or infinity came from something other than these calls. Too many calls do not run.
        """
        if sum(each.numel() for _, call in self.calls for each in call.tensors()) > MOST_NUMBERS:
            return False
        return self.again is not None and self.again.is_alike and not self.again.outcome.is_finite

    @cached_property
    def exact(self) -> Again | None:
        """The results of the calls in float64; None if they do not fail again, or if a call does not accept float64."""
        return once_more(self, dtype=torch.float64) if self.fails_again else None

    @property
    def right(self) -> Again | None:
        """`exact`, if its loss and gradients are finite."""
        return None if self.exact is None or not self.exact.outcome.is_finite else self.exact

    @cached_property
    def is_steady(self) -> bool:
        """Whether float64 has enough digits for the calls: a change of the last digits changes no gradient as a whole.

        A part of it may change: at a kink, such as the bound of a clamp, a last digit decides between two slopes.
        """
        exact, noisy = self.exact, once_more(self, dtype=torch.float64, noise=_NOISE)
        if exact is None or noisy is None:
            return False
        pairs = [*zip(noisy.outcome.parts, exact.outcome.parts, strict=True)]
        largest = max(float(right.norm()) for _, right in pairs)
        return all(float((now - right).norm()) <= float(right.norm()) + 1e-10 * largest for now, right in pairs)

    @cached_property
    def is_rounded_before(self) -> bool:
        """Whether the loss or a gradient depends on what float32 lost of the numbers that came in, such as 0.1.

        Then neither the loss in float32 nor that in float64 is right: `x - 0.1` is not 0 if only x was rounded. The
        same holds for what a conversion loses: `torch.tensor(0.1).half()`.
        """
        if self.right is None:
            return False
        if not agree(once_more(self, as_written, dtype=torch.float64), self.right, 1e-2):
            return True
        narrow = once_more(self, dtype=torch.float64, narrows=True)
        return narrow is not None and narrow.outcome.is_finite and not agree(narrow, self.right, 1e-2)

    @cached_property
    def limits(self) -> Mapping[Any, tuple[Tensor, Tensor]]:
        """Where the loss or its gradients are not finite, and their limits there, if these are known.

        Tensors whose elements are counted are not moved: a mask is no number that has a neighbour.
        """
        found = self._at_limits
        if found is None or self.exact is None:
            return {}
        counts = [self.calls[at][1] for at, each in self.exact.decisions.items() if each.dtype is not torch.bool]
        counted = {id(it) for call in counts for each in call.tensors() for it in (each, each._base)}
        return limits_of_slopes(
            found.slopes, self._beside([each for each in self.exact.kept if id(each) not in counted])
        )

    @cached_property
    def _at_limits(self) -> Again | None:
        """`exact`, or the same for the numbers as the code has them, if their rounding decides the result."""
        return once_more(self, as_written, dtype=torch.float64) if self.is_rounded_before else self.exact

    @cached_property
    def at_limits(self) -> Again | None:
        """The loss and its gradients in float64, with limits where they are not finite; None if a limit is missing."""
        if self._at_limits is None or not self.limits or any(bool(it.isnan().any()) for _, it in self.limits.values()):
            return None
        parts = dict(self._at_limits.slopes)
        for key, (bad, limit) in self.limits.items():
            parts[key] = parts[key].masked_scatter(bad, limit)
        return self._at_limits._replace(outcome=Outcome(parts.pop("the loss"), parts))

    @cached_property
    def compares(self) -> bool:
        """Whether a call compares numbers. True if this is not known."""
        if self.exact is None:
            return True
        masks = [self.calls[at][1] for at, each in self.exact.decisions.items() if each.dtype is torch.bool]
        return any(each.is_floating_point() for call in masks for each in call.tensors())

    @cached_property
    def made(self) -> dict[int, tuple[Tensor, Call]]:
        """The calls as a chain has them. The tensors are placeholders, because only the calls are read."""
        return {key: (tensor, call) for key, call in self.calls for tensor in call.tensors()[:1]}

    @cached_property
    def writes(self) -> Counter[int]:
        """By the identity of a tensor, how many of the calls write into it."""
        return Counter(id(call.args[0]) for _, call in self.calls if call.plan.in_place and call.args)

    def elsewhere(self, call: Call) -> list[Call]:
        """Other calls from the place of a call, at most as many as are tried: a new line is for all of them."""
        constants = _constants(call)
        again = (each for _, each in self.calls if each.is_again(call))
        others = [each for each in again if not each.is_same(call) or _constants(each) != constants]
        distinct = {_constants(each): each for each in others}
        return [*distinct.values()][:_MOST_ELSEWHERE] + others[:: 1 + len(others) // _MOST_ELSEWHERE]

    def _beside(self, tensors: Sequence[Tensor]) -> Iterator[Slopes]:
        """The loss and its gradients, for numbers beside those that came in."""
        for there in beside(tensors):

            def take(tensor: Tensor, there: Mapping[int, Tensor] = there) -> Tensor:
                return there.get(id(tensor), tensor)

            found = once_more(self, take, dtype=torch.float64)
            if found is None:
                return
            yield found.slopes


class Again(NamedTuple):
    """The results of calls that ran again.

    Attributes:
        outcome: the loss, and its gradients. Without a backward pass, the loss is the last result.
        kept: the tensors that came in and were used unchanged.
        is_alike: whether each result that another call read had the same numbers as in the program.
        decisions: by the position of a call, the results without floats.
    """

    outcome: Outcome
    kept: list[Tensor]
    is_alike: bool
    decisions: Mapping[int, Tensor]

    @property
    def slopes(self) -> Slopes:
        """The gradients, and the loss."""
        return {**self.outcome.gradients, "the loss": self.outcome.value}

    @property
    def told(self) -> str:
        """The loss, as half a sentence of a remedy that was tried."""
        return f"the loss is {number(self.outcome.value.max().item())}, and its gradients are finite"


def once_more(
    program: Program,
    take: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    converted: Callable[[int, Tensor], Change | None] = lambda at, tensor: None,
    dtype: torch.dtype | None = None,
    noise: float = 0.0,
    changed: Mapping[int, Call] = MappingProxyType({}),
    only: Collection[int] | None = None,
    narrows: bool = False,
) -> Again | None:
    """The loss and its gradients after an incoming tensor or a call is replaced; None if a call fails with it.

    A call runs again if it is changed, or if one of its operands has changed or has a gradient, and if there was no
    backward pass. The results of the other calls are used unchanged.

    Args:
        program: the calls that run again.
        take: returns the replacement for a tensor that no call here has computed.
        converted: returns the change of a tensor for the call at a position; None for an unchanged tensor.
        dtype: the dtype of all floating-point tensors. By default, the program's.
        noise: the relative size of a random change of each result, like a rounding error.
        changed: by position, the calls that run in place of others.
        only: the positions of the calls that run in the dtype, if not all do. The others get what they got before.
        narrows: whether `x.half()` rounds numbers to float16, also if the calls run in another dtype.
    """
    if program.loss is None or time.monotonic() - program.begun > _MOST_SECONDS:
        return None
    run = _Run(take, dtype, noise, program.writes, only is not None, narrows, not program.loss)
    try:
        with without_side_effects():
            for at, (key, call) in enumerate(program.calls):
                changes = {id(each): converted(at, each) for each in call.tensors()}
                run.take_target(call)
                if at in changed or run.is_new(call) or any(each is not None for each in changes.values()):
                    run.call(at, key, changed.get(at, call), changes, only is None or at in only)
            return run.end(program.loss)
    except Exception:  # the code may be the user's
        return None


class _Run:
    def __init__(
        self,
        take: Callable[[Tensor], Tensor],
        dtype: torch.dtype | None,
        noise: float,
        writes: Counter[int],
        is_partly: bool,
        narrows: bool,
        is_all: bool,
    ) -> None:
        self._take, self._dtype, self._noise, self._writes = take, dtype, noise, writes
        self._is_partly, self._narrows, self._is_all = is_partly, narrows, is_all
        self._generator = torch.Generator().manual_seed(0)
        self._made: dict[int, Tensor] = {}
        self._came: dict[int, Tensor] = {}
        self._leaves: dict[int, Tensor] = {}
        self._changed: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []
        self._decisions: dict[int, Tensor] = {}
        self._last: Tensor | None = None
        self._is_alike = True

    def take_target(self, call: Call) -> None:
        """Take the tensor that a call writes into, if it got its graph by this call: it is no leaf."""
        target = call.args[0] if call.plan.in_place and call.args else None
        is_known = id(target) in self._made or id(target) in self._came
        if isinstance(target, Tensor) and node_of(target) is not None and not is_known:
            self._came[id(target)] = in_dtype(None if self._is_partly else self._dtype, on_copies(target))

    def call(self, at: int, key: int, call: Call, changes: dict[int, Change | None], is_in_dtype: bool) -> None:
        """Run a call, with some of its operands changed, by their identity."""
        dtype = self._dtype if is_in_dtype else None

        def put(tensor: Tensor) -> Tensor:
            value, change = self._value(tensor), changes.get(id(tensor))
            if self._is_partly and dtype is None:
                return value.to(tensor.dtype)
            if self._is_partly and id(tensor) in self._made:
                return in_dtype(dtype, value) if change is None else change(in_dtype(dtype, value))
            if change is None and not self._is_partly:
                return value
            if id(tensor) not in self._changed:  # a sum of its gradients must not be rounded once for each call
                wide = in_dtype(dtype, value) if self._is_partly else value
                self._changed[id(tensor)] = wide if change is None else change(wide)
            return self._changed[id(tensor)]

        args, kwargs = tree_map_only(Tensor, put, (tuple(call.args), dict(call.kwargs)))
        if dtype is not None:
            args, kwargs = tree_map(self._of_dtype, (args, kwargs))
        with torch.set_grad_enabled(call.is_recorded):
            result = result_of(call, dtype, args, kwargs, self._narrows)
        into = call.args[0] if self._is_partly and call.plan.in_place and call.args else None
        if isinstance(into, Tensor) and self._keeps_dtype(into):
            self._changed.pop(id(into), None)
            self._came[id(into)] = args[0].to(into.dtype)
            self._made[key] = self._came[id(into)]
        elif isinstance(result, Tensor):
            self._made[key] = self._moved(result) if self._noise and rounds(call) else result
            if result.is_floating_point() or result.is_complex():
                self._last = self._made[key]
            else:
                self._decisions[at] = result

    def _keeps_dtype(self, into: Tensor) -> bool:
        """Whether a tensor that a call writes into was not made in the dtype of the calls."""
        return self._made.get(id(into), into).dtype is into.dtype

    def end(self, key: int) -> Again | None:
        """What the calls gave; None if the loss, whose identity it was in the program, is not among that."""
        loss = self._made.get(key) if key else self._last
        if loss is None:
            return None
        leaves = list(self._leaves.values())
        gradients = [torch.zeros_like(each) for each in leaves]
        if leaves and loss.requires_grad:
            options = {"allow_unused": True, "materialize_grads": True}
            gradients = list(torch.autograd.grad(loss, leaves, weights(loss), **options))
        found = {(key, 1): each.detach() for key, each in zip(self._leaves, gradients, strict=True)}
        return Again(Outcome(loss.detach(), found), self._kept, self._is_alike, self._decisions)

    def _moved(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        noise = torch.randn(tensor.shape, generator=self._generator, dtype=tensor.dtype).to(tensor.device)
        return tensor * (1 + self._noise * noise)

    def _of_dtype(self, thing: object) -> object:
        return self._dtype if isinstance(thing, torch.dtype) and thing.is_floating_point else thing

    def is_new(self, call: Call) -> bool:
        """Whether an operand of a call is another now, or has a gradient, or integers become 16-bit floats.

        Random numbers come in, and stay what they were.

        Raises:
            RuntimeError: if other random numbers would be drawn, because an operand is another, such as a probability.
        """
        if call.plan.numerics.draws == "data":
            if not call.name.endswith("_like") and not all(map(self._is_still, call.tensors())):
                raise RuntimeError(f"{call.name} would draw other numbers")
            return False
        if self._is_all or any(map(self._is_new, call.tensors())):
            return True
        if self._dtype is None or call.name not in ("half", "to"):
            return False
        leaves = tree_leaves((tuple(call.args), dict(call.kwargs)))
        return call.name == "half" or any(
            each in (torch.float16, torch.bfloat16) for each in leaves if isinstance(each, torch.dtype)
        )

    def _is_new(self, tensor: Tensor) -> bool:
        if tensor.requires_grad or id(tensor) in self._made or id(tensor._base) in self._made:
            return True
        return self._dtype is not None and tensor.is_floating_point() or self._take(tensor) is not tensor

    def _is_still(self, tensor: Tensor) -> bool:
        """Whether a tensor has the numbers of the program, apart from roundings."""
        now = self._made.get(id(tensor), tensor).detach()
        return now.shape == tensor.shape and torch.allclose(now.to(tensor.dtype), tensor, rtol=1e-3, equal_nan=True)

    def _value(self, tensor: Tensor) -> Tensor:
        base, made = tensor._base, self._made.get(id(tensor))
        is_leaf = tensor.requires_grad and node_of(tensor) is None
        if (is_leaf or not tensor.requires_grad) and tensor._version > self._writes[id(tensor)]:
            made = None  # the program wrote into it by a call that is not among these
        if made is not None:
            self._compare(made, tensor)
            if not is_leaf:
                return made
        if base is not None and not is_leaf and (tensor.requires_grad or id(base) in self._made):
            value = view_like(self._value(base), tensor)
            return value if tensor.requires_grad else value.detach()
        if id(tensor) not in self._came:
            taken = self._take(tensor) if made is None else made
            if taken is tensor:
                self._kept.append(tensor)
            dtype = None if self._is_partly else self._dtype
            self._came[id(tensor)] = value = in_dtype(dtype, on_copies(taken))
            if tensor.requires_grad:
                self._leaves[id(tensor)] = value.requires_grad_()
        return self._came[id(tensor)]

    def _compare(self, value: Tensor, tensor: Tensor) -> None:
        if self._is_alike:
            pair = [each.detach().nan_to_num(1.5, 2.5, 3.5) for each in (value, tensor)]
            self._is_alike = value.dtype is tensor.dtype and torch.equal(*pair)


def agree(now: Again | None, right: Again | None, near: float, rounding: float = 1e-12) -> bool:
    """Whether a loss and its gradients are finite and near the right ones, after these are rounded to the same dtype.

    A gradient may be exactly 0. Then both are rounding errors of larger numbers, by which `rounding` is multiplied.
    """
    if now is None or right is None or not (now.outcome.is_finite and right.outcome.is_finite):
        return False
    if now.outcome.gradients.keys() != right.outcome.gradients.keys():
        return False
    pairs = zip(right.outcome.parts, now.outcome.parts, strict=True)
    parts = [each.to(one.dtype).double() for each, one in pairs]
    largest = max((float(each.abs().max()) for each in parts if each.numel()), default=0.0)
    for one, each in zip(now.outcome.parts, parts, strict=True):
        scale = near * float(each.abs().max()) + rounding * largest if each.numel() else 0.0
        if not torch.allclose(one.double(), each, rtol=near, atol=scale):
            return False
    return True


def _constants(call: Call) -> str:
    """The arguments of a call that are no tensors, as text."""
    return repr(tree_map_only(Tensor, lambda tensor: None, (tuple(call.args), dict(call.kwargs))))


def position_of(call: Call, calls: Calls) -> int | None:
    """The position of the last call with the same operands at the same place; None if it is no longer known."""
    return next((at for at in range(len(calls))[::-1] if calls[at][1].is_same(call)), None)
