"""Bilinear operators: each result is a sum of products of a cotangent's elements with saved elements.

In y = a @ b, the gradient by b is aᵀ @ g. Let the loss use the first row of y alone, so g = (3, 0):

    to b[0]: a[0, 0]·3 + a[1, 0]·0
    to b[1]: a[0, 1]·3 + a[1, 1]·0

If a[1, 0] is NaN, plain PyTorch's first sum is NaN, though y[1] was never used. The rules replace the saved NaN by 0,
so that an ignored element meets only finite numbers. The kernel stays the same, and adding 0·0 changes no bit:

>>> from zero_or_nan.ignoring import Cotangent
>>> a = torch.tensor([[1.0, 2.0], [torch.nan, 4.0]])
>>> g = Cotangent(torch.tensor([[3.0], [0.0]]), mask=torch.tensor([[True], [False]]))
>>> (a.t() @ g.value).tolist(), (a.t() @ g).value.tolist()
([[nan], [6.0]], [[3.0], [6.0]])

If a used element meets a saved NaN or infinity, the result that plain PyTorch gives is put back: NaN, inf or -inf.

>>> everything = Cotangent(torch.tensor([[3.0], [0.0]]), mask=torch.tensor([[True], [True]]))
>>> (a.t() @ everything).value.tolist()
[[nan], [6.0]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import Cotangent, is_finite, mask_of, nothing, prefer_exact, unwrap
from ...masks.mask import Mask, anywhere, full, only
from ...masks.numbers import all_finite, finite_part, has_nan, is_number, is_sparse, total
from ..conditions import FINITE
from ..graph import can_be_read_again, run
from ..numerics import numerics
from ..registry import derivative, function, rule, transfer
from .sparse import has_sparse_factor, sparse_product

function("Dot", safe_if=FINITE)
function("Bmm Mm Mv", selects=has_sparse_factor, safe_if=FINITE)

numerics("mm bmm mv dot", grows=True, products=True)
numerics("addmm baddbmm", grows=True, products=True)
numerics("addbmm addmv addr", products=True)
numerics("linear", grows=True, products=True, section="slicing-nan")
numerics("matmul=__matmul__=__rmatmul__", products=True, section="slicing-nan")

Apply = Callable[[Tensor, Tensor], Tensor]


def bilinear(apply: Apply, grad: Cotangent, saved: Tensor) -> Tensor:
    """The value of `apply(grad, saved)`, without the ignored elements.

    If an element of `apply(grad.value, saved)` is finite, it has the same bits here.
    """
    if type(saved) is Cotangent:
        return product_of_two(apply, grad, saved).value
    if grad.mask is None or all_finite(saved):
        return apply(grad.value, saved)
    return _set_aside(apply, grad.value, grad.mask, saved)


def _with_finite_part(apply: Apply, grad: Tensor, saved: Tensor) -> Tensor:
    """The value with 0 in place of each saved element that is not finite."""
    cleaned = finite_part(saved)
    value = apply(grad, cleaned)
    if cleaned.stride() != saved.stride():  # other strides may choose another kernel, which rounds differently
        exact = apply(grad, saved)
        value = torch.where(exact.isfinite(), exact, value)
    return value


def _set_aside(apply: Apply, grad: Tensor, mask: Tensor, saved: Tensor) -> Tensor:
    """The value if used elements may meet saved elements that are not finite."""
    back = _put_back(apply, grad, saved, mask, torch.ones_like(saved, dtype=torch.bool))
    if not bool(back.any()):
        return _with_finite_part(apply, grad, saved)
    if not back.is_complex() and bool(back.isnan().all()):  # as after a whole row of NaN
        return back
    part = grad if all_finite(grad) else finite_part(grad)  # products with the rest of it are in `back`
    return _both(_with_finite_part(apply, part, saved), back)


def _both(value: Tensor, back: Tensor) -> Tensor:
    """The value plus what is put back. Not by a sum alone: -0.0 + 0.0 is 0.0."""
    return torch.where(back == 0, value, value + back)


def _put_back(apply: Apply, a: Tensor, b: Tensor, used_a: Tensor, used_b: Tensor) -> Tensor:
    """NaN, inf or -inf for each result in which a factor that counts is not finite; 0 for the others."""
    counting = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype  # half underflows

    def meet(of_a: Tensor, of_b: Tensor) -> Tensor:
        """The results in which elements of two kinds meet, and both count."""
        return apply((used_a & of_a).to(counting), (used_b & of_b).to(counting)) != 0

    bad_a, bad_b = a.isfinite().logical_not_(), b.isfinite().logical_not_()
    nan = meet(used_a, bad_b)
    if bool((bad_a & used_a).any()):
        nan |= meet(bad_a, used_b)
    result = torch.zeros(nan.shape, dtype=a.dtype, device=nan.device)
    if a.is_complex() or not bool(nan.any()) or not (bool(a.isinf().any()) or bool(b.isinf().any())):
        return result.masked_fill_(nan, torch.nan)
    nan = meet(used_a, b.isnan()) | meet(a.isnan(), used_b) | meet(a == 0, b.isinf()) | meet(a.isinf(), b == 0)
    signs: list[Tensor] = []
    for infinite in (torch.inf, -torch.inf):
        found = meet(a > 0, b == infinite) | meet(a < 0, b == -infinite)
        signs.append(found | meet(a == infinite, b > 0) | meet(a == -infinite, b < 0))
    up, down = signs
    return result.masked_fill_(up, torch.inf).masked_fill_(down, -torch.inf).masked_fill_(nan | up & down, torch.nan)


# Products of two cotangents, in gradients of gradients: one arrives, and the pass before saved the other. A term counts
# if both of its factors count.


def product_of_two(apply: Apply, a: Any, b: Any) -> Cotangent:
    """The bilinear `apply` of two factors. One or both are cotangents. Ignored times NaN or inf is ignored."""
    value = apply(unwrap(a), unwrap(b))
    if mask_of(a) is None and mask_of(b) is None:
        return Cotangent(value)
    (of_a, used_a), (of_b, used_b) = ((unwrap(factor), full(mask_of(factor), unwrap(factor))) for factor in (a, b))
    wide = torch.float64 if value.dtype in (torch.float64, torch.complex128) else torch.float32
    mask = apply(used_a.to(wide), used_b.to(wide)) != 0
    if not is_finite(value):
        finite_a, finite_b = (x.masked_fill(x.isfinite().logical_not(), 0) for x in (of_a, of_b))
        back = _put_back(apply, of_a, of_b, used_a, used_b)
        value = torch.where(value.isfinite(), value, _both(apply(finite_a, finite_b), back))
    return Cotangent(value, mask)


def without_lost_samples(mask: Mask, saved: Tensor) -> Tensor:
    """The saved batch, with finite numbers alone if all samples with NaN or inf are ignored as a whole."""
    if mask is None or all_finite(saved):
        return saved
    used = anywhere(mask, list(range(1, mask.dim())))
    only_ignored = is_number(only(used, total(saved, *range(1, saved.dim()))).sum())
    cleaned = finite_part(saved) if only_ignored else saved
    return cleaned if cleaned.stride() == saved.stride() else saved


@rule("mm", "bmm", "mv", "dot", "vdot")
def matrix_product(op: Any, a: Any, b: Any) -> Any:
    """One factor is the cotangent. The mask is the cotangent's, reduced over the summed dimension."""
    if is_sparse(unwrap(a)) or is_sparse(unwrap(b)):
        return sparse_product(op, a, b)
    if type(a) is Cotangent and type(b) is Cotangent:
        return product_of_two(op, a, b)
    is_first = type(a) is Cotangent
    grad, saved = (a, unwrap(b)) if is_first else (b, unwrap(a))
    value = _by_matrix(op if is_first else lambda grad, saved: op(saved, grad), grad, saved, not is_first)
    mask = grad.mask
    if mask is not None:
        summed = -1 if is_first or mask.dim() == 1 else -2
        mask = anywhere(mask, summed, keepdim=mask.dim() == value.dim()).expand(value.shape)
    return Cotangent(value, mask)


def _by_matrix(apply: Apply, grad: Cotangent, saved: Tensor, saved_is_first: bool = False) -> Tensor:
    """`bilinear` for a matrix product, with quick tests: a row (or column) of `saved` is used or ignored as a whole.

    If `saved_is_first`, the product is saved @ grad, else grad @ saved.
    """
    mask = grad.mask
    if mask is None:
        return bilinear(apply, grad, saved)
    along, across = (-2, -1) if saved_is_first else (-1, -2)  # the summed dimension in the cotangent, and in `saved`
    sums = saved if saved.dim() == 1 else total(saved, along)
    if is_number(sums.sum()):  # all of `saved` is finite
        return apply(grad.value, saved)
    used = mask if mask.dim() == 1 else anywhere(mask, across)
    if not is_number(only(used, sums).sum()):  # a used element meets NaN or inf
        return _set_aside(apply, grad.value, mask, saved)
    places = _places_alone(used, sums, grad.value, saved, across)
    if places is not None:
        return apply(taken(grad.value, places, along), taken(saved, places, across))
    return _with_finite_part(apply, grad.value, saved)


def _places_alone(used: Tensor, sums: Tensor, grad: Tensor, saved: Tensor, across: int) -> Tensor | None:
    """The indices that have to be summed over, if plain PyTorch's product is NaN everywhere; else None.

    Then no bits have to be kept, so the sum may leave the others out. The product is NaN everywhere if one of the
    ignored rows has no finite number.
    """
    if not saved.dim() == grad.dim() == 2 or grad.numel() * saved.numel() <= CHEAP * len(used):
        return None
    places = used.nonzero()[:, 0]
    if len(places) > MOST * len(used):
        return None
    lost = (sums - sums != 0).nonzero()[:1, 0]  # empty if no row is lost, and only the sum of the sums overflows
    return places if len(lost) and not bool(saved.index_select(across, lost).isfinite().any()) else None


def taken(tensor: Tensor, places: Tensor, dim: int = 0) -> Tensor:
    """Some of a tensor's rows, or of the slices along another dimension. The dimensions keep their order in memory.

    Expanded dimensions, which have no place in memory, come first: kernels want the last dimension to be contiguous.
    """
    order = sorted(range(tensor.dim()), key=lambda dim: tensor.stride(dim) or math.inf, reverse=True)
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).index_select(order.index(dim % tensor.dim()), places).permute(back)


@rule("addmm", "baddbmm", "addbmm", "addmv", "addr")
def added_product(op: Any, base: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """By a product and a sum, which have their own rules."""
    multiply: dict[str, Any] = {"addmm": torch.mm, "baddbmm": torch.bmm, "addmv": torch.mv, "addr": torch.outer}
    name = op._schema.name.removeprefix("aten::")
    exact = op(unwrap(base), unwrap(a), unwrap(b), beta=beta, alpha=alpha)
    product = multiply[name](a, b) if name in multiply else torch.bmm(a, b).sum(0)
    return prefer_exact(exact, torch.add(torch.mul(base, beta), torch.mul(product, alpha)))


def ignores_base(node: Any) -> bool:
    """True if the base needs a gradient and is ignored: PyTorch documents that it is not read if beta is 0."""
    return bool(node._saved_beta == 0) and node.next_functions[0][0] is not None


@derivative(
    "Addbmm Addmm Addmv Addr Baddbmm",
    selects=lambda node: ignores_base(node) or has_sparse_factor(node),
    derivative_if=ignores_base,
    safe_if=FINITE,
    scalars=("alpha", "beta"),
    only_if=lambda node: not ignores_base(node),  # 0 times an infinite cotangent is NaN
)
def product_alone(node: Any, grads: Any) -> Any:
    """PyTorch's own formula, but the gradient of the base, which was ignored, is ignored."""
    base, *factors = run(node, *grads)
    return nothing(base), *factors


@rule("_trilinear")
def trilinear(
    op: Any, a: Any, b: Any, c: Any, expand1: Any, expand2: Any, expand3: Any, summed: Any, *args: Any, **kwargs: Any
) -> Any:
    """The derivatives of a bilinear layer: three factors are broadcast, multiplied and summed."""

    def multiply(*factors: Tensor) -> Any:
        return op(*factors, expand1, expand2, expand3, summed, *args, **kwargs)

    factors, masks = unwrap([a, b, c]), [mask_of(factor) for factor in (a, b, c)]
    exact = multiply(*factors)
    if all(mask is None for mask in masks):
        return Cotangent(exact)
    counts = [full(mask, factor).to(factor.dtype) for mask, factor in zip(masks, factors, strict=True)]
    careful = Cotangent(multiply(*map(finite_part, factors)), multiply(*counts) != 0)

    def meets_used(place: int) -> bool:
        not_finite = factors[place].isfinite().logical_not().to(factors[place].dtype)
        return bool((multiply(*counts[:place], not_finite, *counts[place + 1 :]) != 0).any())

    if has_nan(careful.value) or any(not all_finite(f) and meets_used(place) for place, f in enumerate(factors)):
        careful = (_expanded(a, expand1) * _expanded(b, expand2) * _expanded(c, expand3)).sum(summed)
    return prefer_exact(exact, careful)


def _expanded(factor: Any, dims: Any) -> Any:
    """The factor with new dimensions of size 1."""
    for dim in sorted(dims):
        factor = factor.unsqueeze(dim)
    return factor


CHEAP = 1 << 20
"""Up to this number of multiplications, a matrix product costs less than Python's part of the call."""

MOST = 0.75
"""If at most this part of the rows is used, it pays to multiply these rows alone."""


def _is_cheap(node: Any) -> bool:
    """True if plain PyTorch's product and a second one cost less than the rule, which runs operator by operator."""
    if getattr(node, "_saved_alpha", 1) != 1 or getattr(node, "_saved_beta", 1) != 1:
        return False
    if not can_be_read_again(node, unknown=False):
        return False
    first, second = _factors(node)
    if first is None and second is None:  # only a bias has a gradient
        return False
    summed = first.shape[-1] if first is not None else second.shape[-2]
    return bool(math.prod(node._input_metadata[0].shape) * summed <= CHEAP)


def _factors(node: Any) -> tuple[Any, Any]:
    """The two factors of a product, as the node saved them. One that is not needed is None."""
    first, second = next(names for names in _FACTORS if hasattr(node, names[0]))
    return getattr(node, first), getattr(node, second)


_FACTORS = [(f"_saved_{a}", f"_saved_{b}") for a, b in (("mat1", "mat2"), ("batch1", "batch2"), ("self", "mat2"))]


def _products_again(node: Any, grad: Cotangent, results: Sequence[Any]) -> Sequence[Any]:
    """The gradients of the two factors, without what doesn't count, at each element that is not finite."""
    *base, to_first, to_second = results
    first, second = _factors(node)
    if to_first is not None and has_nan(to_first):
        to_first = unwrap(prefer_exact(to_first, _by_matrix(torch.matmul, grad, second.mT)))
    if to_second is not None and has_nan(to_second):
        again = _by_matrix(lambda grad, saved: saved @ grad, grad, first.mT, saved_is_first=True)
        to_second = unwrap(prefer_exact(to_second, again))
    return *base, to_first, to_second


_REPAIRED: dict[str, Any] = {"is_repaired": _is_cheap, "repair": _products_again}


@transfer("Bmm Mm", only_if=lambda node: not has_sparse_factor(node), **_REPAIRED)
def _product(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> Sequence[Mask]:
    """Each row of the first factor goes into a row of the result, each column of the second into a column."""
    return anywhere(mask, -1, keepdim=True), anywhere(mask, -2, keepdim=True)


@transfer("Addmm Baddbmm", only_if=lambda node: not ignores_base(node) and not has_sparse_factor(node), **_REPAIRED)
def _added_product(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> Sequence[Mask]:
    return mask, *_product(node, grad, mask, results)
