"""Gradients of gradients: what one pass ignored is a constant for the next.

With `create_graph=True` PyTorch records the operators that each derivative calls, and saves the cotangents among their
arguments: masks and all, for they are saved as what they are. `entered` and `left` join that record to the plain
tensors between the nodes. A node of it remembers which of its results were ignored (`remember`), and a later pass that
arrives there ignores what reaches those (`constants`).

Where no pass is running, a cotangent that was saved is a plain tensor like any other: plain backward through the record
of a gradient is PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .cotangent import Cotangent, is_saved
from .looks import NOTHING
from .masks import Mask
from .registry import function
from .threads import current

if TYPE_CHECKING:
    from .steps import Step

_KEY = "zero_or_nan: which results of this node were ignored"
_EVER = False
"""Whether any node was made so: most programs never differentiate a gradient."""

_NOT_RECORDED: Mapping[int, Mask] = {}

_running_node = torch._C._current_autograd_node


class _Entered(torch.autograd.Function):
    """A plain tensor as a cotangent."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, mask: Mask, step: Step) -> Cotangent:
        return Cotangent(value.detach(), mask, step)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None, None


class _Left(torch.autograd.Function):
    """A cotangent as a plain tensor, whose numbers may have been mended since."""

    @staticmethod
    def forward(ctx: Any, cotangent: Cotangent, value: Tensor) -> Tensor:
        ctx.dtype = cotangent.dtype
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient if gradient.dtype is torch.bool else gradient.to(ctx.dtype), None


function(_Entered, moves=True, look=NOTHING)
function(_Left, moves=True, look=NOTHING)


def entered(value: Tensor, mask: Mask, step: Step) -> Cotangent:
    """The cotangent that a derivative gets; what it makes of it is recorded where PyTorch records.

    A tensor that goes to several nodes enters once: what comes back to it is then added up in PyTorch's own order.
    """
    if not (value.requires_grad and torch.is_grad_enabled()):
        return Cotangent(value, mask, step)
    before = step.owner.entered.get(id(value))
    if before is not None and before[0] is value and _same(before[1].mask, mask):
        cotangent = before[1]
        cotangent.step = step
    else:
        cotangent = _Entered.apply(value, mask, step)  # type: ignore[no-untyped-call]
        step.owner.entered[id(value)] = value, cotangent
    return cotangent


def left(results: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The plain tensors that go on to the next nodes in place of cotangents: their values, or what those became."""
    gone: dict[int, Any] = {}  # one that goes to several nodes leaves once
    for result, value in zip(results, values, strict=True):
        if id(result) not in gone:
            gone[id(result)] = _left(result, value)
    return [gone[id(result)] for result in results]


def _left(cotangent: Any, value: Any) -> Any:
    if type(cotangent) is not Cotangent or not cotangent.requires_grad:
        return value
    remember(cotangent, cotangent.mask)
    return _Left.apply(cotangent, value)  # type: ignore[no-untyped-call]


def _same(a: Mask, b: Mask) -> bool:
    return a is b or a is not None and b is not None and torch.equal(a, b)


def remember(tensor: Tensor, mask: Mask) -> None:
    """Have the node that made a tensor remember which of its entries were ignored."""
    global _EVER
    if tensor.grad_fn is not None:
        _EVER = True
        metadata: Any = tensor.grad_fn.metadata
        metadata.setdefault(_KEY, {}).setdefault(tensor.output_nr, mask)


def remember_all(things: Iterable[Any]) -> None:
    """The same for every cotangent among some arguments."""
    for thing in _flat(things):
        if type(thing) is Cotangent:
            remember(thing, thing.mask)


def any_recorded(nodes: Iterable[Any]) -> bool:
    """Whether one of the nodes was made while a pass of ours was recorded."""
    return _EVER and any(_KEY in node.metadata for node in nodes)


def is_recorded(node: Any) -> bool:
    """Whether a node was made while a pass of ours was recorded."""
    return _EVER and _KEY in node.metadata


def constants(node: Any, number: int) -> Mask:
    """Which entries of a result of a node that was recorded counted; the others are constants from then on."""
    mask: Mask = node.metadata.get(_KEY, _NOT_RECORDED).get(number)
    return mask


def without(value: Tensor, mask: Tensor) -> Tensor:
    """The cotangent with 0 where it reaches a constant; the very same one where it is 0 there."""
    if bool((value.detach() != 0).logical_and_(mask.logical_not()).any()):
        return torch.where(mask, value, 0)
    return value


def step_here() -> Step | None:
    """The run of a derivative that this thread is in."""
    running = current()
    return None if running is None else running.step_at(_running_node())


def all_saved(*things: Any) -> bool:
    """Whether there are cotangents among these, all of them saved by a pass that is over."""
    cotangents = [thing for thing in _flat(things) if type(thing) is Cotangent]
    return bool(cotangents) and all(map(is_saved, cotangents))


def _flat(things: Iterable[Any]) -> Iterable[Any]:
    for thing in things:
        if isinstance(thing, (tuple, list)):
            yield from _flat(thing)
        else:
            yield thing
