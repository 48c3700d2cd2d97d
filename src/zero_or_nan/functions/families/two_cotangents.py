"""Products of two cotangents, in gradients of gradients: one arrives, and the pass before saved the other.

A term counts if both of its factors count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, is_finite, mask_of, unwrap
from ...masks.mask import full

Apply = Callable[[Any, Any], Tensor]


def product_of_two(apply: Apply, a: Any, b: Any) -> Cotangent:
    """The bilinear `apply` of two factors. One or both are cotangents. Ignored times NaN or inf is ignored."""
    value = apply(unwrap(a), unwrap(b))
    if mask_of(a) is None and mask_of(b) is None:
        return Cotangent(value)
    used_a, used_b = _counted(a), _counted(b)
    mask = apply(used_a, used_b) != 0
    if not is_finite(value):
        value = torch.where(value.isfinite(), value, _by_kind(apply, unwrap(a), unwrap(b), used_a, used_b))
    return Cotangent(value, mask)


def _counted(factor: Any) -> Tensor:
    """1 for each element that counts, and 0 for the others, in a dtype that can count many elements."""
    value = unwrap(factor)
    wide = value.dtype in (torch.float64, torch.complex128)
    return full(mask_of(factor), value).to(torch.float64 if wide else torch.float32)


def _by_kind(apply: Apply, a: Tensor, b: Tensor, used_a: Tensor, used_b: Tensor) -> Tensor:
    """Multiply the finite elements as usual. Then put back inf or NaN where used elements met the others."""
    finite_a, finite_b = (x.masked_fill(x.isfinite().logical_not(), 0) for x in (a, b))
    value = apply(finite_a, finite_b)
    back = torch.zeros_like(value)
    for sign_a, kind_a in _kinds(a):
        for sign_b, kind_b in _kinds(b):
            product = sign_a * sign_b
            if abs(product) in (0, 1):  # both are finite, so `value` has their product
                continue
            met = apply(used_a * kind_a, used_b * kind_b) != 0
            back = back + torch.where(met, product, 0.0).to(back.dtype)
    return torch.where(back == 0, value, value + back)


def _kinds(value: Tensor) -> list[tuple[float, Tensor]]:
    """The kinds of numbers in a tensor: NaN, the infinities, positive, negative, 0. Each has an example and a mask."""
    if value.is_complex():  # an infinite part meets both parts of the other factor
        return [(torch.nan, value.isfinite().logical_not()), (0.0, value.isfinite())]
    finite = value.isfinite()
    kinds = [
        (torch.nan, value.isnan()),
        (torch.inf, value == torch.inf),
        (-torch.inf, value == -torch.inf),
        (1.0, finite & (value > 0)),
        (-1.0, finite & (value < 0)),
        (0.0, value == 0),
    ]
    return [(kind, there) for kind, there in kinds if bool(there.any())]
