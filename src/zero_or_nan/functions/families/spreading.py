"""Pooling, padding, upsampling, and Fourier transforms: sums of elements with constant weights.

An element of the gradient counts if it reads an element that counts. The operator itself shows this, if each element
that counts is NaN and the others are 0. NaN times any weight is NaN, also if the weight was computed as 0, and nothing
else becomes NaN. With windows of two, the cotangent's two elements reach two elements each:

>>> from zero_or_nan.ignoring import Cotangent
>>> g = Cotangent(torch.tensor([[[[1.0, 0.0]]]]), mask=torch.tensor([[[[True, False]]]]))
>>> window = [1, 2], [1, 2], [0, 0], False, True, None
>>> to_image = torch.ops.aten.avg_pool2d_backward(g, torch.zeros(1, 1, 1, 4), *window)
>>> to_image.value.flatten().tolist(), to_image.mask.flatten().tolist()
([0.5, 0.5, 0.0, 0.0], [True, True, False, False])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, unwrap
from ...masks.mask import Mask, anywhere
from ..conditions import ALWAYS
from ..numerics import numerics
from ..registry import function, rule

function(
    """
    ReflectionPad1D ReflectionPad2D ReflectionPad3D ReplicationPad1D ReplicationPad2D ReplicationPad3D
    """,
    safe_if=ALWAYS,
)
function(
    """
    AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D AdaptiveMaxPool3D AvgPool2D AvgPool3D MaxPool2DWithIndices
    MaxPool3DWithIndices Unfold UpsampleBilinear2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D
    """,
    selects=True,
    safe_if=ALWAYS,
)

numerics(
    """
    max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d
    fractional_max_pool3d
    """,
    of_equals={"": "one"},
)
function(
    """
    FractionalMaxPool2D FractionalMaxPool3D Im2Col MaxPool2D MaxUnpool2D MaxUnpool3D UpsampleBicubic2D
    UpsampleBicubic2DAa UpsampleBilinear2DAa UpsampleLinear1D UpsampleNearestExact1D UpsampleNearestExact2D
    UpsampleNearestExact3D UpsampleTrilinear3D
    """,
    selects=True,
)
function("UpsampleLanczos2DAa", since="2.13", selects=True)
function("FftR2C", selects=True)


@rule(
    *"""
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    _upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward
    adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool2d avg_pool2d_backward avg_pool3d
    avg_pool3d_backward col2im cumsum fractional_max_pool2d_backward fractional_max_pool3d_backward im2col
    masked_scatter_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward max_unpool2d max_unpool3d
    reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d
    reflection_pad3d_backward replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward
    replication_pad3d replication_pad3d_backward unfold_backward upsample_bicubic2d upsample_bicubic2d_backward
    upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d
    upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d
    upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward
    """.split()
)
def spread(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Pooling, padding, upsampling: each result is a weighted sum of elements."""
    args = unwrap(args)
    value = op(grad.value, *args, **unwrap(kwargs))
    # Saved tensors give only shapes or indices, so a NaN in them must not reach the mask.
    finite = [a.nan_to_num() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    return Cotangent(value, op(probe(grad.mask, grad.value), *finite, **kwargs).isnan())


rule("_upsample_lanczos2d_aa_backward", since="2.13")(spread)


def probe(mask: Mask, value: Tensor) -> Tensor:
    """NaN for each element that counts, 0 for the others."""
    if mask is None:
        return torch.full_like(value, torch.nan)
    return torch.zeros_like(value).masked_fill_(mask, torch.nan)


@rule("_fft_c2c", "_fft_r2c", "_fft_c2r")
def fourier(op: Any, grad: Any, dim: Any, *args: Any, **kwargs: Any) -> Any:
    """Each element goes into each result along the transformed dimensions, so all of these count if one counts."""
    value = op(grad.value, dim, *args, **kwargs)
    return Cotangent(value, None if grad.mask is None else anywhere(grad.mask, dim, True).expand(value.shape))
