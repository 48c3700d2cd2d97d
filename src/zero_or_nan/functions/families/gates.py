"""Functions that compare a number with a bound, or with another number, and select one of them.

The number that was not selected is ignored. Every comparison with NaN is False, and relu(NaN) is NaN: the function
passes the NaN on, so the element counts:

>>> from zero_or_nan.ignoring import Cotangent
>>> x = torch.tensor([-1.0, 2.0, torch.nan])
>>> to_x = torch.ops.aten.threshold_backward(Cotangent(torch.ones(3)), x, 0)
>>> to_x.value.tolist(), to_x.mask.tolist()
([0.0, 1.0, 1.0], [False, True, True])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, mask_of, unwrap, zero_ignored
from ...masks.mask import Mask, anywhere, both, full
from ..conditions import ALWAYS, MODERATE
from ..numerics import numerics
from ..registry import function, rule, transfer

function(
    "Hardshrink Hardtanh Maximum Minimum NanToNum Nextafter Relu Softshrink Threshold", selects=True, safe_if=ALWAYS
)
function("Clamp ClampMax ClampMin", selects=True, compares=True, safe_if=ALWAYS)
function("Hardsigmoid", selects=True, safe_if=MODERATE)
function(
    """
    FakeQuantizeLearnablePerChannelAffine FakeQuantizeLearnablePerTensorAffine
    FakeQuantizePerChannelAffineCachemask FakeQuantizePerTensorAffineCachemask
    FakeQuantizePerTensorAffineCachemaskTensorQparams Fmax Fmin
    """,
    selects=True,
)

# The slope jumps at a bound. PyTorch's convention is the slope 0 there. For `clamp` it was 1 before PyTorch 2.14.
numerics("relu", replaces=True, exact=lambda a: max(a, 0), kinks=lambda node: (0.0,))
numerics("threshold", kinks=lambda node: (node._saved_threshold,))
numerics("hardtanh", kinks=lambda node: (node._saved_min_val, node._saved_max_val))
numerics("hardsigmoid", kinks=lambda node: (-3.0, 3.0), steep_at=())
CLAMPS_USE_BOUNDS = torch.__version__ < "2.14"  # compared as versions
numerics("clamp", kinks=lambda node: (node._saved_min, node._saved_max), uses_kinks=CLAMPS_USE_BOUNDS)
numerics("clamp_min", kinks=lambda node: (node._saved_min,), uses_kinks=CLAMPS_USE_BOUNDS)
numerics("clamp_max", kinks=lambda node: (node._saved_max,), uses_kinks=CLAMPS_USE_BOUNDS)
numerics("maximum", exact=max, of_equals={"": "all"})
numerics("minimum", exact=min, of_equals={"": "all"})
numerics("fmax fmin", of_equals={"": "one" if CLAMPS_USE_BOUNDS else "all"})  # the same change of PyTorch


@transfer("Relu", reads=("_raw_saved_result",))
def _relu(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    """An element counts if the result is above 0, or NaN, which relu passes on."""
    return (both(node._saved_result.bool(), mask),)


@rule("hardshrink_backward", "softshrink_backward")
def shrunk(op: Any, grad: Any, saved: Any, bound: Any) -> Any:
    """The same as `gate`, but with a bound of 0 only the number 0 becomes 0, so nothing is selected."""
    return gate(op, grad, saved, bound) if bound else Cotangent(op(unwrap(grad), unwrap(saved), bound), mask_of(grad))


@rule("threshold_backward")
def threshold_backward(op: Any, grad: Any, saved: Any, bound: Any) -> Any:
    """The same as `gate`, with the mask from one comparison. A NaN counts."""
    mask = (unwrap(saved) <= bound).logical_not_()
    return Cotangent(op(unwrap(grad), unwrap(saved), bound), both(mask, mask_of(grad)))


@rule("hardsigmoid_backward", "hardtanh_backward")
def gate(op: Any, grad: Any, saved: Any, *bounds: Any) -> Any:
    """The relu family: where the derivative is 0, the forward pass selected a constant. It passed NaN on."""
    value = op(unwrap(grad), unwrap(saved), *bounds)
    ones = torch.ones((), dtype=value.dtype, device=value.device).expand(value.shape)
    opened = (op(ones, unwrap(saved), *bounds) != 0) | unwrap(saved).isnan()
    return Cotangent(value, both(opened, mask_of(grad)))


@rule("_fake_quantize_learnable_per_channel_affine_backward", "_fake_quantize_learnable_per_tensor_affine_backward")
def fake_quantized(op: Any, grad: Any, values: Tensor, scale: Tensor, zero: Tensor, *how: Any) -> Any:
    """An element is ignored if the forward pass clipped it to a bound, as it does with NaN.

    There is a scale for each channel, or one for the tensor.
    """
    exact = op(unwrap(grad), values, scale, zero, *how)
    opened = op(torch.ones_like(values), values, scale, zero, *how)[0] != 0
    mask = mask_of(grad)
    if "per_channel" in op._schema.name:
        used = anywhere(full(mask, values), [d for d in range(values.dim()) if d != how[0] % values.dim()])
    else:
        used = anywhere(full(mask, values)).expand(scale.shape)
    return zero_ignored(exact[0], both(opened, mask)), zero_ignored(exact[1], used), zero_ignored(exact[2], used)
