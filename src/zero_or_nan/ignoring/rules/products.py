"""Bilinear operators: each result sums products of a cotangent's entries with saved ones.

A saved NaN or inf is set aside, so that ignored entries meet only finite numbers; then whatever used entries would have
met among those set aside is put back as plain PyTorch would give it: inf, -inf or NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, has_nan, mask_of, merge, plain, wrapped
from ..masks import anywhere, full
from ..registry import NotFollowed, rule
from .two_cotangents import product_of_two

Apply = Callable[[Tensor, Tensor], Tensor]
Meeting = Callable[[Tensor, Tensor], bool]


def bilinear(apply: Apply, grad: Cotangent, saved: Tensor, never_meet: Meeting | None = None) -> Tensor:
    """The value of `apply(grad, saved)`, ignored entries skipped.

    Where `apply(grad.value, saved)` is finite the bits are the same. `never_meet`, where there is a cheap one, tells
    from what is used and what was set aside that no used entry is multiplied with anything set aside.
    """
    if type(saved) is Cotangent:
        return product_of_two(apply, grad, saved).value
    if grad.mask is None or all_finite(saved):
        return apply(grad.value, saved)
    aside = saved.isfinite().logical_not_()
    finite = saved.clone().masked_fill_(aside, 0)
    value = apply(grad.value, finite)
    if finite.stride() != saved.stride():  # another layout may take another kernel, and round differently
        exact = apply(grad.value, saved)
        value = torch.where(exact.isfinite(), exact, value)
    if never_meet is not None and never_meet(grad.mask, aside):
        return value
    counting = torch.float32 if value.dtype in (torch.float16, torch.bfloat16) else value.dtype  # halves underflow
    if not apply(grad.mask.to(counting), aside.to(counting)).any():
        return value
    back = _put_back(apply, grad.value, grad.mask, saved, counting)
    return torch.where(back == 0, value, value + back)  # -0.0 + 0.0 is 0.0


def _put_back(apply: Apply, value: Tensor, used: Tensor, saved: Tensor, counting: torch.dtype) -> Tensor:
    """What the used entries give with the non-finite saved ones: NaN, inf, -inf, and 0 elsewhere."""
    dtype = value.dtype

    def count(left: Tensor, right: Tensor) -> Tensor:
        return apply(left.to(counting), right.to(counting)) != 0

    nan = count(used, saved.isnan())
    if dtype.is_complex:
        return torch.where(nan | count(used, saved.isinf()), torch.nan, 0.0)
    positive, negative = used & (value > 0), used & (value < 0)
    up, down = saved == torch.inf, saved == -torch.inf
    nan |= count(used & ~(positive | negative), up | down)
    to_inf = count(positive, up) | count(negative, down)
    to_minus_inf = count(positive, down) | count(negative, up)
    result = torch.zeros(nan.shape, dtype=dtype, device=nan.device)
    result.masked_fill_(to_inf, torch.inf).masked_fill_(to_minus_inf, -torch.inf)
    return result.masked_fill_(nan | (to_inf & to_minus_inf), torch.nan)


def all_finite(saved: Tensor) -> bool:
    """Whether all entries are finite; `aminmax` passes over the memory once."""
    if saved.layout is not torch.strided:
        if all_finite(saved.coalesce().values() if saved.layout is torch.sparse_coo else saved.values()):
            return True
        raise NotFollowed("has a sparse factor that is not finite")
    if saved.numel() == 0:
        return True
    low, high = torch.aminmax(torch.view_as_real(saved.resolve_conj()) if saved.is_complex() else saved)
    return bool((low > -torch.inf) & (high < torch.inf))


@rule("mm", "bmm", "mv", "dot", "vdot")
def matrix_product(op: Any, a: Any, b: Any) -> Any:
    """One factor is the cotangent; the mask is its own, reduced over what is summed."""
    if type(a) is Cotangent and type(b) is Cotangent:
        return product_of_two(op, a, b)
    shape = _shape(plain(a), plain(b))
    vector = plain(b).dim() == 1
    if type(a) is Cotangent:

        def row_meets_none(used: Tensor, aside: Tensor) -> bool:
            summed = aside if vector else aside.any(-1)
            return not bool((used.any(-2) if used.dim() > 1 else used).logical_and(summed).any())

        mask = a.mask
        if mask is not None:
            row = mask.any(-1)
            mask = (row if vector else row.unsqueeze(-1)).expand(shape)
        return Cotangent(bilinear(op, a, plain(b), row_meets_none), mask)

    def column_meets_none(used: Tensor, aside: Tensor) -> bool:
        summed = used if vector else used.any(-1)
        return not bool((aside.any(-2) if aside.dim() > 1 else aside).logical_and(summed).any())

    mask = b.mask
    if mask is not None:
        mask = (mask.any(-1) if vector else mask.any(-2).unsqueeze(-2)).expand(shape)
    return Cotangent(bilinear(lambda grad, saved: op(saved, grad), b, a, column_meets_none), mask)


def _shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    return (*a.shape[:-1], b.shape[-1]) if b.dim() > 1 else tuple(a.shape[:-1])


@rule("addmm", "baddbmm", "addbmm", "addmv", "addr")
def added_product(op: Any, base: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """A product and a sum, both with rules of their own."""
    multiply: dict[str, Any] = {"addmm": torch.mm, "baddbmm": torch.bmm, "addmv": torch.mv, "addr": torch.outer}
    name = op._schema.name.removeprefix("aten::")
    exact = op(plain(base), plain(a), plain(b), beta=beta, alpha=alpha)
    product = multiply[name](a, b) if name in multiply else torch.bmm(a, b).sum(0)
    return merge(exact, torch.add(torch.mul(base, beta), torch.mul(product, alpha)))


@rule("_trilinear")
def trilinear(
    op: Any, a: Any, b: Any, c: Any, expand1: Any, expand2: Any, expand3: Any, summed: Any, *args: Any, **kwargs: Any
) -> Any:
    """The derivatives of a bilinear layer: three factors, multiplied where they overlap, then summed."""
    exact = op(plain(a), plain(b), plain(c), expand1, expand2, expand3, summed, *args, **kwargs)
    if all(mask_of(factor) is None for factor in (a, b, c)):
        return Cotangent(exact)
    return merge(exact, (_expanded(a, expand1) * _expanded(b, expand2) * _expanded(c, expand3)).sum(summed))


def _expanded(factor: Any, dims: Any) -> Any:
    for dim in sorted(dims):
        factor = factor.unsqueeze(dim)
    return factor


@rule("convolution_backward", "convolution_backward_overrideable")
def convolution_backward(op: Any, grad: Any, saved: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Two bilinear operators and a sum: the gradients of input, weight and bias."""
    if type(grad) is not Cotangent:  # a derivative of a derivative
        return wrapped(op(plain(grad), plain(saved), plain(weight), *args, **kwargs))
    exact = op(grad.value, plain(saved), plain(weight), *args, **kwargs)
    sizes, stride, padding, dilation, transposed, output_padding, groups, wanted = _convolution(args)
    geometry = (stride, padding, dilation, transposed, output_padding)

    def to_input(cotangent: Tensor, kernel: Tensor, groups: int = groups) -> Tensor:
        channels = kernel.shape[0] if transposed else kernel.shape[1] * groups
        shaped = cotangent.new_empty((saved.shape[0], channels, *saved.shape[2:]))
        only = [True, False, False]
        result: Tensor = op(cotangent, shaped, kernel, None, *geometry, groups, only)[0]
        return result

    def to_weight(cotangent: Tensor, image: Tensor) -> Tensor:
        kernel = plain(weight).to(cotangent.dtype)
        result: Tensor = op(cotangent, image, kernel, None, *geometry, groups, [False, True, False])[1]
        return result

    if type(saved) is Cotangent or type(weight) is Cotangent:  # a derivative of a derivative
        return _convolution_of_two(exact, grad, saved, weight, to_input, to_weight, wanted)
    mask = full(grad.mask, grad.value)
    results: list[Any] = list(wrapped(exact))
    if wanted[0]:
        # One channel a group, and a kernel of ones: does any entry that counts reach there? Halves would underflow.
        n, channels, *space = mask.shape
        reach = mask.reshape(n, groups, channels // groups, *space).any(2).float()
        ones = torch.ones((groups, 1, *weight.shape[2:]), dtype=reach.dtype, device=reach.device)
        reached = (to_input(reach, ones) > 0.5).repeat_interleave(saved.shape[1] // groups, 1)
        value = exact[0] if not has_nan(exact[0]) else _mended(exact[0], bilinear(to_input, grad, weight))
        results[0] = Cotangent(value, reached)
    if grad.mask is None:
        return tuple(results)
    if wanted[1]:
        channel = mask.any(0).flatten(1).any(1)
        shape = weight.shape
        if transposed:
            channel = channel.reshape(groups, 1, -1).expand(groups, shape[0] // groups, shape[1]).reshape(shape[:2])
        channel = channel.reshape(*channel.shape, *(1,) * (weight.dim() - channel.dim())).expand(shape)
        value = exact[1] if not has_nan(exact[1]) else _mended(exact[1], bilinear(to_weight, grad, saved))
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
    return tuple(e if c is None else merge(e, c) for e, c in zip(exact, careful, strict=True))


def _convolution(args: Any) -> Any:
    """The arguments after the weight; `convolution_backward_overrideable` has no sizes of a bias."""
    return args if len(args) == 8 else (None, *args)


def _mended(exact: Tensor, careful: Tensor) -> Tensor:
    return torch.where(exact.isfinite(), exact, careful)
