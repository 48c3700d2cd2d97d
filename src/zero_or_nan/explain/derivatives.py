"""The derivative at one node of the graph, and experiments with it: it runs again on finite cotangents."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..functions.graph import function_of, run
from .arithmetic import Born, first_born, number, on_copies, rerun
from .calls import finite_ones
from .nodes import can_run_again, saved_by
from .tensors import are_finite, is_finite, numbers_of

_ENTRYWISE = frozenset("""
Exp Exp2 Log Log2 Log10 Log1P Sqrt Rsqrt Pow Mul Div Reciprocal Sin Cos Tan Asin Acos Atan Atanh Acosh Asinh Sinh Cosh
Tanh Sigmoid LogSigmoid Softplus Abs Expm1 Erf Erfc Erfinv Logit Lgamma Digamma Relu Xlogy Square Sinc Atan2 Clamp
MaskedFill Neg
""".split())  # fmt: skip

_PRODUCTS = frozenset("Mm Addmm Bmm Baddbmm Addbmm Mv Addmv Addr Dot Convolution SlowConvDilated2D".split())
"""Functions whose derivative multiplies by an operand, and has no use for the result."""

_ENDS = frozenset({"Acos", "Asin", "Atanh", "Acosh", "Erfinv", "Logit"})
"""Functions whose derivative is infinite at 1 and -1. The derivatives of others are infinite at 0."""

_FROM_RESULT: dict[str, Callable[[float], float]] = {
    "Sqrt": lambda result: result * result,
    "Rsqrt": lambda result: 1 / (result * result),
    "Exp": math.log,
    "Reciprocal": lambda result: 1 / result,
    "Tanh": math.atanh,
}
"""Functions that save their result alone, and how to get their argument from it."""


def is_entrywise(node: Any) -> bool:
    """Whether each element of the gradient depends on one element of the cotangent."""
    return function_of(node.name()) in _ENTRYWISE


def is_product(node: Any) -> bool:
    """Whether a node adds up products: its derivative then multiplies by an operand, whatever the result was."""
    return function_of(node.name()) in _PRODUCTS


def only_passes_on(node: Any, arriving: Sequence[Any]) -> bool:
    """Whether a node gives finite gradients for finite cotangents, as far as that can be tried."""
    if not can_run_again(node):
        return True
    try:
        with rerun():
            return are_finite(run(node, *_finite(arriving)))
    except Exception:
        return True


def is_element_by_element(node: Any, arriving: Sequence[Any], bad: Tensor, came: Tensor | None = None) -> bool:
    """Whether each element of a gradient depends on the same element of the cotangent.

    Args:
        node: the node that passed the gradient on.
        arriving: its cotangents.
        bad: a mask of the gradient.
        came: a mask of the cotangent, if it is known.
    """
    if len(arriving) != 1 or not is_entrywise(node):
        return False
    cotangent = numbers_of(arriving[0]) if came is None else came
    return cotangent is not None and cotangent.shape == bad.shape


def multiplication(node: Any, arriving: Sequence[Any], at: int, bad: Tensor) -> str:
    """The cotangent times the derivative at the first of the elements, as text."""
    with contextlib.suppress(Exception):
        cotangent = numbers_of(arriving[0])
        if cotangent is not None and is_element_by_element(node, arriving, bad):
            index = tuple(bad.nonzero()[0].tolist())
            slope = math.inf
            if can_run_again(node):
                with rerun():
                    slope = run(node, torch.ones_like(cotangent))[at][index].item()
            return f"{number(cotangent[index].item())} × {number(slope)}{_point(node, index, bad)}"
    born = _first_born(node, arriving)
    return "" if born is None else born.text


def is_only_too_large(node: Any, arriving: Sequence[Any], at: int, bad: Tensor) -> bool:
    """Whether the true value is a number that the dtype has no room for."""
    if not can_run_again(node):
        return False
    with contextlib.suppress(Exception), rerun():
        small = [None if value is None else torch.sign(value) * 1e-3 for value in _finite(arriving)]
        slopes = numbers_of(run(node, *small)[at])
        if slopes is not None and is_finite(slopes.sum_to_size(bad.shape)[bad]):  # a bias was broadcast
            return True
    if is_entrywise(node):
        return not _is_at_pole(node, tuple(bad.nonzero()[0].tolist()), bad)
    born = _first_born(node, arriving)
    return born is not None and not born.is_pole


def _first_born(node: Any, arriving: Sequence[Any]) -> Born | None:
    """The first number that is not finite when a derivative runs again on finite cotangents."""
    if can_run_again(node):
        with contextlib.suppress(Exception):
            finite = _finite(arriving)
            return first_born(lambda: run(node, *finite))
    return None


def _finite(arriving: Sequence[Any]) -> list[Any]:
    """The cotangents, with 1 for each element that is not finite."""
    return on_copies(list(arriving), finite_ones)


def _is_at_pole(node: Any, index: tuple[int, ...], bad: Tensor) -> bool:
    """Whether a derivative is infinite, or does not exist, at the saved number of an element."""
    for saved in saved_by(node):
        with contextlib.suppress(Exception):
            here = numbers_of(saved)
            value = (saved if here is None else here).broadcast_to(bad.shape)[index].item()
            if value == 0 or value - value != 0 or function_of(node.name()) in _ENDS and abs(value) in (0, 1):
                return True
    return False


def _point(node: Any, index: tuple[int, ...], bad: Tensor) -> str:
    """The number at which a derivative was taken, as text, as far as the node knows it."""
    name = function_of(node.name())
    with contextlib.suppress(Exception):
        saved = getattr(node, "_saved_self", None)
        if isinstance(saved, Tensor):
            value = saved.broadcast_to(bad.shape)[index].item()
        else:
            value = _FROM_RESULT[name](node._saved_result[index].item())
        return f", the derivative of {name.lower()} at {number(value)}" if math.isfinite(value) else ""
    return ""
