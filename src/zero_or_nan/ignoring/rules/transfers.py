"""How a mask goes through a derivative that plain PyTorch runs, because what the node saved is safe or can be repaired.

Benefit: such a node costs one hook and a little arithmetic on the mask. On a small graph, most of the time goes into
interpreting derivatives operator by operator. Downside: a transfer says again, for one function, what the rules of its
operators say together. The tests run random programs as planned, and by rules alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cotangent import without_nan
from ..graph import run
from ..masks import Mask, anywhere, both, core, expanded, reduced, reshaped
from ..registry import record_of, transfer
from ..sparse import has_sparse_factor
from .attention import is_short_and_whole, repair_attention, whole_masks
from .fused import repair_layer_norm
from .products import is_cheap, repair_products, uses_base

Results = Sequence[Any]


def _repair_entries(node: Any, grad: Tensor, mask: Tensor, results: Results) -> None:
    if results[0] is not None:
        without_nan(results[0], mask)


@transfer(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh Cos Cosh Elu Erf Erfc Exp Exp2 Expm1 Gelu Hardswish LeakyRelu Log Log10 Log1P
    Log2 LogSigmoid Mish Reciprocal Rsqrt Sigmoid Silu Sin Sinh Softplus Sqrt Tan Tanh
    """,
    repair=_repair_entries,
    repair_if=lambda node: len(node.next_functions) == 1,
)
def _same(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    return (mask,)


@transfer("Alias Clone Neg NativeDropout")
def _kept(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    return (mask,)


@transfer("Mul Div Sub Rsub Add")
def _broadcast(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """To each of two that were broadcast."""
    return [mask if mask is None or result is None else reduced(mask, result.shape) for result in results]


def _is_dense(node: Any) -> bool:
    return not has_sparse_factor(node)


def _is_dense_sum(node: Any) -> bool:
    return uses_base(node) and _is_dense(node)


@transfer(
    "Mm",
    only_if=_is_dense,
    repair=repair_products,
    repair_if=is_cheap,
    repair_reads=("_raw_saved_self", "_raw_saved_mat2"),
)
@transfer("Bmm", only_if=_is_dense)
def _product(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """To each factor what it met: the rows, and the columns."""
    if mask is None:
        return None, None
    rows, columns = results
    return (
        None if rows is None else anywhere(mask, -1, keepdim=True).expand(rows.shape),
        None if columns is None else anywhere(mask, -2, keepdim=True).expand(columns.shape),
    )


@transfer(
    "Addmm",
    only_if=_is_dense_sum,
    repair=repair_products,
    repair_if=is_cheap,
    repair_reads=("_raw_saved_mat1", "_raw_saved_mat2"),
)
@transfer("Baddbmm", only_if=uses_base)
def _added_product(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    base, *factors = results
    added = mask if mask is None or base is None else reduced(mask, base.shape)
    return (added, *_product(node, grad, mask, factors))


@transfer("View UnsafeView ReshapeAlias")
def _reshaped(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    return (mask if mask is None or results[0] is None else reshaped(mask, results[0].shape),)


@transfer("T")
def _transposed(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    return (mask if mask is None else mask.t(),)


def _moves(node: Any) -> bool:
    moves = record_of(node).moves
    return len(node._input_metadata) == 1 and (moves(node) if callable(moves) else moves)


@transfer(
    "Cat Expand Flip Permute PixelShuffle PixelUnshuffle Repeat Roll Squeeze Stack Sum Transpose Unsqueeze",
    only_if=_moves,
)
def _moved(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """It moves elements about, or adds them up: it does the same to their mask."""
    if mask is None:
        return [None] * len(results)
    return [
        None if result is None or moved is None else reduced(moved, result.shape)
        for moved, result in zip(run(node, mask), results, strict=True)
    ]


@transfer("Select")
def _select(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """As a slice, which has one element along the dimension."""
    if results[0] is None:
        return (None,)
    dim, index = _signed(node._saved_dim), _signed(node._saved_index)
    around, inner = _around(results[0].shape, dim, mask if mask is None else mask.unsqueeze(dim), grad)
    _written(around.narrow(dim, index % around.shape[dim], 1), inner)
    return (around.expand(results[0].shape),)


@transfer("Slice")
def _slice(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """What was sliced away is ignored, in a mask of the one dimension that was sliced, where nothing else arrives."""
    if results[0] is None:
        return (None,)
    dim, start, end = (_signed(number) for number in (node._saved_dim, node._saved_start, node._saved_end))
    around, inner = _around(results[0].shape, dim, mask, grad)
    _written(torch.ops.aten.slice.Tensor(around, dim, start, end, node._saved_step), inner)
    return (around.expand(results[0].shape),)


def _around(shape: torch.Size, dim: int, mask: Mask, grad: Tensor) -> tuple[Tensor, Mask]:
    """A mask of nothing, as large as it has to be, and that of what is to be written into it along a dimension."""
    inner = None if mask is None else core(mask)
    sizes = [1] * len(shape) if inner is None else list(inner.shape)
    sizes[dim] = shape[dim]
    return torch.zeros(sizes, dtype=torch.bool, device=grad.device), inner


def _written(place: Tensor, inner: Mask) -> None:
    if inner is None:
        place.fill_(True)
    else:
        place.copy_(inner)


def _signed(number: Any) -> Any:
    """A number that PyTorch keeps with a sign, and shows without."""
    return number - (1 << 64) if number is not None and number >= 1 << 63 else number


@transfer("Relu", reads=("_raw_saved_result",))
def _relu(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """Open above 0, and at NaN, which it has handed on."""
    return (both(node._saved_result.bool(), mask),)


@transfer("Where", reads=("_raw_saved_condition",))
def _where(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    taken, other = node._saved_condition.bool(), None
    if results[1] is not None:
        other = expanded(both(taken.logical_not(), mask), grad.shape)
    if results[0] is not None:
        taken = expanded(both(taken, mask), grad.shape)
    return [
        mask if mask is None or result is None else reduced(mask, result.shape)
        for mask, result in zip((taken, other), results, strict=True)
    ]


def _fills_with_a_number(node: Any) -> bool:
    return all(ahead is None for ahead, _ in node.next_functions[1:])


@transfer("MaskedFill", reads=("_raw_saved_mask",), only_if=_fills_with_a_number)
def _masked_fill(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    return (expanded(both(node._saved_mask.logical_not(), mask), grad.shape), *[None] * (len(results) - 1))


@transfer("Softmax LogSoftmax")
def _softmax(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """It mixes what lies along one dimension."""
    if mask is None or not grad.dim():
        return (mask,)
    return (anywhere(mask, _signed(node._saved_dim), keepdim=True).expand(grad.shape),)


@transfer(
    "NativeLayerNorm",
    repair=repair_layer_norm,
    repair_reads=tuple(f"_raw_saved_{name}" for name in ("input", "result1", "result2", "weight", "bias")),
)
def _layer_norm(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """It mixes each row; weight and bias get a sum over rows."""
    if mask is None:
        return [None] * len(results)
    row = len(node._saved_normalized_shape)
    rows = anywhere(mask, list(range(-row, 0)), keepdim=True)
    found: list[Mask] = [None if results[0] is None else rows.expand(grad.shape)]
    return found + [None if result is None else reduced(mask, result.shape) for result in results[1:]]


@transfer(
    "ScaledDotProductFlashAttentionForCpu",
    reads=("_raw_saved_query", "_raw_saved_key", "_raw_saved_attn_mask"),
    only_if=is_short_and_whole,
    repair=repair_attention,
    repair_reads=("_raw_saved_value", "_raw_saved_output", "_raw_saved_logsumexp"),
)
def _attention(node: Any, grad: Tensor, mask: Mask, results: Results) -> Sequence[Mask]:
    """A query mixes all keys, and a key goes to all queries."""
    if mask is None:
        return [None] * len(results)
    queries, keys = whole_masks(mask)
    return [
        None if result is None else counts.expand(result.shape)
        for counts, result in zip((queries, keys, keys), results, strict=True)
    ]
