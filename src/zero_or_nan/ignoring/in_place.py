"""In-place operators and views: what is written into a cotangent reaches all that share its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .cotangent import Cotangent, ignores, mask_of, plain
from .masks import Mask, full, laid_out
from .registry import NotFollowed
from .steps import Step

RESHAPING = frozenset({"as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"})
"""Operators whose in-place form gives the same entries another shape."""


def in_place(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], step: Step | None, follow: Callable[..., Any]
) -> Any:
    """In-place operators follow the rule of their out-of-place twin; the result is written into value and mask."""
    target = args[0] if args else None
    name = str(op._schema.name)
    if type(target) is not Cotangent:  # out= and foreach variants, or a plain tensor that takes a cotangent's values
        if step is not None and ignores((*args, *kwargs.values())):
            step.failed(name, NotFollowed("writes into a plain tensor"))
        return op(*plain(args), **plain(kwargs))
    packet = name.removeprefix("aten::").removesuffix("_")
    twin = getattr(getattr(torch.ops.aten, packet, None), op._overloadname, None)
    if twin is None:
        op(*plain(args), **plain(kwargs))
        if step is not None:
            step.failed(name, NotFollowed("has no out-of-place form"))
        _write_mask(target, None)
        return target
    result = follow(twin, args, kwargs, step)
    value = plain(result)
    if packet in RESHAPING:
        with torch._C._DisableTorchDispatch():
            op(*args, **kwargs)
        target.value, target.mask = value, mask_of(result)
        return target
    if 0 in target.value.stride() and target.value.numel() > 1:  # an expanded tensor has no place for each entry
        target.value = value.clone()
    else:
        target.value.copy_(value)
    _write_mask(target, mask_of(result))
    return target


def remember_view(result: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note what a view is a view of, for the mask of what will be written into it."""
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
    """A new mask for a cotangent that was written to, and for what it is a view of.

    Cotangents share their masks freely, so no mask is ever written into.
    """
    target.mask = mask
    if target.viewed is None:
        return
    parent, view = target.viewed
    above: Mask = None
    try:
        above = laid_out(full(parent.mask, parent.value), parent.value)
        view(above).copy_(full(target.mask, target.value))
    except (RuntimeError, NotImplementedError):  # a view as another dtype: a mask can't follow, so all entries count
        above = None
    _write_mask(parent, above)
