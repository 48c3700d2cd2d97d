"""Gradients of gradients: an element that one pass ignored is a constant for the next pass.

With `create_graph=True`, PyTorch records the operators that each derivative calls. It saves the cotangents among their
arguments, with their masks. `entered` and `left` join that record to the plain tensors between the nodes. A recorded
node remembers which elements of its results were ignored (`remember`). A later pass ignores a cotangent that reaches
these elements (`constants`).

If no pass is running, a saved cotangent is a plain tensor like any other. So a plain backward pass through the record
of a gradient is PyTorch's own.

Inside a level of forward mode, PyTorch differentiates each derivative as it runs. The tangent of a cotangent is a
cotangent with the same mask, so an element that was ignored is a constant there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...functions.conditions import ALWAYS
from ...functions.record import TRANSFERS, Transfer
from ...functions.registry import function
from ...masks.cotangent import Cotangent, Run, mask_of, unwrap
from ...masks.mask import Mask, anywhere, everywhere
from .attach import current

_forward_mode: Any = forward_ad
_KEY = "zero_or_nan: which results of this node were ignored"
_EVER = False
"""Whether any node remembers this. If not, `is_recorded` is cheap: most programs never differentiate a gradient."""

_NOT_RECORDED: Mapping[int, Mask] = {}

_running_node = torch._C._current_autograd_node


class _Entered(torch.autograd.Function):
    """A plain tensor as a cotangent."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, mask: Mask, step: Run, is_constant: bool) -> Cotangent:
        if in_forward_mode():  # `jvp` needs them
            ctx.step, ctx.mask = step, everywhere(False, value) if is_constant else mask
        return Cotangent(value.detach(), mask, step)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        mask, step = ctx.mask, ctx.step
        del ctx.mask, ctx.step
        return _Entered.apply(tangent if mask is None else without(tangent, mask), mask, step, False)  # type: ignore[no-untyped-call]


class _Left(torch.autograd.Function):
    """A cotangent as a plain tensor, whose numbers may have been repaired in between."""

    @staticmethod
    def forward(ctx: Any, cotangent: Cotangent, value: Tensor) -> Tensor:
        ctx.dtype = cotangent.dtype
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        # This derivative is also applied to masks, because the record says `moves`.
        return gradient if gradient.dtype is torch.bool else gradient.to(ctx.dtype), None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        return _left(tangent, unwrap(tangent))


for each in (_Entered, _Left):
    function(each, moves=True, safe_if=ALWAYS)
    TRANSFERS[each] = Transfer(lambda node, gradient, mask, results: [mask] * len(results))


def entered(value: Tensor, mask: Mask, step: Run) -> Cotangent:
    """The cotangent that a derivative gets. If PyTorch records, it records the operators on this cotangent.

    A tensor that goes to several nodes enters once, so that PyTorch adds up its gradients in its own order.
    """
    if not (value.requires_grad and torch.is_grad_enabled() or in_forward_mode()):
        return Cotangent(value, mask, step)
    before: tuple[Tensor, Cotangent] | None = step.entered.get(id(value))
    if before is not None and before[0] is value and _same(before[1].mask, mask):
        cotangent = before[1]
        cotangent.step = step
    else:
        dual, is_constant = _with_tangent(value)
        cotangent = _Entered.apply(dual, mask, step, is_constant)  # type: ignore[no-untyped-call]
        step.entered[id(value)] = value, cotangent
    return cotangent


def left(results: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The plain tensors that go on to the next nodes: the values, joined to the record of the resulting cotangents."""
    if not (torch.is_grad_enabled() or in_forward_mode()):
        return list(values)
    done: dict[int, Any] = {}  # a cotangent that goes to several nodes leaves once
    for result, value in zip(results, values, strict=True):
        if id(result) not in done:
            done[id(result)] = _left(result, value)
    return [done[id(result)] for result in results]


def _left(cotangent: Any, value: Any) -> Any:
    if type(cotangent) is not Cotangent or not (cotangent.requires_grad or in_forward_mode()):
        return value
    remember(cotangent, cotangent.mask)
    of_tangent = mask_of(tangent_of(cotangent))
    result = _Left.apply(cotangent, value)  # type: ignore[no-untyped-call]
    if of_tangent is None or bool(anywhere(of_tangent)):
        return result
    return _forward_mode.unpack_dual(result).primal  # `_with_tangent` made the tangent up: PyTorch has none


def _with_tangent(value: Tensor) -> tuple[Tensor, bool]:
    """The cotangent, with a tangent if forward mode is active, and whether the tangent is made up here.

    PyTorch makes up zeros for a missing tangent, but without a mask. The zeros that are made up here are all ignored.
    """
    if not in_forward_mode():
        return value, False
    if tangent_of(value) is not None:
        return value.contiguous() if 0 in value.stride() else value, False  # a tangent has the value's strides
    memory = value.untyped_storage().nbytes() // value.element_size()
    zeros = value.new_zeros(memory).as_strided(value.size(), value.stride(), value.storage_offset())
    return _forward_mode.make_dual(value, zeros), True


def in_forward_mode() -> bool:
    """True if a level of forward mode is active, so that tensors may have tangents."""
    return forward_ad._current_level >= 0


def tangent_of(tensor: Tensor) -> Any:
    """The tangent of a plain tensor; None if it has none."""
    return _forward_mode.unpack_dual(tensor).tangent if in_forward_mode() else None


def _same(a: Mask, b: Mask) -> bool:
    """True if two masks are equal."""
    return a is b or a is not None and b is not None and torch.equal(a, b)


def remember(tensor: Tensor, mask: Mask) -> None:
    """Note on the node that made a tensor which of the tensor's elements were ignored."""
    global _EVER
    if tensor.grad_fn is not None:
        _EVER = True
        metadata: Any = tensor.grad_fn.metadata
        metadata.setdefault(_KEY, {}).setdefault(tensor.output_nr, mask)


def remember_all(things: Iterable[Any]) -> None:
    """Do the same for each cotangent among some arguments."""
    for thing in _flat(things):
        if type(thing) is Cotangent:
            remember(thing, thing.mask)


def is_recorded(node: Any) -> bool:
    """True if a node was made while a pass of `ignoring` was recorded."""
    return _EVER and _KEY in node.metadata


def constants(node: Any, number: int) -> Mask:
    """A mask of the elements of a recorded node's result that counted. The others are constants from then on."""
    mask: Mask = node.metadata.get(_KEY, _NOT_RECORDED).get(number)
    return mask


def without(value: Tensor, mask: Tensor) -> Tensor:
    """The cotangent with 0 at each constant, where the mask is False. If it is 0 there already, the same tensor."""
    if not bool(value.detach().masked_fill(mask, 0).any()):
        return value
    if 0 not in value.stride():  # the result has the strides of the condition; an expanded value has none to keep
        mask = torch.empty_like(value, dtype=torch.bool).copy_(mask)
    return torch.where(mask, value, 0)


def step_here() -> Run | None:
    """The derivative call that runs in this thread; None if there is none, or if it gets plain tensors."""
    masked_pass = current()
    step = None if masked_pass is None else masked_pass.running.get(_running_node())
    return step if step is not None and step.on_cotangents else None


def all_saved(*things: Any) -> bool:
    """True if there are cotangents among these, and all of them were saved by passes that have ended."""
    steps = [thing.step for thing in _flat(things) if type(thing) is Cotangent]
    return bool(steps) and all(step is not None and step.is_over for step in steps)


def _flat(things: Iterable[Any]) -> Iterable[Any]:
    """The things, and the items of tuples and lists among them, one by one."""
    for thing in things:
        if isinstance(thing, (tuple, list)):
            yield from _flat(thing)
        else:
            yield thing
