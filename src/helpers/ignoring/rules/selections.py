"""Where a zero is written, and whether it means "not selected".

The derivative of a slice writes zeros around the slice; there a zero can mean nothing else. `where`, `masked_fill`, a
factor of type bool and `zeros_like` also occur in derivatives that select nothing (the norm's at the origin, floor's),
and there a zero is a number. What they mean is read off the node that is running.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, _current_node, aten, full_mask, ignored_in, plain, rule
from ..graph import function_of

SELECTING = frozenset(
    """
    Amax Amin Aminmax Clamp ClampMax ClampMin CopyBackwards CopySlices Cummax Cummin Copy Dropout Fill Fmax Fmin
    IndexCopy IndexFill IndexPut IndexPutImpl IndexReduce Kthvalue MaskedFill MaskedScatter MaskedSelect Max Maximum
    Median Min Minimum Mode NanToNum Nanmedian Nansum Nanmean Put Scatter ScatterReduce SegmentReduce Select
    SelectScatter Slice SliceScatter Sort Topk Tril Triu Where Zero Normal Uniform Exponential Random Bernoulli
    Cauchy LogNormal Geometric Relu Relu6 Threshold Hardtanh
    """.split()
)
"""Nodes of the forward functions that select, by their name without "Backward0"."""


def selecting() -> bool:
    """Whether a zero written by the node that is running means "not selected"."""
    node = _current_node()
    if node is None:
        return False
    return function_of(node.name()) in SELECTING


def _source_mask(thing: Any, value: Tensor, instead_of: Tensor | None = None) -> Tensor:
    """The mask of one of the sources that a cotangent is put together from.

    A plain zero is ignored where it means "not selected"; elsewhere where it stands in place of an ignored entry.
    """
    if type(thing) is Cotangent:
        return full_mask(thing, thing.ignored)
    zero = thing == 0 if isinstance(thing, Tensor) else torch.tensor(thing == 0, device=value.device)
    if selecting():
        return zero
    return torch.zeros_like(zero) if instead_of is None else zero & instead_of


@rule("where")
def where(op: Any, condition: Tensor, a: Any, b: Any) -> Any:
    """Each entry of the result is one of the sources', with its mask."""
    value = op(condition, plain(a), plain(b))
    mask_a, mask_b = ignored_in(a), ignored_in(b)
    if mask_a is None and mask_b is None:
        if not selecting():
            return Cotangent(value)
        # The usual form, where(condition, cotangent, 0), needs one pass.
        if type(a) is Cotangent and _is_zero(b):
            return Cotangent(value, _spread(condition.logical_not(), value))
        if type(b) is Cotangent and _is_zero(a):
            return Cotangent(value, _spread(condition, value))
    mask = torch.where(condition, _source_mask(a, value, mask_b), _source_mask(b, value, mask_a))
    return Cotangent(value, mask.expand(value.shape))


def _spread(mask: Tensor, value: Tensor) -> Tensor:
    return mask if mask.shape == value.shape else mask.expand(value.shape)


def _is_zero(thing: Any) -> bool:
    return type(thing) is not Cotangent and isinstance(thing, Tensor) and thing.dim() == 0 and thing.item() == 0


@rule("masked_fill")
def masked_fill(op: Any, grad: Any, filled: Tensor, fill: Any) -> Any:
    """A zero over an ignored entry leaves it ignored, whatever the zero means; another number counts."""
    value = op(plain(grad), filled, plain(fill))
    ignored = ignored_in(grad)
    if plain(fill) != 0:
        ignored = ignored if ignored is None else ignored & ~filled
    elif selecting():
        ignored = filled if ignored is None else ignored | filled
    return Cotangent(value, ignored if ignored is None else ignored.expand(value.shape))


@rule("masked_scatter")
def masked_scatter(op: Any, base: Any, where: Tensor, source: Any) -> Any:
    """The source's entries, one after the other, where the base is covered."""
    value = op(plain(base), where, plain(source))
    mask = full_mask(plain(base), ignored_in(base, True)).expand(value.shape)
    return Cotangent(value, torch.masked_scatter(mask, where, _source_mask(source, value)))


@rule("masked_select")
def masked_select(op: Any, grad: Any, where: Tensor) -> Any:
    """Each entry takes its mask along."""
    ignored = grad.ignored
    return Cotangent(op(grad.value, where), ignored if ignored is None else op(ignored, where))


@rule("zeros_like", "zero")
def zeros_like(op: Any, grad: Any, **kwargs: Any) -> Any:
    """Overwritten in place, or the derivative of a step."""
    value = op(plain(grad), **kwargs)
    return Cotangent(value, _everywhere(value) if selecting() else ignored_in(grad))


def _everywhere(value: Tensor) -> Tensor:
    """A mask that ignores every entry: one byte, for masks are never written into."""
    return torch.ones((), dtype=torch.bool, device=value.device).expand(value.shape)


@rule("new_zeros")
def new_zeros(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """The base that a derivative puts selected entries into."""
    value = op(plain(grad), *args, **kwargs)
    if not (value.is_floating_point() or value.is_complex()):
        return value
    return Cotangent(value, _everywhere(value))


@rule("new_empty", "new_empty_strided", "empty_like")
def uninitialised(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Counts until something is written there."""
    value = op(plain(grad), *args, **kwargs)
    return Cotangent(value) if value.is_floating_point() or value.is_complex() else value


@rule("fill")
def fill(op: Any, grad: Any, number: Any) -> Any:
    """As `zeros_like`, when the number is 0."""
    value = op(plain(grad), plain(number))
    zero = selecting() and plain(number) == 0
    return Cotangent(value, _everywhere(value) if zero else None)


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(
    op: Any, base: Any, indices: Any, source: Any, accumulate: bool = False, *rest: Any, **kwargs: Any
) -> Any:
    """Places are overwritten, or added to: ignored where nothing used was put."""
    value = op(plain(base), indices, plain(source), accumulate, *rest, **kwargs)
    mask = full_mask(plain(base), ignored_in(base, True))
    put = full_mask(plain(source), ignored_in(source, True))
    if not accumulate:
        return Cotangent(value, aten.index_put(mask, indices, put))
    used = aten.index_put(mask.logical_not().float(), indices, put.logical_not().float(), accumulate=True)
    return Cotangent(value, used == 0)


@rule("scatter")
def scatter(op: Any, base: Any, dim: int, index: Tensor, source: Any, **kwargs: Any) -> Any:
    """Places along a dimension are overwritten."""
    value = op(plain(base), dim, index, plain(source), **kwargs)
    if kwargs.get("reduce") is not None:
        raise NotImplementedError("scatter with a reduction is not linear")
    mask = full_mask(plain(base), ignored_in(base, True))
    if isinstance(source, Tensor):
        return Cotangent(value, torch.scatter(mask, dim, index, full_mask(plain(source), ignored_in(source, True))))
    return Cotangent(value, torch.scatter(mask, dim, index, bool(source == 0)))


@rule("index_fill")
def index_fill(op: Any, base: Any, dim: int, index: Tensor, number: Any) -> Any:
    """Whole slices are overwritten by a number."""
    value = op(plain(base), dim, index, plain(number))
    mask = full_mask(plain(base), ignored_in(base, True))
    return Cotangent(value, torch.index_fill(mask, dim, index, bool(plain(number) == 0)))


@rule("index_copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")
def put_in(op: Any, base: Any, *args: Any, **kwargs: Any) -> Any:
    """Some places of a base are overwritten by a source, cotangents both."""
    value = op(plain(base), *plain(args), **plain(kwargs))

    def mask(thing: Any) -> Any:
        if isinstance(thing, Tensor) and (thing.is_floating_point() or thing.is_complex()):
            return full_mask(plain(thing), ignored_in(thing, True))
        return thing

    return Cotangent(value, op(mask(base), *map(mask, args), **{key: mask(item) for key, item in kwargs.items()}))
