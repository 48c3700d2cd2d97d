"""Entry by entry: ignored times anything is ignored; a sum is ignored where all its terms are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cotangent import Cotangent, _current_node, ignored_in, plain, retained, rule, settle, wrapped
from ..graph import function_of
from .selections import selecting


def _either(args: tuple[Any, ...]) -> Tensor | None:
    """Ignored where any factor is."""
    ignored = None
    for arg in args:
        mask = ignored_in(arg)
        if mask is not None:
            ignored = mask if ignored is None else ignored | mask
    return ignored


@rule(
    "div",
    "elu_backward",
    "gelu_backward",
    "glu_backward_jvp",
    "hardsigmoid_backward",
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
    return settle(op(*plain(args), **plain(kwargs)), _either((*args, *kwargs.values())))


@rule("mul")
def mul(op: Any, a: Any, b: Any) -> Any:
    """As any product; but many derivatives say "selected" by a factor of type bool."""
    ignored = _either((a, b))
    factor = b if type(a) is Cotangent else a
    if isinstance(factor, Tensor) and factor.dtype is torch.bool and selecting():
        unselected = ~factor
        ignored = unselected if ignored is None else ignored | unselected
        if factor.device.type == "cpu" and function_of(_current_node().name()) in ("Max", "Min"):
            # Of a plain tensor this derivative fills zeros in; of a subclass it multiplies, which would give -0.0.
            return Cotangent(op(plain(a), plain(b)).masked_fill_(unselected, 0), ignored)
    return settle(op(plain(a), plain(b)), ignored)


@rule("threshold_backward", "hardshrink_backward", "softshrink_backward", "hardtanh_backward")
def shutter(op: Any, grad: Any, saved: Any, *bounds: Any) -> Any:
    """The relu family: the forward pass selected a constant where the derivative is 0."""
    value = op(plain(grad), plain(saved), *bounds)
    open_there = op(torch.ones((), dtype=value.dtype, device=value.device).expand(value.shape), plain(saved), *bounds)
    closed, ignored = open_there == 0, ignored_in(grad)
    return settle(value, closed if ignored is None else closed | ignored)


@rule("add", "rsub", "sub")
def total(op: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    """Ignored where both terms are."""
    mask_a, mask_b = ignored_in(a), ignored_in(b)
    ignored = None if mask_a is None or mask_b is None else mask_a & mask_b
    value = op(plain(a), plain(b), **kwargs)
    if type(a) is not type(b) and retained():
        return value
    if ignored is not None and ignored.shape != value.shape:
        ignored = ignored.expand(value.shape)
    return Cotangent(value, ignored)


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
    if kwargs.get("memory_format") is torch.contiguous_format and retained():
        return op(grad.value, **kwargs)
    return Cotangent(op(grad.value, **kwargs), grad.ignored)


@rule("_to_copy", "to")
def converted(op: Any, grad: Any, *args: Any, **kwargs: Any) -> Any:
    """Another dtype or device; the mask follows to the device."""
    value = op(grad.value, *args, **kwargs)
    ignored = grad.ignored
    return Cotangent(value, ignored if ignored is None else ignored.to(value.device))


@rule("copy")
def copied(op: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
    """What is written over a cotangent replaces it, mask and all."""
    value = op(plain(target), plain(source))
    ignored = ignored_in(source, zeros=True)
    return Cotangent(value, ignored if ignored is None else ignored.expand(value.shape))


@rule(
    "abs", "clamp", "clamp_max", "clamp_min", "exp", "log", "nan_to_num", "pow", "relu", "sgn", "sign", "sqrt", "square"
)
def in_a_hook(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Not linear, so not from a derivative: a hook's. An ignored entry stays so unless it became a number."""
    value = op(*plain(args), **plain(kwargs))
    ignored = _either(args)
    return Cotangent(value, ignored if ignored is None else ignored.expand(value.shape) & (value == 0))


@rule(
    "all", "amax", "amin", "any", "aminmax", "dist", "linalg_vector_norm", "max", "min", "norm", "std", "var",
    "_foreach_norm",
)  # fmt: skip
def observed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """A number about a cotangent, as a hook takes it; not a cotangent."""
    return op(*plain(args), **plain(kwargs))


@rule(
    "bernoulli", "full_like", "new_full", "new_ones", "normal_functional", "ones_like", "rand_like", "randint_like",
    "randn_like",
)  # fmt: skip
def made_up(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Numbers in a cotangent's shape, such as the noise that a hook adds."""
    return wrapped(op(*plain(args), **plain(kwargs)))
