"""Computes a value in exact arithmetic, and finds the intermediate number that does not fit its dtype.

Exact arithmetic is float64 here, because it has room for numbers that float32 and smaller dtypes lose. If the result is
not finite in float64 either, or if a difference lost a number, the calls run again with many bits.
"""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...functions.numerics import is_pointwise, numerics_of
from ..births.arithmetic import limit, number
from ..births.call import Call, in_order
from ..births.chain import Chain, Run
from ..program.constants import is_number, is_tensor
from ..program.rerun import without_side_effects
from ..program.source import expression_at
from ..program.tensors import are_finite, not_finite
from .precise import Precise, TooHardError

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The largest relative error that a result may have."""

_FEW = 200
"""The largest result that runs again as a whole. Of larger results, only the failed element does, if possible."""

_ORDERS = {1: "", 2: "second ", 3: "third "}


class Outcome(NamedTuple):
    """A result and its derivatives. Each derivative has the identity of the leaf, and the order, as its key.

    The derivatives are of a weighted sum, because the gradient of the plain sum of a softmax is 0.
    """

    value: Tensor
    gradients: Mapping[tuple[int, int], Tensor]

    @property
    def parts(self) -> list[Tensor]:
        """The value, and then the gradients."""
        return [self.value, *self.gradients.values()]

    @property
    def is_finite(self) -> bool:
        """Whether the value and all gradients are finite."""
        return are_finite(self.parts)

    def filled(self, other: Outcome) -> Outcome:
        """The outcome, with another's numbers in place of NaN and infinity: 1 - sigmoid(40) is 0 in float64, too."""
        parts = zip(self.parts, other.parts, strict=True)
        value, *gradients = [torch.where(not_finite(one), other, one) for one, other in parts]
        return Outcome(value, dict(zip(self.gradients, gradients, strict=True)))

    def defined(self) -> Outcome:
        """The outcome, with NaN slopes where its value is not finite: `log` has a slope even at a negative x."""
        none = not_finite(self.value)
        are_gone = {key: none.all() if each.shape != none.shape else none for key, each in self.gradients.items()}
        gradients = {key: each.masked_fill(are_gone[key], math.nan) for key, each in self.gradients.items()}
        return Outcome(self.value, gradients)


def outcome(run: Run, of: Container[int] | None = None) -> Outcome:
    """The outcome of a run, with the derivatives by all leaves, or by those `of` these identities."""
    leaves = {key: leaf for key, leaf in run.leaves.items() if of is None or key in of}
    found: dict[tuple[int, int], Tensor] = {}
    latest = [run.result]
    for order in range(1, run.order + 1):
        latest = gradients_of(run, latest, list(leaves.values()), map(weights, latest), order < run.order)
        found.update({(key, order): each.detach() for key, each in zip(leaves, latest, strict=True)})
    return Outcome(run.result.detach(), found)


def weights(result: Tensor) -> Tensor:
    """Different weights for the elements of a result, in its dtype."""
    weights = torch.arange(result.numel(), device=result.device, dtype=torch.float64).sin() / 2 + 1
    return weights.to(result.dtype).reshape(result.shape)


def slope(run: Run, key: int, order: int, at: tuple[int, ...], by: tuple[int, ...]) -> float:
    """The derivative of one element of the result of a run by one element of a leaf."""
    one = run.result[at]
    for _ in range(order):
        (found,) = gradients_of(run, [one], [run.leaves[key]], [torch.ones_like(one)], is_recorded=True)
        one = found[by]
    return float(one.detach())


def first_of(elements: Tensor) -> tuple[int, ...]:
    """The index of the first element that is True, or else of the first element."""
    found = elements.nonzero()
    return tuple(found[0].tolist()) if len(found) else (0,) * elements.dim()


def failed_at(found: Outcome) -> tuple[int, ...]:
    """The index of the first element that is not finite, or else of the first whose own derivative is not."""
    bad = [not_finite(part) for part in found.parts if part.shape == found.value.shape]
    return first_of(next((each for each in bad if bool(each.any())), bad[0]))


def measured(before: Outcome, run: Run) -> tuple[float, float]:
    """The first element of a result that was not finite before, and its derivative by a leaf whose gradient was not."""
    at = failed_at(before)
    value = run.result[at].item()
    bad = [key for key, found in before.gradients.items() if bool(not_finite(found).any())]
    key = next(iter([*bad, *before.gradients]), None)
    if key is None:
        return value, 0.0
    return value, slope(run, key[0], 1, at, first_of(not_finite(before.gradients[key])))


def gradients_of(
    run: Run, results: Sequence[Tensor], leaves: list[Tensor], weights: Iterable[Tensor], is_recorded: bool = False
) -> list[Tensor]:
    """The gradients of results of a run, each result with its weights, by some leaves; 0 if there is no gradient."""
    pairs = [(result, weight) for result, weight in zip(results, weights, strict=True) if result.requires_grad]
    if not leaves or not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    of, by = zip(*pairs, strict=True)
    with without_side_effects(), torch.enable_grad(), run.mode:
        options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True, "create_graph": is_recorded}
        return list(torch.autograd.grad(of, leaves, by, **options))


class Exact(NamedTuple):
    """The outcome of a chain in exact arithmetic, the run that computed it, and the outcome in float64."""

    found: Outcome
    run: Run
    in_float64: Outcome


def exactly(chain: Chain, before: Outcome, given: Mapping[int, Tensor] = MappingProxyType({})) -> Exact:
    """The outcome of a chain in exact arithmetic, as far as possible. `before` is the outcome in the program.

    If tensors are `given`, as for `Chain.run`, the derivatives are those by these tensors.
    """
    run = chain.run(torch.float64, given)
    found = in_float64 = outcome(run, given or None)
    pairs = zip(before.parts, found.parts, strict=True)
    is_lost = any(bool((not_finite(was) & not_finite(now)).any()) for was, now in pairs)
    for key, (actual, _) in chain.made.items():
        value = run.values.get(key)
        if value is not None and actual.is_floating_point():  # whether rounding gave 0, and not the range of the dtype
            is_lost |= bool(((actual == 0) & (value.abs() >= torch.finfo(actual.dtype).tiny)).any())
    if is_lost:
        with contextlib.suppress(ImportError, TooHardError, RuntimeError):
            precise = chain.run(torch.float64, given, Precise())
            found, run = outcome(precise, given or None), precise
    return Exact(found, run, in_float64)


def exists(before: Outcome, exact: Outcome) -> bool:
    """Whether the program's dtype has room for an exact number where the program had NaN or infinity."""
    pairs = zip(before.parts, exact.parts, strict=True)
    return any(bool((not_finite(was) & torch.isfinite(right.to(was.dtype))).any()) for was, right in pairs)


def is_near(after: Outcome, program: Outcome) -> bool:
    """Whether a rewrite gives what the program gives, where that gives numbers. Both are in float64, or of integers."""
    for now, was in zip(after.parts, program.parts, strict=True):
        known = torch.isfinite(was)
        if not torch.allclose(now[known].to(was.dtype), was[known], rtol=1e-7, atol=1e-9):
            return False
    return True


def agrees(after: Outcome, before: Outcome, exact: Outcome, chooses: bool) -> bool:
    """Whether what a rewrite gives is finite, and is what exact arithmetic gives, if that gives a number."""
    for now, was, right in zip(after.parts, before.parts, exact.parts, strict=True):
        known = torch.isfinite(right.to(was.dtype))
        # Other elements have no such number, or it does not fit the dtype. The program had none, so a rewrite chooses.
        if not are_finite(now) or not chooses and not bool(known.all()):
            return False
        finite = right[torch.isfinite(right)]
        largest = min(float(finite.abs().max()), 1.0) if finite.numel() else 0.0
        rtol, atol = CLOSE.get(was.dtype, 1e-4), torch.finfo(was.dtype).eps * largest  # of rounding
        rounded = (was.to(right.dtype)[known] - right[known]).abs().nan_to_num(0, 0)  # that of the program is no better
        size = right[known].abs()
        allowed = atol + rtol * size + torch.minimum(4 * rounded, 1e-2 * size)
        if bool(((now.to(right.dtype)[known] - right[known]).abs() > allowed).any()):
            return False
    return True


class Lost(NamedTuple):
    """The right result for the last call of a chain, if it is finite in exact arithmetic but not in the program.

    Attributes:
        exact: the value or the derivative, as a phrase.
        fits: whether the dtype has room for this number.
        how: how an intermediate number was lost, as a sentence.
        is_beyond: whether the result is not finite in float64 either.
        key: the identity of the first result in the chain that is 0 or an infinity in place of another number; None if
            a number was only rounded.
    """

    exact: str
    fits: bool
    how: str
    is_beyond: bool = False
    key: int | None = None

    def __str__(self) -> str:
        return f"and {self.exact}: {self.how}"


def lost_on_the_way(chain: Chain) -> Lost | None:
    """The exact result, and the intermediate number that was lost; None if the exact result is not finite either."""
    plain = chain.run()
    before, calls = outcome(plain), chain.calls()
    given: dict[int, Tensor] = {}
    if plain.result.numel() > _FEW and all(is_pointwise(call.name) for call in calls):
        at, shape = failed_at(before), before.value.shape
        taken = [tensor for call in calls for tensor in call.tensors() if id(tensor) not in chain.made]
        given = {id(tensor): tensor.broadcast_to(shape)[at] for tensor in taken}
        plain = chain.run(given=given)
        before = outcome(plain, given)
    exact, run, in_float64 = exactly(chain, before, given)
    fits = exists(before, exact)
    dtype = before.value.dtype
    name = str(dtype).removeprefix("torch.")
    too_large = f"{name} ends at {limit(dtype)}"
    operands = {id(tensor): plain.values[id(tensor)].detach() for tensor in chain.call.tensors()}
    alone = chain.run(torch.float64, operands).result.detach()
    right, size = cured(Outcome(before.value, {}), Outcome(alone, {}), run)
    if size > torch.finfo(dtype).max:  # the call itself gave it, whatever was lost before it in other elements
        return Lost(right, fits, too_large)
    right, size = cured(before, exact, run)
    if not right:
        return None
    is_beyond = not cured(before, in_float64, run)[0]
    too = "; float64 loses it, too" if is_beyond and dtype is not torch.float64 else ""
    made = [key for key, (each, _) in chain.made.items() if key in run.values and each.is_floating_point()]
    lost = {key: each for key in made if bool((each := _lost(plain.values[key], run.values[key])).any())}
    at = failed_at(before)
    used = ((key, each & (_slopes(run, at, key) != 0)) for key, each in lost.items())
    first = next((pair for pair in used if bool(pair[1].any())), next(iter(lost.items()), None))
    if first is not None:
        key, elements = first
        sentence = _sentence(chain.made[key][1], plain.values[key], run.values[key], first_of(elements))
        return Lost(right, fits, sentence + too, is_beyond, key)
    is_large = size > torch.finfo(dtype).max
    return Lost(right, fits, too_large if is_large else f"{name} loses a number on the way to it{too}", is_beyond)


def _lost(actual: Tensor, value: Tensor) -> Tensor:
    """Where a result is 0 or an infinity in place of another number."""
    return torch.isfinite(value) & (((actual == 0) & (value != 0)) | actual.isinf())


def _slopes(run: Run, at: tuple[int, ...], key: int) -> Tensor:
    """The derivatives of an element of the result of a run by those of a result on the way to it; 1 if it has none."""
    one, value = run.result[at], run.values[key]
    if not value.requires_grad:
        return torch.ones_like(value)
    return gradients_of(run, [one], [value], [torch.ones_like(one)])[0]


def cured(was: Outcome, exact: Outcome, run: Run) -> tuple[str, float]:
    """The first value, or else derivative, that only exact arithmetic has, with its size; empty if there is none.

    `was` is the outcome of the program, and `run` computed the exact outcome.
    """
    found = not_finite(was.value) & torch.isfinite(exact.value)
    if bool(found.any()):
        value = exact.value[found][0].item()
        return f"its exact value is {number(value)}", abs(value)
    for (key, order), before in was.gradients.items():
        after = exact.gradients[key, order]
        found = not_finite(before) & torch.isfinite(after)
        if bool(found.any()):
            by, what = first_of(found), f"its exact {_ORDERS.get(order, 'higher ')}derivative"
            at = by if before.shape == was.value.shape else (0,) * was.value.dim()
            if before.shape != was.value.shape and was.value.numel() > 1:  # it may be that of several elements
                return f"{what} exists", abs(after[by].item())
            value = slope(run, key, order, at, by)
            return f"{what} is {number(value)}", abs(value)
    return "", 0.0


def _sentence(call: Call, actual: Tensor, value: Tensor, at: tuple[int, ...]) -> str:
    """How a number was lost."""
    argument = next(iter(call.tensors()), None)
    expression = expression_at(call.place, call.name)
    what = call.name
    if is_pointwise(call.name) and argument is not None and argument.shape == value.shape and len(call.tensors()) == 1:
        what = f"{call.name}({number(argument[at].item())})"
    if numerics_of(call.name).written:
        what = "a number" if expression is None else ast.unparse(expression.node)
    dtype = str(actual.dtype).removeprefix("torch.")
    here, there = actual[at].item(), value[at].item()
    what = f"{what} in line {call.place.line} is {number(there)}"
    if math.isinf(here):
        return f"{what}, and {dtype} ends at {limit(actual.dtype)}"
    if abs(there) < torch.finfo(actual.dtype).tiny:
        return f"{what}, which is too small for {dtype}, so it became 0"
    return f"{what}, which {dtype} rounded to 0"


def _commutes(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult))


def texts_of(call: Call) -> list[tuple[Any, str]]:
    """The operands of a call, each with the user's expression for it, if the source can be read."""
    expression = expression_at(call.place, call.name)
    if expression is None:
        return []
    named = expression.node.keywords if isinstance(expression.node, ast.Call) else []
    by_name = [(call.kwargs[str(each.arg)], ast.unparse(each.value)) for each in named if each.arg in call.kwargs]
    things, texts = in_order(call), expression.operands()
    is_pair = len(texts) == len(things) == 2 and isinstance(things[0], Tensor) and not isinstance(things[1], Tensor)
    if is_pair and _commutes(expression.node):  # `2 * x` is a call with x first
        left, right = (is_number(text, things[1], call.place) for text in texts)
        if left or not right and is_tensor(texts[1], call.place) and not is_tensor(texts[0], call.place):
            texts.reverse()
        elif not right and not is_tensor(texts[0], call.place):
            return by_name  # it is not known which operand is which
    if any(text.startswith("*") for text in texts):
        return by_name  # it is not known which operands these are
    return [*zip(things, texts, strict=False), *by_name]
