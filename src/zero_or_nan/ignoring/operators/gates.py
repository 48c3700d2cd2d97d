"""Functions that compare a number with a bound, or with another number, and select one of them.

The number that was not selected is ignored. NaN compares with nothing: relu(NaN) is NaN. NaN was handed on, not left
out, so it counts:

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

from ..conditions import ALWAYS, MODERATE
from ..cotangent import Cotangent, mask_of, unwrap, zero_ignored
from ..masks import Mask, anywhere, both, full
from ..registry import function, rule, transfer

function("Hardshrink Hardtanh Maximum Minimum NanToNum Relu Softshrink Threshold", selects=True, safe_if=ALWAYS)
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


@transfer("Relu", reads=("_raw_saved_result",))
def _relu(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    """Open above 0, and at NaN, which it has handed on."""
    return (both(node._saved_result.bool(), mask),)


@rule("hardshrink_backward", "softshrink_backward")
def shrunk(op: Any, grad: Any, saved: Any, bound: Any) -> Any:
    """As `gate`; but where what is shrunk to 0 is the number 0 alone, there is nothing to select."""
    return gate(op, grad, saved, bound) if bound else Cotangent(op(unwrap(grad), unwrap(saved), bound), mask_of(grad))


@rule("threshold_backward")
def threshold_backward(op: Any, grad: Any, saved: Any, bound: Any) -> Any:
    """As `gate`, told at once: it is open at NaN too."""
    mask = (unwrap(saved) <= bound).logical_not_()
    return Cotangent(op(unwrap(grad), unwrap(saved), bound), both(mask, mask_of(grad)))


@rule("hardsigmoid_backward", "hardtanh_backward")
def gate(op: Any, grad: Any, saved: Any, *bounds: Any) -> Any:
    """The relu family: the forward pass selected a constant where the derivative is 0. NaN it has handed on."""
    value = op(unwrap(grad), unwrap(saved), *bounds)
    ones = torch.ones((), dtype=value.dtype, device=value.device).expand(value.shape)
    opened = (op(ones, unwrap(saved), *bounds) != 0) | unwrap(saved).isnan()
    return Cotangent(value, both(opened, mask_of(grad)))


@rule("_fake_quantize_learnable_per_channel_affine_backward", "_fake_quantize_learnable_per_tensor_affine_backward")
def fake_quantized(op: Any, grad: Any, values: Tensor, scale: Tensor, zero: Tensor, *how: Any) -> Any:
    """Closed where the forward pass clipped to a bound, as it does NaN. The scale is a channel's, or that of all."""
    exact = op(unwrap(grad), values, scale, zero, *how)
    opened = op(torch.ones_like(values), values, scale, zero, *how)[0] != 0
    mask = mask_of(grad)
    if "per_channel" in op._schema.name:
        used = anywhere(full(mask, values), [d for d in range(values.dim()) if d != how[0] % values.dim()])
    else:
        used = anywhere(full(mask, values)).expand(scale.shape)
    return zero_ignored(exact[0], both(opened, mask)), zero_ignored(exact[1], used), zero_ignored(exact[2], used)
