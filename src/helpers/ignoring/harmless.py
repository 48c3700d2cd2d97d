"""Whether plain backward can be trusted with a graph, told from what the graph saved.

0 times anything finite is 0. Where every number that backward will multiply by is finite, an ignored entry stays the
zero that it is, and plain PyTorch's gradient is right: the careful pass would give the same bits. `harmless` looks at
the saved tensors of each node before the pass. It errs on one side only: a node that is not in the tables, or a number
outside of the bounds, asks for care.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .graph import function_of, nodes_of

LINEAR = frozenset(
    """
    AccumulateGrad Alias AsStrided AsStridedScatter Cat Chunk Clone ConstantPadNd Contiguous CopyBackwards CopySlices Copy
    Cumsum Detach Diagonal DiagonalCopy Diag DiagEmbed Expand Fill Flip Gather Index IndexAdd IndexCopy IndexFill IndexPut
    IndexSelect Lift MaskedFill MaskedScatter MaskedSelect Mean Movedim Narrow Neg Permute PixelShuffle PixelUnshuffle
    ReflectionPad1D ReflectionPad2D ReflectionPad3D Repeat ReplicationPad1D ReplicationPad2D ReplicationPad3D Reshape
    ReshapeAlias Roll Rsub Scatter ScatterAdd Select SelectScatter Slice SliceScatter Split SplitWithSizes Squeeze Stack Sub
    Sum T Take ToCopy Transpose Trace Tril Triu Unbind Unfold UnsafeSplit UnsafeSplitWithSizes UnsafeView Unsqueeze View
    Where Zero Add Embedding EmbeddingDense
    Relu Threshold Hardtanh Hardshrink Softshrink Clamp ClampMax ClampMin Maximum Minimum LeakyRelu
    Max Min Amax Amin Sort Topk Kthvalue Median Mode Cummax Cummin Nansum NanToNum
    MaxPool2DWithIndices MaxPool3DWithIndices AdaptiveMaxPool2D AdaptiveMaxPool3D AvgPool2D AvgPool3D
    AdaptiveAvgPool2D AdaptiveAvgPool3D NllLoss NllLoss2D
    UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleBilinear2D
    """.split()
)
"""Nodes that multiply by constants, or look at what they saved only to select."""

FINITE = frozenset(
    """
    Mul Mm Addmm Bmm Baddbmm Mv Addmv Dot Exp Exp2 Expm1 Sigmoid Tanh Softmax LogSoftmax Sin Cos Silu Gelu Elu Softplus
    LogSigmoid Convolution ConvolutionOverrideable MseLoss NativeDropout Mish Hardsigmoid Hardswish Sinh Cosh
    NativeLayerNorm NativeGroupNorm NativeBatchNorm CudnnBatchNorm Square
    ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention ScaledDotProductEfficientAttention
    """.split()
)
"""Nodes that multiply by what they saved, or by a bounded function of it."""

NONZERO = frozenset("Div Log Log2 Log10 Sqrt Rsqrt Reciprocal".split())
"""Nodes that divide by what they saved."""

Test = Callable[[float, float, torch.dtype], bool]


def _finite(low: float, high: float, dtype: torch.dtype) -> bool:
    bound = torch.finfo(dtype).max
    # Squares and products inside a derivative must not overflow either.
    return -bound <= low and high <= bound


def _moderate(low: float, high: float, dtype: torch.dtype) -> bool:
    bound = torch.finfo(dtype).max ** 0.25
    return -bound <= low and high <= bound


def _nonzero(low: float, high: float, dtype: torch.dtype) -> bool:
    bound = torch.finfo(dtype).max ** 0.25
    return (1 / bound <= low and high <= bound) or (-bound <= low and high <= -1 / bound)


_TESTS: dict[str, Test] = {
    **dict.fromkeys(FINITE, _moderate),
    **dict.fromkeys(("Mul", "Mm", "Addmm", "Bmm", "Baddbmm", "Mv", "Addmv", "Dot", "Exp", "Softmax"), _finite),
    **dict.fromkeys(NONZERO, _nonzero),
}


@functools.cache
def _plan(kind: type, name: str) -> tuple[Test | None, tuple[tuple[str, str], ...]] | None:
    """How to look at a node: the test and the attributes that hold saved tensors; None asks for care."""
    function = function_of(name)
    if function in LINEAR:
        return None, ()
    test = _TESTS.get(function)
    if test is None:
        return None
    raw = [attribute for attribute in dir(kind) if attribute.startswith("_raw_saved_")]
    return test, tuple((attribute, attribute.replace("_raw", "", 1)) for attribute in raw)


def harmless(roots: Sequence[Any]) -> bool:
    """Whether ignored entries can't contaminate the gradients of the roots.

    Raises:
        RuntimeError: PyTorch's own, when a saved tensor was freed or changed in place.
    """
    seen: set[tuple[int, int, Test]] = set()
    far: list[tuple[Tensor, Tensor, Test]] = []
    with torch.no_grad():
        for node in nodes_of(roots):
            plan = _plan(type(node), node.name())
            if plan is None:
                return False
            test, attributes = plan
            for raw, attribute in attributes:
                saved = getattr(node, raw)
                if getattr(saved, "unpack_hook", None) is not None or not hasattr(saved, "unpack_hook"):
                    return False  # unpacking would recompute (checkpoint), or can't be known not to
                tensor = getattr(node, attribute)
                if tensor is None:
                    continue
                if type(tensor) not in (Tensor, Parameter) or tensor.layout is not torch.strided:
                    return False
                if not tensor.is_floating_point():
                    if tensor.is_complex():
                        return False
                    continue
                key = (tensor.data_ptr(), tensor.numel(), test)
                if key in seen or not tensor.numel():
                    continue
                seen.add(key)
                low, high = torch.aminmax(tensor)
                if tensor.device.type != "cpu":
                    far.append((low, high, test))
                elif not test(low.item(), high.item(), tensor.dtype):
                    return False
    # On another device one wait for all the answers.
    if far:
        bounds = torch.stack([torch.stack((low, high)).double() for low, high, _ in far]).tolist()
        return all(
            test(low, high, tensor.dtype) for (low, high), (tensor, _, test) in zip(bounds, far, strict=True)
        )
    return True
