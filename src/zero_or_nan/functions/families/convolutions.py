"""Convolutions: bilinear operators of an image and a kernel, plus a bias.

An image x of three elements and a kernel w of two give two elements of y. Their cotangents are g:

    y[0] = w[0]·x[0] + w[1]·x[1]        to x[0]: g[0]·w[0]
    y[1] = w[0]·x[1] + w[1]·x[2]        to x[1]: g[0]·w[1] + g[1]·w[0]
                                        to x[2]: g[1]·w[1]
                                        to w[0]: g[0]·x[0] + g[1]·x[1]

If the loss ignores y[1], then x[2] is ignored: it reaches no y that counts. In the sum for w[0], the ignored g[1] meets
x[1]. Each of these sums is bilinear, so `bilinear` of the file about products repairs it:

>>> from zero_or_nan.ignoring import Cotangent
>>> x, w = torch.tensor([[[1.0, 2.0, torch.nan]]]), torch.tensor([[[3.0, 4.0]]])
>>> g = Cotangent(torch.tensor([[[1.0, 0.0]]]), mask=torch.tensor([[[True, False]]]))
>>> geometry = [1], [0], [1], False, [0], 1
>>> to_x, to_w, _ = torch.ops.aten.convolution_backward(g, x, w, None, *geometry, [True, True, False])
>>> to_x.value.flatten().tolist(), to_x.mask.flatten().tolist(), to_w.value.flatten().tolist()
([3.0, 4.0, 0.0], [True, True, False], [1.0, 2.0])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, mask_of, prefer_exact, unwrap, wrap
from ...masks.mask import anywhere, full
from ...masks.numbers import has_nan
from ..conditions import MODERATE
from ..numerics import numerics
from ..registry import derivative, function, rule
from .products import Apply, bilinear, product_of_two, without_lost_samples

function(  # If the stride is larger than 1, and not transposed, the kernel may skip elements of the image.
    "Convolution",
    selects=lambda node: not node._saved_transposed and any(step > 1 for step in node._saved_stride),
    safe_if=MODERATE,
)

numerics("convolution mkldnn_convolution", grows=True, products=True)
numerics("conv1d conv2d conv3d slow_conv_dilated2d", products=True)

aten = torch.ops.aten


@rule("convolution_backward", "convolution_backward_overrideable")
def convolution_backward(op: Any, grad: Any, saved: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The gradients of input, weight and bias: two bilinear operators and a sum."""
    if type(grad) is not Cotangent:  # a derivative of a derivative
        return wrap(op(unwrap(grad), unwrap(saved), unwrap(weight), *args, **kwargs))
    sizes, stride, padding, dilation, transposed, output_padding, groups, wanted = _convolution(args)
    geometry = (stride, padding, dilation, transposed, output_padding)
    if wanted[1] and type(saved) is not Cotangent:
        saved = without_lost_samples(grad.mask, saved)
    exact = op(grad.value, unwrap(saved), unwrap(weight), *args, **kwargs)

    def to_input(cotangent: Tensor, kernel: Tensor, groups: int = groups) -> Tensor:
        channels = kernel.shape[0] if transposed else kernel.shape[1] * groups
        shaped = cotangent.new_empty((saved.shape[0], channels, *saved.shape[2:]))
        only = [True, False, False]
        result: Tensor = op(cotangent, shaped, kernel, None, *geometry, groups, only)[0]
        return result

    def to_weight(cotangent: Tensor, image: Tensor) -> Tensor:
        kernel = unwrap(weight).to(cotangent.dtype)
        result: Tensor = op(cotangent, image, kernel, None, *geometry, groups, [False, True, False])[1]
        return result

    if type(saved) is Cotangent or type(weight) is Cotangent:  # a derivative of a derivative
        masked = [
            product_of_two(to_input, grad, weight) if wanted[0] else None,
            product_of_two(to_weight, grad, saved) if wanted[1] else None,
            grad.sum([0, *range(2, grad.dim())]) if wanted[2] else None,
        ]
        return tuple(e if c is None else prefer_exact(e, c) for e, c in zip(exact, masked, strict=True))

    def masked_by(counts: Tensor, exact: Tensor, apply: Apply, factor: Tensor) -> Cotangent:
        if has_nan(exact):
            exact = torch.where(exact.isfinite(), exact, bilinear(apply, grad, factor))
        return Cotangent(exact, counts)

    mask = full(grad.mask, grad.value)
    channel = anywhere(mask, [0, *range(2, mask.dim())])
    results: list[Any] = [None, None, Cotangent(exact[2], channel) if wanted[2] else None]
    if wanted[0]:
        # Which elements does a used element reach? Ask with one channel in each group, and a kernel of ones. In
        # float32, because half precision would underflow.
        n, channels, *space = mask.shape
        reach = anywhere(mask.reshape(n, groups, channels // groups, *space), 2).float()
        ones = torch.ones((groups, 1, *weight.shape[2:]), dtype=reach.dtype, device=reach.device)
        reached = to_input(reach, ones) > 0.5
        members = saved.shape[1] // groups
        reached = reached.expand(saved.shape) if groups == 1 else reached.repeat_interleave(members, 1)
        results[0] = masked_by(reached, exact[0], to_input, weight)
    if wanted[1]:
        shape = weight.shape
        if transposed:
            channel = channel.reshape(groups, 1, -1).expand(groups, shape[0] // groups, shape[1]).reshape(shape[:2])
        channel = channel.reshape(*channel.shape, *(1,) * (weight.dim() - channel.dim())).expand(shape)
        results[1] = masked_by(channel, exact[1], to_weight, saved)
    return tuple(results)


def _convolution(args: Any) -> Any:
    """The arguments after the weight. `convolution_backward_overrideable` has no `bias_sizes`: add None."""
    return args if len(args) == 8 else (None, *args)


# Operators that are called if the derivative of a convolution is differentiated again.


@rule("convolution", "convolution_overrideable", "_convolution")
def convolution(op: Any, image: Any, kernel: Any, bias: Any, *geometry: Any, **kwargs: Any) -> Any:
    """A product of image and kernel, plus the bias. Each of the three may be a cotangent."""
    exact = op(unwrap(image), unwrap(kernel), unwrap(bias), *geometry, **kwargs)
    if all(mask_of(thing) is None for thing in (image, kernel, bias)):
        return Cotangent(exact)

    def apply(image: Tensor, kernel: Tensor) -> Tensor:
        result: Tensor = op(image, kernel, None, *geometry, **kwargs)
        return result

    total: Any = product_of_two(apply, image, kernel)
    if bias is not None:
        total = total + bias.reshape(-1, *(1,) * (exact.dim() - 2))
    return prefer_exact(exact, total)


@derivative("ConvTbc", safe_if=MODERATE)
def convolution_in_time(node: Any, grads: Any) -> Any:
    """By the usual convolution: this one has the dimensions steps × batch × channels."""
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
    """By the usual operator: this one has the name of a kernel."""
    exact = op(unwrap(grad), image, kernel, size, stride, padding, wanted)
    geometry = stride, padding, [1, 1], False, [0, 0], 1
    return prefer_exact(exact, aten.convolution_backward(grad, image, kernel, kernel.shape[:1], *geometry, wanted))
