"""In-place operators and views: a write into a cotangent reaches all cotangents that share its memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .cotangent import Cotangent, NotFollowed, Run, ignores, mask_of, unwrap
from .mask import Mask, full, laid_out
from .watching import operators_unseen

OpOverload = torch._ops.OpOverload
"""The type of an operator of PyTorch, with one signature. Anything else that is called is no plain operator."""

RESHAPING = frozenset({"as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"})
"""Operators whose in-place form gives the same elements another shape."""


def in_place(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], step: Run | None, follow: Callable[..., Any]
) -> Any:
    """Run an in-place operator by the rule of its out-of-place form, and write the result into value and mask."""
    target = args[0] if args else None
    written, functional = written_by(op, args, kwargs), out_of_place(op)
    if functional is None or type(target) is not Cotangent or len(written) != 1 or written[0] is not target:
        # out= and foreach variants, kernels that write, or a plain tensor into which a cotangent is written.
        if step is not None and ignores((*args, *kwargs.values())):
            reason = "writes into a plain tensor" if functional is not None else "has no out-of-place form"
            step.failed(str(op._schema.name), NotFollowed(reason))
        result = op(*unwrap(args), **unwrap(kwargs))
        for tensor in written:
            if type(tensor) is Cotangent:
                _write_mask(tensor, None)
        return _as_given(result, written)
    result = follow(functional, args, kwargs, step)
    value = unwrap(result)
    if functional._schema.name.removeprefix("aten::") in RESHAPING:
        with operators_unseen():  # gives the Cotangent itself its new shape
            op(*args, **kwargs)
        target.value, target.mask = value, mask_of(result)
        return target
    if 0 in target.value.stride() and target.value.numel() > 1:  # an expanded tensor has no memory for each element
        target.value = value.clone()
    else:
        target.value.copy_(value)
    _write_mask(target, mask_of(result))
    return target


def written_by(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that an operator writes into. Tensors in a list are given one by one."""
    given = [
        kwargs.get(argument.name, args[place] if place < len(args) else None)
        for place, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    tensors = [each for thing in given for each in (thing if isinstance(thing, (list, tuple)) else (thing,))]
    return [tensor for tensor in tensors if tensor is not None]


@functools.cache
def out_of_place(op: Any) -> Any:
    """The out-of-place form of an in-place operator; None if there is none."""
    namespace, _, name = op._schema.name.partition("::")
    if not name.endswith("_"):
        return None
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    found = getattr(packet, op.name().partition(".")[2] or "default", None)
    return None if found is None or found._schema.is_mutable else found


def _as_given(result: Any, written: list[Any]) -> Any:
    """The result, with the caller's own object in place of each tensor that was written into."""
    own = {id(unwrap(tensor)): tensor for tensor in written}
    if isinstance(result, (tuple, list)):
        return type(result)(_as_given(part, written) for part in result)
    return own.get(id(result), result)


def remember_view(result: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note the base of a view, so that a write into the view also changes the mask of the base."""
    parent = args[0]
    if type(parent) is not Cotangent:
        return
    if type(result) is Cotangent:
        result.viewed = (parent, lambda mask: op(mask, *args[1:], **kwargs))
    elif isinstance(result, (tuple, list)):
        for number, part in enumerate(result):
            if type(part) is Cotangent:
                part.viewed = (parent, lambda mask, number=number: op(mask, *args[1:], **kwargs)[number])


def _write_mask(target: Cotangent, mask: Mask) -> None:
    """Give a new mask to a cotangent that was written into, and to the base of which it is a view.

    Cotangents share their masks freely, so no mask is ever written into.
    """
    target.mask = mask
    if target.viewed is None:
        return
    parent, view = target.viewed
    above, written = full(parent.mask, parent.value), full(target.mask, target.value)
    seen = view(parent.value)
    if seen.is_conj() or seen.is_neg():  # the cotangent of such a view holds a copy
        seen.copy_(target.value)
    if seen.dtype != parent.value.dtype or seen.is_conj() or seen.is_neg():  # bools have no such view, numbers have
        above, written = _as_numbers(above, parent.value), _as_numbers(written, target.value)
    above = laid_out(above, parent.value)
    try:
        view(above).copy_(written)
    except RuntimeError:  # PyTorch refuses to write into an expanded tensor, whose elements share memory
        _write_mask(parent, None)
    else:
        _write_mask(parent, above if above.dtype is torch.bool else above != 0)


def _as_numbers(mask: Tensor, value: Tensor) -> Tensor:
    """The mask in the dtype of its value: 1 for an element that counts, also in its imaginary part, and 0 else."""
    return mask.to(value.dtype) * (1 + 1j if value.is_complex() else 1)
