"""Convolutions of cotangents: what the derivatives of a convolution are differentiated to."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..cotangent import Cotangent, mask_of, prefer_exact, unwrap
from ..registry import rule
from .two_cotangents import product_of_two


@rule("convolution", "convolution_overrideable", "_convolution")
def convolution(op: Any, image: Any, kernel: Any, bias: Any, *geometry: Any, **kwargs: Any) -> Any:
    """A product of image and kernel, and a sum with the bias; each of them may be a cotangent."""
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
