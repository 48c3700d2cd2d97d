"""Functions that reduce or sort a dimension: a sum skips ignored elements, and a maximum selects one element.

The derivative of a sum that was broadcast adds up cotangents. An ignored cotangent is 0, so the plain sum is right. The
result counts if one of its terms counts; a sum of ignored terms alone is ignored:

>>> from zero_or_nan.ignoring import Cotangent
>>> mask = torch.tensor([[True, True], [True, False], [False, False]])
>>> g = Cotangent(torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 0.0]]), mask=mask)
>>> to_rows = g.sum(1)
>>> to_rows.value.tolist(), to_rows.mask.tolist()
([3.0, 3.0, 0.0], [True, True, False])

The elements that equal a maximum share its cotangent, as in PyTorch. The other elements were not selected.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, mask_of, unwrap, zero_ignored
from ...masks.mask import anywhere, full
from ..conditions import ALWAYS, FINITE
from ..graph import signed
from ..numerics import numerics
from ..registry import derivative, function, rule
from ..rewrites import rewrite

function("Sum", moves=True, safe_if=ALWAYS)
function("Cumsum Mean", safe_if=ALWAYS)
function("Nansum Trace", selects=True, safe_if=ALWAYS)
function("Cummax Cummin Kthvalue Median Mode Sort Topk", selects=True, safe_if=ALWAYS)
function("Amax Amin", selects=True, compares=True, safe_if=FINITE)
function("Aminmax", since="2.13", selects=True, compares=True)
function("Max Min", selects=True, safe_if=FINITE)
function("Nanmedian SegmentReduce", selects=True)
function("Std StdMean", fills=("MaskedFill(Div(Mul(Std)))", "MaskedFill(Div(Mul(StdMean)))"))

numerics("sum mean", grows=True)
numerics("prod cumsum cumprod", grows=True)
numerics("nansum nanmean", section="nansum-nanmean")
numerics("std", no_direction=True, points="undefined#std-of-one-element")
numerics("var", points="undefined#std-of-one-element")
numerics("std_mean", like="std")
numerics("var_mean", like="var")
numerics("max min", of_equals={"0": "one", "1": "all"})
numerics("amax amin", of_equals={"": "all"})
numerics("median nanmedian", of_equals={"0": "all"})
numerics("sort topk kthvalue mode", of_equals={"": "one"})

rewrite("mean(x)", "x.sum() / max(x.numel(), 1)", "the mean of nothing is 0")
for name in ("std", "var"):
    rewrite(f"{name}(x)", f"(x.{name}() if x.numel() > 1 else 0 * x.sum())", "the spread of one element is 0")


_OVER_DIMENSIONS = torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim


@rule("sum", "mean")
def summed(op: Any, grad: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """Ignored terms are zeros, so the plain sum is right."""
    value = op(grad.value, dim, keepdim, **kwargs) if op in _OVER_DIMENSIONS else op(grad.value, **kwargs)
    return Cotangent(value, None if grad.mask is None else anywhere(grad.mask, dim, keepdim))


@rule("_segment_reduce_backward")
def segment_reduce_backward(op: Any, grad: Any, output: Tensor, data: Tensor, reduce: str, **kwargs: Any) -> Any:
    """A member of a segment counts if the segment does. With "max" or "min", it must also be the result."""
    value = op(unwrap(grad), output, data, reduce, **kwargs)

    def to_members(segments: Tensor) -> Tensor:
        """Each segment's number for all of its members, by the derivative of a sum."""
        zeros = torch.zeros(segments.shape, dtype=torch.float32, device=data.device)
        members = torch.zeros(data.shape, dtype=torch.float32, device=data.device)
        result: Tensor = op(segments.float(), zeros, members, "sum", **{**kwargs, "initial": None})
        return result

    mask = to_members(full(mask_of(grad), output)) != 0
    if reduce in ("max", "min"):
        largest = to_members(output.nan_to_num())
        mask &= (data.nan_to_num().float() == largest) | (to_members(output.isnan()) != 0)
    return zero_ignored(value, mask)


def _by_largest(node: Any) -> bool:
    """True for a maximum or a minimum."""
    return node._saved_reduce in ("amax", "amin")


def _leaves_out(node: Any) -> bool:
    """True if elements of the tensor itself may be ignored."""
    return _by_largest(node) or not node._saved_include_self


@derivative("ScatterReduce", selects=_leaves_out, derivative_if=_by_largest)
def scatter_reduce(node: Any, grads: Any) -> tuple[Any, Any]:
    """The elements that equal the largest (smallest) at their index share its cotangent. If it is NaN, all do.

    Elements that `include_self=False` leaves out are ignored.
    """
    at, source = (signed(node._saved_dim), node._saved_index), node._saved_src
    source = source if source.shape == at[1].shape else source[tuple(map(slice, at[1].shape))]
    return _shared_at(node, grads[0], at, source, torch.gather, torch.scatter_add, torch.scatter)


@derivative("IndexReduce", selects=_leaves_out, derivative_if=_by_largest)
def index_reduce(node: Any, grads: Any) -> tuple[Any, Any]:
    """The same as `scatter_reduce`, by rows."""
    at = signed(node._saved_dim), node._saved_index
    return _shared_at(node, grads[0], at, node._saved_source, torch.index_select, torch.index_add, torch.index_fill)


def _shared_at(node: Any, grad: Any, at: Any, source: Tensor, read: Any, add: Any, fill: Any) -> tuple[Any, Any]:
    """The gradients of the tensor and of the source. `read`, `add` and `fill` reach the elements at an index."""
    own, result = node._saved_self, node._saved_result
    there = read(result, *at)
    of_own, of_source = own == result, source == there
    shared = grad / add(of_own.to(own.dtype), *at, of_source.to(own.dtype))
    to_source = picked_share(read(shared, *at), of_source, there)
    if not node._saved_include_self:
        of_own, result = fill(of_own, *at, 0), fill(result, *at, 0)
    return picked_share(shared, of_own, result), to_source


def picked_share(shared: Any, picked: Tensor, result: Tensor) -> Any:
    """The shared cotangent at the picked elements, and NaN where the result is NaN and counts."""
    nan = result.isnan()
    return (shared * torch.ones_like(result).masked_fill(nan, torch.nan)).masked_fill(~(picked | nan), 0)
