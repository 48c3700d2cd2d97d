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
from ...masks.mask import Mask, anywhere, full, only, reduced
from ...masks.numbers import all_finite, finite_part, has_nan, is_number, is_sparse, total
from ..conditions import FINITE
from ..graph import run
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
Meeting = Callable[[Tensor, Tensor], bool]


def bilinear(apply: Apply, grad: Cotangent, saved: Tensor, never_meet: Meeting | None = None) -> Tensor:
    """The value of `apply(grad, saved)`, without the ignored elements.

    If an element of `apply(grad.value, saved)` is finite, it has the same bits here. `never_meet(mask, saved)` is an
    optional cheap test: True if no used element is multiplied by NaN or inf.
    """
    if type(saved) is Cotangent:
        return product_of_two(apply, grad, saved).value
    if grad.mask is None or all_finite(saved):
        return apply(grad.value, saved)
    if never_meet is not None and never_meet(grad.mask, saved):
        return _with_finite_part(apply, grad.value, saved)
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
    not_finite = saved.isfinite().logical_not_()
    counting = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else grad.dtype  # half underflows
    met = apply(mask.to(counting), not_finite.to(counting)) != 0
    if not bool(met.any()):
        return _with_finite_part(apply, grad, saved)
    back = _put_back(apply, grad, mask, saved, met, counting)
    if not back.is_complex() and bool(back.isnan().all()):  # as after a whole row of NaN
        return back
    part = grad if all_finite(grad) else finite_part(grad)  # products with the rest of it are in `back`
    value = _with_finite_part(apply, part, saved)
    return torch.where(back == 0, value, value + back)  # not value + back alone: -0.0 + 0.0 is 0.0


def _put_back(apply: Apply, grad: Tensor, used: Tensor, saved: Tensor, met: Tensor, counting: torch.dtype) -> Tensor:
    """NaN, inf or -inf for each result in which a used factor is not finite; 0 for the others.

    Args:
        apply, grad, saved: the product and its factors.
        used: the elements of `grad` that count.
        met: the results in which a used element meets a saved one that is not finite.
        counting: the dtype in which masks are multiplied.
    """

    def meet(left: Tensor, right: Tensor) -> Tensor:
        return apply(left.to(counting), right.to(counting)) != 0

    grad_not_finite = grad.isfinite().logical_not_()
    if grad.is_complex() or not (bool(saved.isinf().any()) or bool(grad.isinf().any())):  # NaN alone: few products
        is_enough = bool(met.all()) or not bool(grad_not_finite.any())
        nan = met if is_enough else met | meet(grad_not_finite, torch.ones_like(saved))
        return torch.zeros(nan.shape, dtype=grad.dtype, device=nan.device).masked_fill_(nan, torch.nan)
    up, down = saved == torch.inf, saved == -torch.inf
    nan = meet(used, saved.isnan()) | meet(used & (grad == 0), up | down)
    positive, negative = grad > 0, grad < 0
    to_inf = meet(positive, up) | meet(negative, down)
    to_minus_inf = meet(positive, down) | meet(negative, up)
    if bool(grad_not_finite.any()):
        nan |= meet(grad.isnan(), torch.ones_like(saved)) | meet(grad.isinf(), saved == 0)
        up, down = grad == torch.inf, grad == -torch.inf
        to_inf |= meet(up, saved > 0) | meet(down, saved < 0)
        to_minus_inf |= meet(up, saved < 0) | meet(down, saved > 0)
    result = torch.zeros(nan.shape, dtype=grad.dtype, device=nan.device)
    result.masked_fill_(to_inf, torch.inf).masked_fill_(to_minus_inf, -torch.inf)
    return result.masked_fill_(nan | (to_inf & to_minus_inf), torch.nan)


# Products of two cotangents, in gradients of gradients: one arrives, and the pass before saved the other. A term counts
# if both of its factors count.


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


def uses_base(node: Any) -> bool:
    """True if the base is used, or needs no gradient."""
    return not ignores_base(node)


@derivative(
    "Addbmm Addmm Addmv Addr Baddbmm",
    selects=lambda node: ignores_base(node) or has_sparse_factor(node),
    derivative_if=ignores_base,
    safe_if=FINITE,
    scalars=("alpha", "beta"),
    only_if=uses_base,  # 0 times an infinite cotangent is NaN
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


@transfer("Bmm Mm", only_if=lambda node: not has_sparse_factor(node))
def _product(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    """Each row of the first factor goes into a row of the result, each column of the second into a column."""
    if mask is None:
        return None, None
    rows, columns = results
    return (
        None if rows is None else anywhere(mask, -1, keepdim=True).expand(rows.shape),
        None if columns is None else anywhere(mask, -2, keepdim=True).expand(columns.shape),
    )


@transfer("Addmm Baddbmm", only_if=lambda node: uses_base(node) and not has_sparse_factor(node))
def _added_product(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    base, *factors = results
    added = mask if mask is None or base is None else reduced(mask, base.shape)
    return (added, *_product(node, grad, mask, factors))
