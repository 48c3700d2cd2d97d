"""Kernels that differentiate what another operator does too: the rule of that one serves, or those of a formula."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..conditions import AWAY_FROM_ZERO, FINITE, MODERATE
from ..cotangent import Cotangent, mask_of, prefer_exact, unwrap
from ..masks import anywhere, full
from ..registry import derivative, function, rule

aten = torch.ops.aten

function("MaskedSoftmax", selects=True, safe_if=FINITE)
function("WeightNormInterface", safe_if=MODERATE, safe_if_saved={"result1": AWAY_FROM_ZERO})


@rule("_weight_norm_interface_backward")
def weight_norm_backward(op: Any, grad: Any, *saved: Any) -> Any:
    """By the formula that PyTorch has for second derivatives."""
    return prefer_exact(op(unwrap(grad), *saved), aten._weight_norm_differentiable_backward(grad, *saved))


@rule("_masked_softmax_backward")
def masked_softmax_backward(op: Any, grad: Any, output: Tensor, hidden: Tensor, dim: int | None = None) -> Any:
    """As without a mask, but what is hidden was not selected."""
    to_all: Any = aten._softmax_backward_data(grad, output, -1 if dim is None else dim, output.dtype)
    return prefer_exact(op(unwrap(grad), output, hidden, dim), to_all.masked_fill(hidden, 0))


@rule("miopen_batch_norm_backward")
def batch_norm_backward(op: Any, images: Tensor, grad: Any, weight: Tensor, *statistics: Any) -> Any:
    """As PyTorch's own, of a norm that is trained."""
    exact = op(images, unwrap(grad), weight, *statistics)
    *known, epsilon = statistics
    return prefer_exact(exact, aten.native_batch_norm_backward(grad, images, weight, *known, True, epsilon, [True] * 3))


@derivative("ConvTbc", safe_if=MODERATE)
def convolution_in_time(node: Any, grads: Any) -> Any:
    """A convolution of steps × batch × channels."""
    image, kernel, biases = node._saved_self.permute(1, 2, 0), node._saved_weight.permute(2, 1, 0), node._saved_bias
    geometry = [1], [node._saved_pad], [1], False, [0], 1
    to_image, to_kernel, to_bias = aten.convolution_backward(
        grads[0].permute(1, 2, 0), image, kernel, biases.shape, *geometry, [True, True, True]
    )
    return to_image.permute(2, 0, 1), to_kernel.permute(2, 1, 0), to_bias


@rule("_slow_conv2d_backward")
def slow_convolution_backward(
    op: Any, grad: Any, image: Tensor, kernel: Tensor, size: Any, stride: Any, padding: Any, wanted: Any
) -> Any:
    """A convolution that is called by the name of its kernel."""
    exact = op(unwrap(grad), image, kernel, size, stride, padding, wanted)
    geometry = stride, padding, [1, 1], False, [0, 0], 1
    return prefer_exact(exact, aten.convolution_backward(grad, image, kernel, kernel.shape[:1], *geometry, wanted))


@rule("cudnn_affine_grid_generator_backward")
def affine_grid_backward(op: Any, grad: Any, n: int, c: int, h: int, w: int) -> Any:
    """Both coordinates are sums over an image's places, with constant weights."""
    value = op(unwrap(grad), n, c, h, w)
    return Cotangent(value, anywhere(full(mask_of(grad), unwrap(grad)), (1, 2)).unsqueeze(-1).expand(value.shape))
