"""Bilinear operators: each result sums products of a cotangent's elements with saved ones.

A saved NaN or inf is set aside, so that ignored elements meet only finite numbers; then what used elements would have
met among those set aside is put back as plain PyTorch would give it: inf, -inf or NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..conditions import FINITE
from ..cotangent import Cotangent, has_nan, mask_of, nothing, prefer_exact, unwrap, wrap, write_over_nan
from ..graph import run
from ..masks import Mask, anywhere, core, extent, full, only
from ..registry import derivative, rule
from ..sparse import has_sparse_factor, is_sparse
from .sparse import sparse_product
from .two_cotangents import product_of_two

Apply = Callable[[Tensor, Tensor], Tensor]
Meeting = Callable[[Tensor, Tensor], bool]


def bilinear(apply: Apply, grad: Cotangent, saved: Tensor, never_meet: Meeting | None = None) -> Tensor:
    """The value of `apply(grad, saved)`, ignored elements skipped.

    Where `apply(grad.value, saved)` is finite the bits are the same. `never_meet`, where there is a cheap one, tells
    from what is used and what was saved that no used element is multiplied with NaN or inf.
    """
    if type(saved) is Cotangent:
        return product_of_two(apply, grad, saved).value
    if grad.mask is None or all_finite(saved):
        return apply(grad.value, saved)
    if never_meet is not None and never_meet(grad.mask, saved):
        return _with_finite_part(apply, grad.value, saved)[0]
    return _set_aside(apply, grad.value, grad.mask, saved)


def _with_finite_part(apply: Apply, grad: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
    """The value without what is not finite, and what was saved without it."""
    cleaned = finite_part(saved)
    value = apply(grad, cleaned)
    if cleaned.stride() != saved.stride():  # another layout may take another kernel, and round differently
        exact = apply(grad, saved)
        value = torch.where(exact.isfinite(), exact, value)
    return value, cleaned


def _set_aside(apply: Apply, grad: Tensor, mask: Tensor, saved: Tensor) -> Tensor:
    """The value where used elements may meet what is not finite."""
    value, cleaned = _with_finite_part(apply, grad, saved)
    aside = saved.isfinite().logical_not_()
    counting = torch.float32 if value.dtype in (torch.float16, torch.bfloat16) else value.dtype  # halves underflow
    if not apply(mask.to(counting), aside.to(counting)).any():
        return value
    back = _put_back(apply, grad, mask, saved, counting)
    if not all_finite(grad):  # inf times what was set aside is put back, too
        value = apply(finite_part(grad), cleaned)
    return torch.where(back == 0, value, value + back)  # -0.0 + 0.0 is 0.0


def finite_part(saved: Tensor) -> Tensor:
    """A tensor's finite elements, and 0; in memory as it was, where that is possible."""
    small = core(saved)
    finite = small.nan_to_num(0.0, 0.0, 0.0) if not saved.is_complex() else small.where(small.isfinite(), 0)
    if finite.stride() != small.stride() and extent(small) >= small.numel():
        finite = small.new_empty_strided(small.size(), small.stride()).copy_(finite)
    return finite if small is saved else finite.expand(saved.shape)


def _put_back(apply: Apply, grad: Tensor, used: Tensor, saved: Tensor, counting: torch.dtype) -> Tensor:
    """What the used elements give that are not finite, or meet one that is not: NaN, inf, -inf, and 0 elsewhere."""

    def meet(left: Tensor, right: Tensor) -> Tensor:
        return apply(left.to(counting), right.to(counting)) != 0

    strange, aside = grad.isfinite().logical_not_(), saved.isfinite().logical_not_()
    if grad.is_complex():
        return torch.where(meet(used, aside) | meet(strange, torch.ones_like(aside)), torch.nan, 0.0)
    up, down = saved == torch.inf, saved == -torch.inf
    nan = meet(used, saved.isnan()) | meet(used & (grad == 0), up | down)
    positive, negative = grad > 0, grad < 0
    to_inf = meet(positive, up) | meet(negative, down)
    to_minus_inf = meet(positive, down) | meet(negative, up)
    if bool(strange.any()):
        nan |= meet(grad.isnan(), torch.ones_like(aside)) | meet(grad.isinf(), saved == 0)
        up, down = grad == torch.inf, grad == -torch.inf
        to_inf |= meet(up, saved > 0) | meet(down, saved < 0)
        to_minus_inf |= meet(up, saved < 0) | meet(down, saved > 0)
    result = torch.zeros(nan.shape, dtype=grad.dtype, device=nan.device)
    result.masked_fill_(to_inf, torch.inf).masked_fill_(to_minus_inf, -torch.inf)
    return result.masked_fill_(nan | (to_inf & to_minus_inf), torch.nan)


def all_finite(saved: Tensor) -> bool:
    """Whether all elements are finite, and so is their sum: NaN and inf get into it."""
    return _is_finite(_sum(saved))


def _sum(saved: Tensor, *dim: int) -> Tensor:
    wide = torch.float32 if saved.dtype in (torch.float16, torch.bfloat16) else None  # halves overflow
    return saved.sum(dim, dtype=wide) if dim else saved.sum(dtype=wide)


def _is_finite(number: Tensor) -> bool:
    value = number.item()
    return bool(value - value == 0)


def without_lost_samples(mask: Mask, saved: Tensor) -> Tensor:
    """What was saved of a batch, harmless where only samples that are ignored altogether are not finite."""
    if mask is None or all_finite(saved):
        return saved
    used = anywhere(mask, list(range(1, mask.dim())))
    lost_alone = _is_finite(only(used, _sum(saved, *range(1, saved.dim()))).sum())
    cleaned = finite_part(saved) if lost_alone else saved
    return cleaned if cleaned.stride() == saved.stride() else saved


@rule("mm", "bmm", "mv", "dot", "vdot")
def matrix_product(op: Any, a: Any, b: Any) -> Any:
    """One factor is the cotangent; the mask is its own, reduced over what is summed."""
    if is_sparse(unwrap(a)) or is_sparse(unwrap(b)):
        return sparse_product(op, a, b)
    if type(a) is Cotangent and type(b) is Cotangent:
        return product_of_two(op, a, b)
    left, right = unwrap(a), unwrap(b)
    vector = right.dim() == 1
    shape = (*left.shape[:-1], right.shape[-1]) if not vector else tuple(left.shape[:-1])
    if type(a) is Cotangent:
        mask = a.mask
        if mask is not None:
            mask = anywhere(mask, -1, keepdim=not vector).expand(shape)
        return Cotangent(_by_matrix(op, a, right), mask)
    mask = b.mask
    if mask is not None:
        mask = (anywhere(mask, -1) if vector else anywhere(mask, -2, keepdim=True)).expand(shape)
    return Cotangent(_by_matrix(lambda grad, saved: op(saved, grad), b, left, True), mask)


def _by_matrix(apply: Apply, grad: Cotangent, saved: Tensor, saved_is_first: bool = False) -> Tensor:
    """`bilinear` for a matrix product: a used element meets a row of the second factor, a column of the first."""
    mask = grad.mask
    if mask is None:
        return bilinear(apply, grad, saved)
    along, across = (-2, -1) if saved_is_first else (-1, -2)  # what is summed over lies along this in the cotangent
    sums = saved if saved.dim() == 1 else _sum(saved, along)
    if _is_finite(sums.sum()):
        return apply(grad.value, saved)
    used = mask if mask.dim() == 1 else anywhere(mask, across)
    if not _is_finite(only(used, sums).sum()):
        return _set_aside(apply, grad.value, mask, saved)
    places = _places_alone(used, sums, grad.value, saved, across)
    if places is not None:
        return apply(taken(grad.value, places, along), taken(saved, places, across))
    return _with_finite_part(apply, grad.value, saved)[0]


def _places_alone(used: Tensor, sums: Tensor, grad: Tensor, saved: Tensor, across: int) -> Tensor | None:
    """What alone is to be summed over where plain PyTorch's product is NaN throughout: there no bits are to be kept.

    It is, where one of the lost rows holds no finite number.
    """
    if not saved.dim() == grad.dim() == 2 or grad.numel() * saved.numel() <= CHEAP * len(used):
        return None
    places = used.nonzero()[:, 0]
    if len(places) > MOST * len(used):
        return None
    lost = (sums - sums != 0).nonzero()[:1, 0]  # none where it is their sum that overflows
    return places if len(lost) and not bool(saved.index_select(across, lost).isfinite().any()) else None


def taken(tensor: Tensor, places: Tensor, dim: int = 0) -> Tensor:
    """Some of a tensor's rows, or of what lies along another dimension, laid out in memory as all of them were."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).index_select(order.index(dim % tensor.dim()), places).permute(back)


@rule("addmm", "baddbmm", "addbmm", "addmv", "addr")
def added_product(op: Any, base: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """A product and a sum, both with rules of their own."""
    multiply: dict[str, Any] = {"addmm": torch.mm, "baddbmm": torch.bmm, "addmv": torch.mv, "addr": torch.outer}
    name = op._schema.name.removeprefix("aten::")
    exact = op(unwrap(base), unwrap(a), unwrap(b), beta=beta, alpha=alpha)
    product = multiply[name](a, b) if name in multiply else torch.bmm(a, b).sum(0)
    return prefer_exact(exact, torch.add(torch.mul(base, beta), torch.mul(product, alpha)))


def ignores_base(node: Any) -> bool:
    """Whether a sum with a product leaves its base out: PyTorch documents that it is not read for beta=0."""
    return bool(node._saved_beta == 0) and node.next_functions[0][0] is not None


def uses_base(node: Any) -> bool:
    """Whether it does not, or the base has no gradient anyway."""
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
    """PyTorch's own formula, but nothing goes back to a base that was ignored."""
    base, *factors = run(node, *grads)
    return nothing(base), *factors


@rule("_trilinear")
def trilinear(
    op: Any, a: Any, b: Any, c: Any, expand1: Any, expand2: Any, expand3: Any, summed: Any, *args: Any, **kwargs: Any
) -> Any:
    """The derivatives of a bilinear layer: three factors, multiplied where they overlap, then summed."""
    exact = op(unwrap(a), unwrap(b), unwrap(c), expand1, expand2, expand3, summed, *args, **kwargs)
    if all(mask_of(factor) is None for factor in (a, b, c)):
        return Cotangent(exact)
    return prefer_exact(exact, (_expanded(a, expand1) * _expanded(b, expand2) * _expanded(c, expand3)).sum(summed))


def repair_products(node: Any, grad: Tensor, mask: Tensor, results: Sequence[Any]) -> None:
    """Both products of `Mm` and `Addmm` once more where plain PyTorch's have NaN."""
    to_first, to_second = results[-2:]
    if to_first is not None and has_nan(to_first):
        first = _without_lost_rows(grad, mask, node._saved_mat2.t())
        write_over_nan(to_first, first)
    if to_second is not None and has_nan(to_second):
        saved = node._saved_mat1 if len(results) == 3 else node._saved_self
        second = _without_lost_rows(grad.t(), mask.t(), saved)
        write_over_nan(to_second, second.t())


def _without_lost_rows(grad: Tensor, mask: Tensor, saved: Tensor) -> Tensor:
    """A product without the rows of what was saved that only ignored elements meet; else NaN and inf are set aside."""
    value = torch.mm(grad, only(anywhere(mask, -2).unsqueeze(-1), saved))
    return _by_matrix(torch.mm, Cotangent(grad, mask), saved) if has_nan(value) else value


CHEAP = 1 << 20
"""Products of elements, up to which a matrix product costs less than that Python finds it."""

MOST = 0.75
"""The part of the rows up to which it pays to multiply them alone."""


def is_cheap(node: Any) -> bool:
    """Whether a second product costs next to nothing."""
    if getattr(node, "_saved_alpha", 1) != 1 or getattr(node, "_saved_beta", 1) != 1:
        return False
    shape = node._input_metadata[0].shape
    others = getattr(node, "_saved_mat1_sym_sizes", None) or node._saved_self_sym_sizes
    return bool(shape[0] * shape[1] * others[1] <= CHEAP)


def _expanded(factor: Any, dims: Any) -> Any:
    for dim in sorted(dims):
        factor = factor.unsqueeze(dim)
    return factor


@rule("convolution_backward", "convolution_backward_overrideable")
def convolution_backward(op: Any, grad: Any, saved: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Two bilinear operators and a sum: the gradients of input, weight and bias."""
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
        return _convolution_of_two(exact, grad, saved, weight, to_input, to_weight, wanted)
    mask = full(grad.mask, grad.value)
    results: list[Any] = list(wrap(exact))
    if wanted[0]:
        # One channel a group, and a kernel of ones: does any entry that counts reach there? Halves would underflow.
        n, channels, *space = mask.shape
        reach = anywhere(mask.reshape(n, groups, channels // groups, *space), 2).float()
        ones = torch.ones((groups, 1, *weight.shape[2:]), dtype=reach.dtype, device=reach.device)
        reached = to_input(reach, ones) > 0.5
        members = saved.shape[1] // groups
        reached = reached.expand(saved.shape) if groups == 1 else reached.repeat_interleave(members, 1)
        value = exact[0] if not has_nan(exact[0]) else _repaired(exact[0], bilinear(to_input, grad, weight))
        results[0] = Cotangent(value, reached)
    if grad.mask is None:
        return tuple(results)
    if wanted[1]:
        channel = anywhere(mask, [0, *range(2, mask.dim())])
        shape = weight.shape
        if transposed:
            channel = channel.reshape(groups, 1, -1).expand(groups, shape[0] // groups, shape[1]).reshape(shape[:2])
        channel = channel.reshape(*channel.shape, *(1,) * (weight.dim() - channel.dim())).expand(shape)
        value = exact[1] if not has_nan(exact[1]) else _repaired(exact[1], bilinear(to_weight, grad, saved))
        results[1] = Cotangent(value, channel)
    if wanted[2]:
        results[2] = Cotangent(exact[2], anywhere(mask, [0, *range(2, mask.dim())]))
    return tuple(results)


def _convolution_of_two(
    exact: Any, grad: Cotangent, saved: Any, weight: Any, to_input: Apply, to_weight: Apply, wanted: Any
) -> Any:
    """The same of a cotangent that was saved."""
    careful = [
        product_of_two(to_input, grad, weight) if wanted[0] else None,
        product_of_two(to_weight, grad, saved) if wanted[1] else None,
        grad.sum([0, *range(2, grad.dim())]) if wanted[2] else None,
    ]
    return tuple(e if c is None else prefer_exact(e, c) for e, c in zip(exact, careful, strict=True))


def _convolution(args: Any) -> Any:
    """The arguments after the weight; `convolution_backward_overrideable` has no sizes of a bias."""
    return args if len(args) == 8 else (None, *args)


def _repaired(exact: Tensor, careful: Tensor) -> Tensor:
    return torch.where(exact.isfinite(), exact, careful)
