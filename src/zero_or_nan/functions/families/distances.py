"""Norms of vectors, and distances between all pairs of rows: the cotangent times a direction, in a sum over pairs.

For d[i, j] = |a[i] - b[j]|, the gradient by a[i] is Σ g[i, j]·(a[i] - b[j]) / d[i, j] over j. The fused kernel computes
all terms, so a NaN in an ignored b[1] reaches a[0]. With a tensor of all directions, the ignored term is left out:

>>> from zero_or_nan.ignoring import Cotangent
>>> a, b = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [torch.nan, 0.0]])
>>> g = Cotangent(torch.tensor([[1.0, 0.0]]), mask=torch.tensor([[True, False]]))
>>> torch.ops.aten._cdist_backward(g.value, a, b, 2.0, torch.cdist(a, b)).tolist()
[[nan, nan]]
>>> [round(number, 3) for number in torch.ops.aten._cdist_backward(g, a, b, 2.0, torch.cdist(a, b)).value[0].tolist()]
[0.6, 0.8]
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, prefer_exact, unwrap
from ...masks.mask import anywhere, only
from ...masks.numbers import all_finite, has_nan
from ..graph import signed
from ..numerics import numerics
from ..registry import derivative, function, rule
from ..rewrites import rewrite
from .reductions import picked_share

function("Norm", fills=("MaskedFill(Div(Norm))", "MaskedFill(Div(Pow(Norm)))"))
function("Renorm", selects=True, compares=True)
function("Dist", fills=("MaskedFill(Div(Dist))", "MaskedFill(Div(Pow(Dist)))"))
function("EuclideanDist", fills=("MaskedFill(Div(EuclideanDist))",))

aten = torch.ops.aten

_DISTANCES = "atlas#norms-and-distances"

numerics("norm", grows=True, no_direction=True, has_order=True, section="undefined", points=_DISTANCES)
numerics("linalg_vector_norm linalg_norm", grows=True, no_direction=True, has_order=True, points=_DISTANCES)
numerics("cosine_similarity cdist pdist", no_direction=True)

# PyTorch has the slope 0 at a length of 0, and its second derivative is 0 / 0 there.
for name in ("norm", "linalg_vector_norm", "linalg_norm"):
    is_zero, every = "(x == 0).all(dim, keepdim={})", "torch.linalg.vector_norm({}, dim=dim, keepdim=keepdim)"
    safe = every.format(f"x.masked_fill({is_zero.format(True)}, 1)")
    flat = "a length of 0 has the slope 0, and all further derivatives are 0"
    rewrite(f"{name}(x, dim)", f"torch.where({is_zero.format('keepdim')}, 0, {safe})", flat)
    rewrite(f"{name}(x)", "torch.where((x == 0).all(), 0, x.masked_fill((x == 0).all(), 1).norm())", flat)


def _of_largest(node: Any) -> bool:
    """True for a norm of order inf or -inf."""
    return float(node._saved_ord if hasattr(node, "_saved_ord") else node._saved_p or 2) in (math.inf, -math.inf)


@derivative(
    "LinalgVectorNorm",
    selects=_of_largest,
    derivative_if=_of_largest,
    fills=("MaskedFill(Div(LinalgVectorNorm))", "MaskedFill(Div(Pow(LinalgVectorNorm)))", "MaskedFill(Pow(Abs))"),
)
def largest_norm(node: Any, grads: Any) -> tuple[Any]:
    """The elements whose absolute value equals the norm share its cotangent. With a NaN norm, all elements do."""
    (grad, *_), x, norm = grads, node._saved_self, node._saved_result
    dims = list(range(x.dim()))
    if dims and node._saved_dim:
        dims = sorted(signed(dim) % x.dim() for dim in node._saved_dim)
    if not node._saved_keepdim:
        for dim in dims:
            grad, norm = grad.unsqueeze(dim), norm.unsqueeze(dim)
    picked = x.abs() == norm
    shared = grad / picked.sum(dims, keepdim=True) if dims else grad
    return (picked_share((shared * x.sgn()).expand(x.shape), picked, norm.expand(x.shape)),)


@rule("_cdist_backward")
def cdist_backward(op: Any, grad: Any, x1: Tensor, x2: Tensor, p: float, distance: Tensor) -> Any:
    """By the kernel, without the rows and distances that are ignored, or else by a tensor of all directions."""
    exact = op(unwrap(grad), x1, x2, p, distance)
    if grad.mask is None:
        return Cotangent(exact)
    used = anywhere(grad.mask, -1, True)
    first, second = torch.where(used, x1, 0), torch.where(anywhere(grad.mask, -2).unsqueeze(-1), x2, 0)
    if all_finite(first) and all_finite(second):
        without = op(unwrap(grad), first, second, p, only(grad.mask, distance))  # a distance of 0 has no direction
        if not has_nan(without):
            return prefer_exact(exact, Cotangent(without, used.expand(exact.shape)))
    return prefer_exact(exact, (grad.unsqueeze(-1) * _directions(x1, x2, p, distance)).sum(-2))


@rule("_pdist_backward")
def pdist_backward(op: Any, grad: Any, x: Tensor, p: float, distance: Tensor) -> Any:
    """By the kernel, as for `cdist`, or else by `cdist` of the rows with themselves, so each pair comes twice."""
    exact = op(unwrap(grad), x, p, distance)
    if grad.mask is None:
        return Cotangent(exact)
    upper = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)

    def square(entries: Tensor) -> Tensor:
        half = entries.new_zeros(upper.shape).masked_scatter_(upper, entries)
        return half + half.mT

    mask = square(grad.mask)
    used = mask.any(1, keepdim=True)
    rows = torch.where(used, x, 0)
    if all_finite(rows):
        without = op(unwrap(grad), rows, p, only(grad.mask, distance))  # a distance of 0 has no direction
        if not has_nan(without):
            return prefer_exact(exact, Cotangent(without, used.expand(exact.shape)))
    twice = Cotangent(square(grad.value), mask)
    return prefer_exact(exact, cdist_backward(aten._cdist_backward.default, twice, x, x, p, square(distance)))


def _directions(x1: Tensor, x2: Tensor, p: float, distance: Tensor) -> Tensor:
    """The derivative of each pair's distance by its first row. It is 0 for a row and itself, as in PyTorch."""
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    sign = torch.where(difference.isnan(), difference, difference.sign())  # PyTorch's sign of NaN is 0
    distance = distance.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(difference)
    size = difference.abs()
    if math.isinf(p):
        return sign * (1 - (size - distance).abs().ceil().clamp(max=1))  # PyTorch's formula; NaN if both are inf
    direction = sign if p == 1 else sign * size ** (p - 1) / distance ** (p - 1)
    return torch.where((distance == 0) | (size == 0) & (p < 1), torch.zeros_like(direction), direction)
