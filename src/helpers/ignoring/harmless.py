"""Whether plain backward can be trusted with a graph, told from what the graph saved.

0 times anything finite is 0. Where every number that backward will multiply by is finite, an ignored entry stays the
zero that it is, and plain PyTorch's gradient is right: the careful pass would give the same bits. `harmless` looks at
the saved tensors of each node before the pass. It errs on one side only: a node that is not in the tables, or a number
outside of the bounds, asks for care.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from .graph import function_of

LINEAR = frozenset(
    """
    AccumulateGrad AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D AdaptiveMaxPool3D Add Alias AsStrided
    AsStridedScatter AvgPool2D AvgPool3D Cat Clamp ClampMax ClampMin Clone ConstantPadNd Copy CopyBackwards Cummax
    Cummin Cumsum Detach Diag DiagEmbed Diagonal DiagonalCopy Embedding Expand Fill Flip Gather Hardshrink Hardtanh
    Index IndexAdd IndexCopy IndexFill IndexPut IndexSelect Kthvalue LeakyRelu Lift MaskedFill MaskedScatter
    MaskedSelect MaxPool2DWithIndices MaxPool3DWithIndices Maximum Mean Median Minimum Mode NanToNum Nansum Neg
    Permute PixelShuffle PixelUnshuffle ReflectionPad1D ReflectionPad2D ReflectionPad3D Relu Repeat ReplicationPad1D
    ReplicationPad2D ReplicationPad3D Reshape ReshapeAlias Roll Rsub Scatter ScatterAdd Select SelectScatter Slice
    SliceScatter Softshrink Sort Split SplitWithSizes Squeeze Stack Sub Sum T Take Threshold ToCopy Topk Trace
    Transpose Tril Triu Unbind Unfold UnsafeSplit UnsafeSplitWithSizes UnsafeView Unsqueeze UpsampleBilinear2D
    UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D View Where Zero
    """.split()
)
"""Nodes that multiply by constants, or look at what they saved only to select.

`CopySlices` is not one of them: it hides the in-place function that it wraps.
"""

MULTIPLYING = frozenset(
    """
    Abs Addmm Addmv Amax Amin Baddbmm Bmm Cos Dot Exp Exp2 Expm1 LogSoftmax Max Min Mm Mul Mv NativeDropout Sigmoid
    Sin SafeSoftmax Softmax Tanh
    """.split()
)
"""Nodes that multiply by what they saved, or by a bounded function of it: it has to be finite."""

SMOOTH = frozenset(
    """
    BinaryCrossEntropyWithLogits Convolution CudnnBatchNorm Elu Gelu Hardsigmoid Hardswish LogSigmoid Mish MseLoss
    NativeBatchNorm NativeGroupNorm NativeLayerNorm NllLoss NllLoss2D Pow ScaledDotProductEfficientAttention
    ScaledDotProductFlashAttention ScaledDotProductFlashAttentionForCpu Silu Softplus
    """.split()
)
"""Nodes whose derivative is finite for finite numbers, but could overflow on its way."""

DIVIDING = frozenset("Div Log Log10 Log2 Reciprocal Rsqrt Sqrt".split())
"""Nodes that divide by what they saved."""

LARGE = 10_000
"""Entries from which on it pays to remember what was looked at."""

_DENSE = (Tensor, Parameter)
_UNKNOWN = object()


class Test(NamedTuple):
    """What is measured of a saved tensor in one pass over its memory, and which measures are harmless."""

    measure: Callable[[Tensor], tuple[Tensor, ...]]
    accepts: Callable[..., bool]


def _sum(tensor: Tensor) -> tuple[Tensor, ...]:
    """Finite where all entries are: NaN and inf get into every sum. Half precision would overflow too early."""
    return (tensor.sum(dtype=torch.float32) if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.sum(),)


@functools.cache
def _bound(dtype: torch.dtype) -> float:
    """Squares and cubes of numbers up to here don't overflow, nor do their inverses."""
    return float(torch.finfo(dtype).max ** 0.25)


def _moderate(dtype: torch.dtype, low: float, high: float) -> bool:
    bound = _bound(dtype)
    return -bound <= low and high <= bound


def _away_from_zero(dtype: torch.dtype, low: float, high: float) -> bool:
    bound = _bound(dtype)
    return 1 / bound <= low and high <= bound or -bound <= low and high <= -1 / bound


FINITE = Test(_sum, lambda dtype, total: math.isfinite(total))
MODERATE = Test(torch.aminmax, _moderate)
AWAY_FROM_ZERO = Test(torch.aminmax, _away_from_zero)

TESTS: dict[str, Test] = {
    **dict.fromkeys(MULTIPLYING, FINITE),
    **dict.fromkeys(SMOOTH, MODERATE),
    **dict.fromkeys(DIVIDING, AWAY_FROM_ZERO),
}


EXCEPT: dict[str, dict[str, Test | None]] = {
    "CudnnBatchNorm": {"running_var": AWAY_FROM_ZERO},
    "Div": {"self": MODERATE},
    "NativeBatchNorm": {"running_var": AWAY_FROM_ZERO},
    "NllLoss": {"self": None, "total_weight": AWAY_FROM_ZERO},
    "NllLoss2D": {"self": None, "total_weight": AWAY_FROM_ZERO},
    # An attention mask is -inf where it cuts off; what it does harm to shows in the logsumexp.
    "ScaledDotProductEfficientAttention": {"attn_bias": None},
    "ScaledDotProductFlashAttentionForCpu": {"attn_mask": None},
}
"""Saved tensors with a test of their own; None looks at none of their numbers."""

ONLY_IF: dict[str, Callable[[Any], bool]] = {
    # A root of a negative number is NaN, and an exponent may be a tensor.
    "Pow": lambda node: isinstance(node._saved_exponent, (int, float)) and node._saved_exponent in (1, 2, 3, 4),
}
"""What else must hold of a node."""


@functools.cache
def _plan(kind: type, name: str) -> tuple[tuple[str, str, Test], ...] | None:
    """How to look at a node: the attributes that hold its saved tensors, each with a test; None asks for care."""
    function = function_of(name)
    if function in LINEAR:
        return ()
    usual = TESTS.get(function)
    if usual is None:
        return None
    saved = [attribute.removeprefix("_raw_saved_") for attribute in dir(kind) if attribute.startswith("_raw_saved_")]
    tests = {attribute: EXCEPT.get(function, {}).get(attribute, usual) for attribute in saved}
    return tuple((f"_raw_saved_{a}", f"_saved_{a}", test) for a, test in tests.items() if test is not None)


@torch.no_grad()
def harmless(nodes: Iterable[Any]) -> bool:
    """Whether ignored entries can't contaminate what comes out of these nodes."""
    seen: set[tuple[Any, ...]] = set()
    elsewhere: list[tuple[tuple[Tensor, ...], Test, torch.dtype]] = []
    for node in nodes:
        kind: Any = type(node)
        plan = _plan(kind, node.name())
        if plan is None:
            return False
        if plan and not ONLY_IF.get(function_of(node.name()), bool)(node):
            return False
        for raw, attribute, test in plan:
            saved = getattr(node, raw)
            # Unpacking could recompute (checkpoint); older versions of PyTorch can't tell.
            if getattr(saved, "unpack_hook", _UNKNOWN) is not None:
                return False
            try:
                tensor = getattr(node, attribute)
            except RuntimeError:  # freed, or changed in place: backward will say so, if it gets there
                return False
            if tensor is None or not tensor.numel():
                continue
            if type(tensor) not in _DENSE or tensor.layout is not torch.strided or tensor.is_complex():
                return False
            if tensor.dtype is torch.bool and test is not AWAY_FROM_ZERO:
                continue
            if tensor.numel() > LARGE:  # a relu's result is the next layer's input; a look at a small one costs less
                key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), test)
                if key in seen:
                    continue
                seen.add(key)
            tensor = _as_factor(tensor, test)
            measures = test.measure(_in_memory_order(tensor))
            if tensor.device.type != "cpu":
                elsewhere.append((measures, test, tensor.dtype))
            elif not test.accepts(tensor.dtype, *[measure.item() for measure in measures]):
                return False
    return not elsewhere or _all_accepted(elsewhere)


def _all_accepted(elsewhere: list[tuple[tuple[Tensor, ...], Test, torch.dtype]]) -> bool:
    """On another device all measures are fetched at once: one wait in place of hundreds."""
    numbers = iter(torch.stack([measure.double() for measures, _, _ in elsewhere for measure in measures]).tolist())
    return all(test.accepts(dtype, *itertools.islice(numbers, len(measures))) for measures, test, dtype in elsewhere)


def _as_factor(tensor: Tensor, test: Test) -> Tensor:
    """In the narrowest dtype that it can be multiplied in: Python's numbers are saved as float64, integers as such."""
    dtype = tensor.dtype
    if not dtype.is_floating_point:
        return tensor.to(torch.float16 if test is FINITE else torch.float32)
    return tensor.to(torch.float32) if dtype is torch.float64 and tensor.dim() == 0 else tensor


def _in_memory_order(tensor: Tensor) -> Tensor:
    """The same entries; a transposed weight takes `aminmax` ten times as long as the weight."""
    if tensor.is_contiguous():
        return tensor
    if tensor.dim() == 2:
        return tensor.t()
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
