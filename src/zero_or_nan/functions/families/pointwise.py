"""Elementwise functions. A product counts if all of its factors count, a sum if one of its terms counts.

The derivative of y = exp(x) is g·y. If the loss ignores y[1], the product g[1]·y[1] is ignored, also if y[1] is NaN.
If x is also used elsewhere, the engine adds the two cotangents. The sum counts if one of them counts.

>>> from zero_or_nan.ignoring import Cotangent
>>> y = torch.tensor([2.0, torch.nan])
>>> product = Cotangent(torch.tensor([1.0, 0.0]), mask=torch.tensor([True, False])) * y
>>> product.value.tolist(), product.mask.tolist()
([2.0, 0.0], [True, False])
>>> total = product + torch.tensor([5.0, 5.0])
>>> total.value.tolist(), total.mask is None  # all elements count
([7.0, 5.0], True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...masks.cotangent import (
    Cotangent,
    can_carry,
    chosen,
    mask_of,
    nothing,
    prefer_exact,
    selecting,
    step_of,
    unwrap,
    wrap,
    written_mask,
    zero_ignored,
)
from ...masks.mask import Mask, both, either, expanded
from ..conditions import ALWAYS, AWAY_FROM_ZERO, FINITE, MODERATE
from ..graph import function_of, run
from ..numerics import numerics
from ..registry import derivative, function, rule, transfer
from ..rewrites import advice, rewrite

# Sums, signs, copies and other dtypes.

function("AccumulateGrad Lift Neg ToCopy", safe_if=ALWAYS)
function("Alias Clone", moves=True, safe_if=ALWAYS)
function("CopyBackwards", selects=True, safe_if=ALWAYS)
function("Add", moves=lambda node: getattr(node, "_saved_alpha", 1) == 1, safe_if=ALWAYS, scalars=("alpha",))
function("Sub Rsub", safe_if=ALWAYS, scalars=("alpha",))

# Products with a saved tensor, or with a bounded function of it: the saved tensor has to be finite.

function("Abs Cos Exp Exp2 Expm1 Mul Sigmoid Sin Tanh", safe_if=FINITE)
function("NativeDropout", safe_if=FINITE, scalars=("p",))
function("LeakyRelu", safe_if=ALWAYS, scalars=("negative_slope",))

# The derivative is finite for finite numbers, but its computation could overflow.

function("PreluKernel PreluKernelBackward", selects=True, safe_if=FINITE)
function("Gelu Hardswish LogSigmoid Mish Silu", safe_if=MODERATE)
function("Elu", safe_if=MODERATE, scalars=("alpha", "scale"))
# Below the threshold, softplus computes exp.
function(
    "Softplus",
    safe_if=MODERATE,
    scalars=("beta",),
    only_if=lambda node: abs(node._saved_beta * node._saved_threshold) <= 80,
)
function(  # A root of a negative number is NaN, and an exponent may be a tensor.
    "Pow",
    safe_if=MODERATE,
    only_if=lambda node: isinstance(node._saved_exponent, (int, float)) and node._saved_exponent in (1, 2, 3, 4),
    fills=("Where(None, Mul(Mul(Pow)))", "Where(None, Mul(Pow))"),
)

# Quotients: the derivative divides by a saved tensor.

function("Log Log10 Log2 Reciprocal Rsqrt Sqrt", safe_if=AWAY_FROM_ZERO)
function("Div", safe_if=AWAY_FROM_ZERO, safe_if_saved={"self": MODERATE})

# The derivative fills in zeros where it would divide by 0, or take the logarithm of 0.

function("Angle", fills=("Where(None, Mul(Div(Pow(Abs))))",))
function("Atan2", fills=("MaskedFill(Reciprocal(Add(Mul)))",))
function("SpecialBesselY1", since="2.15", fills=("Where(None, Sub(SpecialBesselY0))",))
function("Sgn", fills=("MaskedFill(Div(Mul(Abs)))",))
function("Sinc", fills=("Where(None, Mul(Div(Sub(Sin))))",))
function("SpecialXlog1Py", fills=("MaskedFill(SpecialXlog1Py)",))
function("Xlogy", fills=("MaskedFill(Xlogy)",))


def _has_signs(node: Any) -> bool:
    """True if the second argument has a gradient."""
    return [ahead is not None for ahead, _ in node.next_functions[1:]] == [True]


@derivative(
    "Copysign",
    selects=_has_signs,
    compares=True,
    derivative_if=_has_signs,
    safe_if=FINITE,
    fills=("MaskedFill(Div(Copysign))",),
)
def copysign(node: Any, grads: Any) -> tuple[Any, Any]:
    """PyTorch's own formula, but the second argument, of which only the sign is read, is ignored."""
    to_size, to_sign = run(node, *grads)
    return to_size, nothing(to_sign)


# With `eps`, a number near 0 or 1 is replaced.


def _fills_in_nan(node: Any) -> bool:
    """True if `logit` had no `eps`. Then the derivative divides by x(1 - x), and fills in NaN where that is below 0."""
    (quotient, _), _ = node.next_functions
    return not bool((quotient._saved_other >= 0).logical_and_(node._saved_condition.logical_not()).any())


function(
    "Logit",
    selects=lambda node: node._saved_eps is not None,
    compares=True,
    fills=("Where(Div(Mul(Sub)), None)",),
    fills_if=_fills_in_nan,
)

# Written in Python, in operators that have rules.

function("torch.distributions.dirichlet._Dirichlet")


_ROOTS = "atlas#roots-and-powers"
_LOGARITHMS = "atlas#logarithms-entropy-and-losses"
_ANGLES = "atlas#angles"


def _is_zero(x: complex) -> bool:
    return x == 0


def _is_positive_and_whole(x: complex) -> bool:
    return isinstance(x, (int, float)) and x > 0 and x % 1 == 0


# Numbers: sums and products are infinite only if they are too large. Logarithms, roots and quotients are infinite at 0.

numerics(
    "add=__add__=__radd__=__iadd__",
    grows=True,
    updates=True,
    written="{} + {}",
    written_scaled="{0} + {2} × {1}",
)
numerics(
    "sub=subtract=__sub__=__isub__",
    grows=True,
    compares=True,
    updates=True,
    written="{} − {}",
    written_scaled="{0} − {2} × {1}",
    section="slicing-nan",
)
numerics("rsub=__rsub__", name="sub", grows=True, compares=True, written="{1} − {0}", written_scaled="{1} − {2} × {0}")
numerics(
    "mul=multiply=__mul__=__rmul__=__imul__",
    exact=lambda a, b: a * b,
    grows=True,
    keeps_zero=True,
    updates=True,
    written="{} × {}",
)
numerics(
    "div=divide=true_divide=__truediv__=__rtruediv__=__itruediv__=__div__=__rdiv__=__idiv__",
    pole=lambda a, b, *_: b == 0,
    exact=lambda a, b: a / b,
    divides=True,
    keeps_zero=True,
    updates=True,
    written="{} / {}",
    section="where-over-division",
    points="division-under-a-mask#what-to-do",
)
numerics(
    "reciprocal",
    pole=_is_zero,
    inverse=lambda y: 1 / y,
    exact=lambda a: 1 / a,
    written="1 / {}",
    like="div",
    section="where-over-division",
)
numerics("neg=__neg__", exact=lambda a: -a, keeps_zero=True)
numerics("abs=__abs__", exact=abs)
numerics("square", grows=True, written="{0} × {0}")
numerics(
    "pow=__pow__=__rpow__=__ipow__",
    pole=lambda a, b: a == 0 and not _is_positive_and_whole(b),
    exact=lambda a, b: a**b,
    written="{} ** {}",
    section="undefined",
    points=_ROOTS,
)
numerics("sqrt", domain=(0, math.inf), inverse=lambda y: y * y, section="undefined", points=_ROOTS)
numerics(
    "rsqrt",
    domain=(0, math.inf),
    pole=_is_zero,
    inverse=lambda y: 1 / (y * y),
    written="1 / sqrt({})",
    points=_ROOTS,
)
numerics("addcmul", grows=True, updates=True, written="{} + {} × {}", written_scaled="{0} + {3} × {1} × {2}")
numerics(
    "addcdiv",
    pole=lambda a, b, c, *_: c == 0,
    updates=True,
    written="{} + {} / {}",
    written_scaled="{0} + {3} × {1} / {2}",
)
numerics("lerp", updates=True)
numerics("remainder=__mod__=__rmod__")
numerics("floor_divide=__floordiv__")
numerics("exp", grows=True, inverse=math.log, section="where-over-exp")
numerics("exp2 expm1=special_expm1 sinh cosh tan i0=special_i0 mvlgamma", grows=True)
numerics("log", domain=(0, math.inf), pole=_is_zero, section="where-over-exp", points=_LOGARITHMS)
numerics("log2 log10", domain=(0, math.inf), pole=_is_zero, points=_LOGARITHMS)
numerics("log1p=special_log1p", domain=(-1, math.inf), steep_at=(-1.0,), points=_LOGARITHMS)
numerics("acos=arccos", domain=(-1, 1), steep_at=(-1.0, 1.0), section="undefined", points=_ANGLES)
numerics("asin=arcsin atanh=arctanh erfinv=special_erfinv", domain=(-1, 1), steep_at=(-1.0, 1.0), points=_ANGLES)
numerics("acosh=arccosh", domain=(1, math.inf), steep_at=(1.0,), points=_ANGLES)
numerics("xlogy=special_xlogy special_entr", points=_LOGARITHMS)
numerics("atan2=arctan2", no_direction=True, points=_ANGLES)
numerics("hypot", points="atlas#norms-and-distances")
numerics("logit=special_logit", domain=(0, 1), steep_at=(0.0, 1.0), points=_LOGARITHMS)
numerics("tanh", inverse=math.atanh)
numerics("erf=special_erf erfc=special_erfc ndtr=special_ndtr")
numerics("log_sigmoid=logsigmoid hardswish leaky_relu rrelu_with_noise", elementwise=True)
numerics("_to_copy", grows=True, keeps_zero=True, written="{}")
numerics("copy", grows=True, replaces=True, written="{1}")


# What to write instead. The first that gives the right numbers on the reader's operands is printed.

rewrite("sqrt(x)", "torch.where(x == 0, 0, torch.where(x == 0, 1, x).sqrt())", "the slope at 0 is 0")
rewrite("sqrt(x)", "x.clamp_min(1e-12).sqrt()", "a number below 1e-12 counts as 1e-12, with a slope of 0")
rewrite("sqrt(x)", "(x + 1e-14).sqrt()", "1e-14 is added to each number: the slope at 0 is 5e6")
rewrite("sqrt(x)", "x.clamp_min(0).sqrt()", of_rounding=True)
rewrite("rsqrt(x)", "torch.where(x == 0, 0, torch.where(x == 0, 1, x).rsqrt())", "the value at 0 is 0")
rewrite("x ** p", "x.clamp_min(0) ** p", of_rounding=True)
rewrite("x ** p", "torch.where(x == 0, 0, torch.where(x == 0, 1, x) ** p)", "the value and the slope at 0 are 0")
rewrite("x ** p", "x.clamp_min(1e-8) ** p", "a number below 1e-8 counts as 1e-8, with a slope of 0")
rewrite("a / b", "torch.where(b == 0, 0, a / torch.where(b == 0, 1, b))", "a / 0 is 0")
rewrite("a / b", "a / b.clamp_min(1e-6)", "a number below 1e-6 counts as 1e-6")
rewrite("a / b", "a / (b or 1)", "a divisor of 0 counts as 1")  # of a number, such as a count
for most in (20, 10):  # the second for float16
    rewrite("exp(x)", f"x.clamp(max={most}).exp()", f"an exponent above {most} counts as {most}, with a slope of 0")
for name in ("log", "log2", "log10"):
    rewrite(f"{name}(x)", f"x.clamp_min(1e-8).{name}()", "a number below 1e-8 counts as 1e-8, with a slope of 0")
rewrite("xlogy(x, y)", "torch.xlogy(x, y.masked_fill((x == 0) & (y == 0), 1))", "0 * log(0) is 0, with a slope of 0")
rewrite("log1p(x)", "x.clamp_min(-1 + 1e-6).log1p()", "a number below -1 + 1e-6 counts as this one, with a slope of 0")
for name in ("acos", "asin"):
    rewrite(
        f"{name}(x)",
        f"torch.where(x.abs() < 1, torch.where(x.abs() < 1, x, 0).{name}(), x.detach().clamp(-1, 1).{name}())",
        "the slope at -1 and 1 is 0",
    )
rewrite(
    "atanh(x)", "x.clamp(-1 + 1e-6, 1 - 1e-6).atanh()", "a number beyond 1 - 1e-6 counts as this one, with a slope of 0"
)
rewrite(
    "to(x, d)",
    "x.clamp(torch.finfo(d).min, torch.finfo(d).max).to(d)",
    "a number that the dtype has no room for counts as its largest, with a slope of 0",
)
rewrite(  # its series near 0, where PyTorch's second derivative is 0 / 0
    "sinc(x)",
    "torch.where(x.abs() < 0.03, 1 - (torch.pi * x) ** 2 / 6 + (torch.pi * x) ** 4 / 120, "
    "torch.where(x.abs() < 0.03, 1, x).sinc())",
)
advice(
    "overflow",
    "exp",
    "y = x.logsumexp(-1)  # of the logarithm of a sum of exp\n"
    "y = x.softmax(-1)  # of exp(x) / exp(x).sum(-1)\n"
    "y = F.softplus(x)  # of log(1 + exp(x))",
    "find-it-in-your-model#overflow",
)
rewrite("logit(x)", "x.logit(eps=1e-6)", "the slope at 0 and 1 is 0")


def _broadcasts_nothing(node: Any) -> bool:
    """True if no operand was broadcast: then PyTorch sums nothing up, and each result is elementwise."""
    shape = node._input_metadata[0].shape
    return all(ahead is None or ahead._input_metadata[number].shape == shape for ahead, number in node.next_functions)


@transfer(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh Cos Cosh Div Elu Erf Erfc Exp Exp2 Expm1 Gelu Hardswish LeakyRelu Log Log10
    Log1P Log2 LogSigmoid Mish Mul Reciprocal Rsqrt Sigmoid Silu Sin Sinh Softplus Sqrt Tan Tanh
    """,
    is_repaired=_broadcasts_nothing,
)
@transfer("Add Alias Clone NativeDropout Neg Rsub Sub")
def _same(node: Any, grad: Tensor, mask: Mask, results: Sequence[Any]) -> Sequence[Mask]:
    """Elementwise functions: the mask stays the same. Each operand may have been broadcast."""
    return [mask] * len(results)


def _all_factors(args: tuple[Any, ...]) -> Mask:
    """The mask of a product of all cotangents among the arguments."""
    mask: Mask = None
    for arg in args:
        mask = both(mask, mask_of(arg))
    return mask


@rule(
    *"""
    div elu_backward gelu_backward glu_backward_jvp hardswish_backward infinitely_differentiable_gelu_backward
    leaky_relu_backward log_sigmoid_backward mish_backward native_dropout_backward rrelu_with_noise_backward
    sigmoid_backward silu_backward softplus_backward special_xlog1py tanh_backward xlogy
    """.split()
)
def product(op: Any, *args: Any, **kwargs: Any) -> Any:
    """A cotangent times a function of the saved tensors."""
    return zero_ignored(op(*unwrap(args), **unwrap(kwargs)), _all_factors((*args, *kwargs.values())))


@rule("logit_backward")
def logit_backward(op: Any, grad: Any, x: Tensor, eps: float | None = None) -> Any:
    """The same as `product`. If there is `eps`, a number nearer to 0 or 1 was replaced, so it is ignored."""
    mask = _all_factors((grad, x))
    if eps is not None:
        near = (unwrap(x) < eps) | (unwrap(x) > 1 - eps)  # False for NaN, which is used
        mask = both(mask, near.logical_not())
    return zero_ignored(op(*unwrap((grad, x)), eps), mask)


@rule("mul")
def mul(op: Any, a: Any, b: Any) -> Any:
    """The same as `product`, but many derivatives select by a bool factor: its False is then a written zero."""
    mask = _all_factors((a, b))
    cotangent, factor = (a, b) if type(a) is Cotangent else (b, a)
    if isinstance(factor, Tensor) and factor.dtype is torch.bool and selecting(cotangent):
        value = op(unwrap(a), unwrap(b))
        if factor.device.type == "cpu" and _fills_in(cotangent):
            value = value.contiguous().masked_fill_(factor.logical_not(), 0)
        return zero_ignored(value, both(mask, chosen(factor, cotangent)))
    return zero_ignored(op(unwrap(a), unwrap(b)), mask)


def _fills_in(cotangent: Cotangent) -> bool:
    """True if the derivative fills numbers into new zeros, but multiplies a subclass.

    The product would have -0.0 among the zeros, and the strides of its factors.
    """
    step = step_of((cotangent,))
    return step is not None and function_of(step.node.name()) in ("Max", "Min", "Median", "Nanmedian")


@rule("add", "rsub", "sub")
def total(op: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    """A sum of two terms."""
    value = op(unwrap(a), unwrap(b), **kwargs)
    cotangent, other = (a, b) if type(a) is Cotangent else (b, a)
    if _is_sum_of_nothing(other, cotangent):
        return Cotangent(value, expanded(mask_of(cotangent), value.shape))
    return Cotangent(value, expanded(either(mask_of(a), mask_of(b)), value.shape))


def _is_sum_of_nothing(thing: Any, beside: Cotangent) -> bool:
    """True for the zeros with which the recorded derivative of an LSTM begins to add up, from the last step on."""
    if type(thing) is Cotangent or not isinstance(thing, Tensor):
        return False
    step = step_of((beside,))
    return step is not None and function_of(step.node.name()) == "MkldnnRnnLayer" and not bool(thing.any())


@rule("addcmul", "addcdiv")
def total_of_product(op: Any, base: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    """A sum whose second term is a product. Its kernel rounds once where a sum and a product round twice."""
    exact = op(unwrap(base), unwrap(a), unwrap(b), value=value)
    combine = torch.mul if op._schema.name == "aten::addcmul" else torch.div
    return prefer_exact(exact, torch.add(base, combine(a, b), alpha=value))


@rule(
    *"""
    _conj _conj_physical _neg_view alias clone conj_physical contiguous detach lift_fresh neg positive real imag
    resolve_conj resolve_neg
    """.split()
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
    """The source replaces the cotangent and its mask."""
    value = op(unwrap(target), unwrap(source))
    beside = target if type(target) is Cotangent else source
    return Cotangent(value, expanded(written_mask(source, beside), value.shape))


@rule("abs", "exp", "log", "nan_to_num", "pow", "sgn", "sign", "sqrt", "square", "clamp", "clamp_min")
def not_linear(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Operators that are not linear. An ignored element stays ignored unless it becomes a number other than 0."""
    value = op(*unwrap(args), **unwrap(kwargs))
    mask = _all_factors(args)
    return Cotangent(value, mask if mask is None else mask.expand(value.shape) | (value != 0))


@rule("full_like", "new_full", "new_ones", "ones_like")
def made_up(op: Any, *args: Any, **kwargs: Any) -> Any:
    """New numbers in the shape of a cotangent. All of them count."""
    return wrap(op(*unwrap(args), **unwrap(kwargs)))


@rule("_prelu_kernel_backward")
def prelu(op: Any, grad: Any, x: Any, weight: Any) -> Any:
    """A weight is ignored if its inputs are above 0."""
    to_x, to_weight = op(*unwrap((grad, x, weight)))
    mask = _all_factors((grad, x, weight))
    return zero_ignored(to_x, mask), zero_ignored(to_weight, both(mask, (unwrap(x) > 0).logical_not()))


@rule("glu_backward")
def glu_backward(op: Any, grad: Any, x: Any, dim: int) -> Any:
    """An element of the cotangent goes to an element of either half."""
    mask = mask_of(grad)
    return zero_ignored(op(unwrap(grad), unwrap(x), dim), None if mask is None else torch.cat([mask, mask], dim))
