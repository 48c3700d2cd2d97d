"""Element by element: a product counts where all its factors do, a sum where one of its terms does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import (
    Cotangent,
    can_carry,
    chosen,
    mask_of,
    selecting,
    step_of,
    unwrap,
    wrap,
    written_mask,
    zero_ignored,
)
from ..graph import function_of
from ..masks import Mask, anywhere, both, either, expanded, full
from ..registry import rule


def _all_factors(args: tuple[Any, ...]) -> Mask:
    mask: Mask = None
    for arg in args:
        mask = both(mask, mask_of(arg))
    return mask


@rule(
    "div",
    "elu_backward",
    "gelu_backward",
    "glu_backward_jvp",
    "hardswish_backward",
    "infinitely_differentiable_gelu_backward",
    "leaky_relu_backward",
    "log_sigmoid_backward",
    "logit_backward",
    "mish_backward",
    "native_dropout_backward",
    "rrelu_with_noise_backward",
    "sigmoid_backward",
    "silu_backward",
    "softplus_backward",
    "special_xlog1py",
    "tanh_backward",
    "xlogy",
)
def product(op: Any, *args: Any, **kwargs: Any) -> Any:
    """A cotangent times what the forward pass saved."""
    return zero_ignored(op(*unwrap(args), **unwrap(kwargs)), _all_factors((*args, *kwargs.values())))


@rule("mul")
def mul(op: Any, a: Any, b: Any) -> Any:
    """As any product; but many derivatives say "selected" by a factor of type bool."""
    mask = _all_factors((a, b))
    cotangent, factor = (a, b) if type(a) is Cotangent else (b, a)
    if isinstance(factor, Tensor) and factor.dtype is torch.bool and selecting(cotangent):
        value = op(unwrap(a), unwrap(b))
        if factor.device.type == "cpu" and _fills_in(cotangent):
            value = value.masked_fill_(factor.logical_not(), 0)
        return zero_ignored(value, both(mask, chosen(factor, cotangent)))
    return zero_ignored(op(unwrap(a), unwrap(b)), mask)


def _fills_in(cotangent: Cotangent) -> bool:
    """Of a plain tensor this derivative fills zeros in; of a subclass it multiplies, which would give -0.0."""
    step = step_of((cotangent,))
    return step is not None and function_of(step.node.name()) in ("Max", "Min")


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


@rule("add", "rsub", "sub")
def total(op: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    """A sum of two terms."""
    value = op(unwrap(a), unwrap(b), **kwargs)
    return Cotangent(value, expanded(either(mask_of(a), mask_of(b)), value.shape))


@rule("addcmul", "addcdiv")
def total_of_product(op: Any, base: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    """A sum whose second term is a product."""
    combine = torch.mul if op._schema.name == "aten::addcmul" else torch.div
    return torch.add(base, combine(a, b), alpha=value)


@rule(
    "_conj",
    "_conj_physical",
    "_neg_view",
    "alias",
    "clone",
    "conj_physical",
    "contiguous",
    "detach",
    "lift_fresh",
    "neg",
    "positive",
    "real",
    "imag",
    "resolve_conj",
    "resolve_neg",
)
def same_entries(op: Any, grad: Any, **kwargs: Any) -> Any:
    """Copies, signs and conjugates."""
    return Cotangent(op(grad.value, **kwargs), grad.mask)


@rule("_to_copy", "to")
def converted(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Another dtype or device; the mask follows to the device.

    PyTorch computes the shape of a product with a ZeroTensor on the meta device, where no element has a value.
    """
    value = op(grad.value, *args, **kwargs)
    mask = grad.mask
    if not can_carry(value):
        return value
    return Cotangent(value, mask if mask is None else mask.to(value.device))


@rule("copy")
def copied(op: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
    """What is written over a cotangent replaces it, mask and all."""
    value = op(unwrap(target), unwrap(source))
    beside = target if type(target) is Cotangent else source
    return Cotangent(value, expanded(written_mask(source, beside), value.shape))


@rule("abs", "exp", "log", "nan_to_num", "pow", "sgn", "sign", "sqrt", "square", "clamp", "clamp_min")
def not_linear(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An element that was ignored stays so unless it became a number other than 0."""
    value = op(*unwrap(args), **unwrap(kwargs))
    mask = _all_factors(args)
    return Cotangent(value, mask if mask is None else mask.expand(value.shape) | (value != 0))


@rule("full_like", "new_full", "new_ones", "ones_like")
def made_up(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Numbers in a cotangent's shape."""
    return wrap(op(*unwrap(args), **unwrap(kwargs)))
