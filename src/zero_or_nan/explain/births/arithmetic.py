"""The numbers that a NaN or infinity was made of, as text that can be checked by hand: `0 × inf`, `exp(100) > 3.4e38`.

The function runs again on copies, and each of PyTorch's operators in it is checked: which operator was the first to
return a NaN or infinity, and which numbers did its operands have there? Its numerics say how to write it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...functions.numerics import is_pointwise, numerics_of
from ...ignoring.inside import Mode, is_sparse, tree_map_only
from ..program.rerun import rerun
from ..program.tensors import NeedsOthersError, numbers_of, tensors_in


class Computation(NamedTuple):
    """The computation in which one of PyTorch's operators made an element.

    Attributes:
        name: the name of the operator.
        values: the number in each operand, if the operator works element by element; else empty.
        text: the computation as text.
        result: the element.
        of_large: whether an operand holds numbers so large that their squares overflow.
    """

    name: str
    values: tuple[float, ...]
    text: str
    result: float
    of_large: bool = False

    @property
    def is_pole(self) -> bool:
        """Whether the value does not exist or is infinite, as opposed to too large for the dtype."""
        known = numerics_of(self.name)
        if known.grows:
            return is_nan(self.result)
        if known.pole is not None and self.values:
            return is_nan(self.result) or bool(known.pole(*self.values))
        return not self.of_large


class _Looking(Mode):
    """Finds the first operator that gives a NaN or an infinity."""

    def __init__(self, entries: Tensor | None) -> None:
        super().__init__()
        self.entries = entries
        self.nan: Computation | None = None
        self.infinite: Computation | None = None
        self.passed_on: Computation | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = tree_map_only(Tensor, torch.clone, args) if func._schema.is_mutable else args
        result = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2].rstrip("_")
        if self.nan is None and _computes(name):
            together = name.startswith("_foreach_")
            for at, out in enumerate(tensors_in(args[0] if together and result is None else result)):
                out_here = numbers_of(out)
                if out_here is not None:
                    of_one = [each[at] if type(each) is list else each for each in operands] if together else operands
                    scale = [each for key in ("alpha", "value") if (each := kwargs.get(key, 1)) != 1]
                    self._look(name.removeprefix("_foreach_"), [*of_one, *scale], out_here, out.dtype)
        return result

    def _look(self, name: str, operands: Any, out: Tensor, dtype: torch.dtype) -> None:
        bad = ~torch.isfinite(out)
        if not bad.any():
            return
        inputs = [tensor for tensor in map(numbers_of, tensors_in(operands)) if tensor is not None]
        has_infinity = any(bool(tensor.isinf().any()) for tensor in inputs)
        has_nan = any(bool(tensor.isnan().any()) for tensor in inputs)
        if self.entries is not None and self.entries.shape == bad.shape and bool((bad & self.entries).any()):
            bad &= self.entries
        nans = out.isnan() & bad
        is_each = bool(nans.any()) and _entrywise(operands, out)
        made = nans if is_each or not has_nan else torch.zeros_like(nans)
        for tensor in inputs if is_each else ():
            made = made & ~tensor.isnan()
        if made.any():
            self.nan = _born(name, operands, out, made, dtype)
        elif self.infinite is None and not has_infinity and not has_nan:
            self.infinite = _born(name, operands, out, bad, dtype)
        elif self.passed_on is None:
            self.passed_on = _born(name, operands, out, nans if is_each else bad, dtype)


def first_born(function: Callable[[], Any], entries: Tensor | None = None) -> Computation | None:
    """The first NaN that a computation makes from other numbers, or the first infinity from finite numbers.

    Args:
        function: the computation. It runs once, records no graph, and does not change the state of random numbers.
        entries: elements of the result. A birth at one of these elements is preferred.
    """
    with suppress(NeedsOthersError), rerun(), _Looking(entries) as looking:
        function()
    if looking.nan is not None and looking.infinite is not None and not looking.infinite.is_pole:
        return looking.infinite
    return looking.nan or looking.infinite or looking.passed_on


def is_nan(value: complex) -> bool:
    """Whether a number is NaN. A complex number is NaN if one of its parts is NaN."""
    return value != value


def number(value: float) -> str:
    """A number in as few digits as a reader needs to check it.

    >>> number(100.0), number(-0.0), number(3.4028234663852886e38), number(float("-inf"))
    ('100', '-0', '3.40282e38', '-inf')
    """
    return _in_digits(value, 6)


def operand(value: float) -> str:
    """An operand as text, with the digits that distinguish it from 1, because a domain may end at 1.

    >>> operand(1.0), operand(1.0000001), operand(0.25)
    ('1', '1.0000001', '0.25')
    """
    texts = (_in_digits(value, digits) for digits in range(6, 18))
    return next(text for text in texts if text.lstrip("-") != "1" or abs(value) == 1)


def _in_digits(value: float, digits: int) -> str:
    if isinstance(value, complex):
        return f"({value:.{digits}g})"
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return re.sub(r"e\+?(-?)0?", r"e\1", f"{value:.{digits}g}")


def limit(dtype: torch.dtype) -> str:
    """The largest number of a dtype.

    >>> limit(torch.float32), limit(torch.float16)
    ('3.4e38', '65504')
    """
    largest = torch.finfo(dtype).max
    return number(largest) if largest < 1e6 else f"{largest:.2g}".replace("e+", "e")


def _computes(name: str) -> bool:
    """Whether an operator computes numbers, as opposed to moving them, or writing down one that it was given."""
    known = numerics_of(name)
    return not known.moves and known.makes == "numbers" and name != "full"


def _entrywise(operands: Any, out: Tensor) -> bool:
    """Whether each element of the result belongs to one element of each operand, as far as shapes tell."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    if not tensors or any(isinstance(operand, (tuple, list)) for operand in operands) or any(map(is_sparse, tensors)):
        return False
    try:
        shapes = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    except RuntimeError:
        return False
    return shapes == out.shape


def _born(name: str, operands: Any, out: Tensor, entries: Tensor, dtype: torch.dtype) -> Computation:
    large = any(
        bool(((here.abs() > torch.finfo(here.dtype).max ** 0.5) & torch.isfinite(here)).any())
        for here in map(numbers_of, tensors_in(operands))
        if here is not None
    )
    return _written(name, operands, out, entries, dtype, large)


def _written(name: str, operands: Any, out: Tensor, entries: Tensor, dtype: torch.dtype, large: bool) -> Computation:
    index = tuple(entries.nonzero()[0].tolist()) if entries.dim() else ()
    result = out[index].item()
    if name in SAID and not any(map(is_sparse, tensors_in(operands))):
        text = SAID[name](operands, out, index)
        if text:
            formula = re.split("[:,]", text)[0]  # what follows is a remark
            text = formula + _ends(result, dtype, True) + text[len(formula) :]
            return Computation(name, (), text, result, large)
    known = numerics_of(name)
    if _entrywise(operands, out) and (known.written or known.elementwise or is_pointwise(name)):
        numbers = [each for each in operands if isinstance(each, (Tensor, float, int)) and not isinstance(each, bool)]
        values = tuple(
            each.broadcast_to(out.shape)[index].item() if isinstance(each, Tensor) else each for each in numbers
        )
        is_scaled = known.written_scaled and len(values) > known.written.count("{")
        pattern = known.written_scaled if is_scaled else known.written
        texts = [operand(value) for value in values]
        if pattern.startswith("{} **") and texts[0].startswith("-"):
            texts[0] = f"({texts[0]})"
        try:
            text = pattern.format(*texts) if pattern else f"{name.lstrip('_')}({', '.join(texts)})"
        except IndexError:
            text = f"{name}({', '.join(texts)})"
        born = Computation(name, values, text, result, large)
        return born._replace(text=text + ("" if is_nan(result) else _ends(result, dtype, not born.is_pole)))
    text = f"{name.lstrip('_')} of {_ranges(operands)}" + _ends(result, dtype, False)
    return Computation(name, (), text, result, large)


def _ends(result: float, dtype: torch.dtype, too_large: bool) -> str:
    if isinstance(result, complex) or is_nan(result):
        return f" = {result}"
    if too_large:
        return f" > {limit(dtype)}" if result > 0 else f" < -{limit(dtype)}"
    return f" = {number(result)}"


def _ranges(operands: Any) -> str:
    """The ranges of the operands' numbers, for operators of which one element says little."""
    texts = []
    for tensor in tensors_in(operands):
        here = numbers_of(tensor)
        if here is None:
            continue
        kinds = []
        finite = here[torch.isfinite(here)]
        if finite.numel() and not here.is_complex():
            low, high = float(finite.min()), float(finite.max())
            kinds.append(f"all {number(low)}" if low == high else f"{number(low)} to {number(high)}")
        for name, has in (("nan", here.isnan()), ("inf", here == math.inf), ("-inf", here == -math.inf)):
            if has.any():
                kinds.append(name)
        texts.append(f"{'×'.join(map(str, here.shape)) or 'one'} elements ({', '.join(kinds)})")
    return ", ".join(texts[:3]) or "no elements"


# Operators that combine many elements: each has a sentence of its own.

SAID: dict[str, Callable[[Sequence[Any], Tensor, tuple[int, ...]], str]] = {}
"""How to write an operator, given its operands, its result and the index of an element; empty for the usual text."""


def _said(names: str) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        SAID.update(dict.fromkeys(names.split(), function))
        return function

    return keep


@_said("mm addmm bmm mv dot vdot")
def _product(operands: Sequence[Any], out: Tensor, index: tuple[int, ...]) -> str:
    """The first product that makes the element what it is, of those that are added up to it."""
    (*added, left, right), result = tensors_in(operands), out[index]
    if left.dim() == 3:
        left, right, index = left[index[0]], right[index[0]], index[1:]
    left = left[index[0]] if left.dim() == 2 else left
    right = right[:, index[1]] if right.dim() == 2 else right
    products = left * right
    count = f"{len(products)} product{'s' * (len(products) != 1)}"
    bad = products.isnan() if result.isnan() else products == result
    if bad.any():
        at = int(bad.nonzero()[0])
        return f"{number(left[at].item())} × {number(right[at].item())}, one of {count} that are added"
    count += " and another number" * len(added)
    return f"inf − inf, in a sum of {count}" if result.isnan() else f"the sum of {count}"


@_said("sum mean nansum")
def _sum(operands: Sequence[Any], out: Tensor, index: tuple[int, ...]) -> str:
    row = _reduced(operands, index)
    if row is None:
        return ""
    if not row.numel():
        return "0 / 0, the mean of no elements"
    if (row == math.inf).any() and (row == -math.inf).any():
        return "inf − inf, in a sum"
    if row.isnan().any():
        return f"a sum with nan among {row.numel()} elements"
    if out[index].isnan():
        return f"inf − inf, in a sum of {row.numel()} elements"
    return f"the sum of {row.numel()} elements of up to {number(float(row.abs().max()))}"


@_said("nll_loss_forward nll_loss2d_forward")
def _nll_loss(operands: Sequence[Any], out: Tensor, index: tuple[int, ...]) -> str:
    _, target, weight, _, left_out = operands
    targets = target[target != left_out]
    if not targets.numel():
        return "0 / 0, the mean of no elements"
    return "0 / 0, the mean of weights that are 0" if weight is not None and not weight[targets].any() else ""


@_said("var std var_mean std_mean")
def _var(operands: Sequence[Any], out: Tensor, index: tuple[int, ...]) -> str:
    row = _reduced(operands, index)
    if row is None or row.numel() > 1:
        return ""
    return f"0 / 0, the spread of {'one element' if row.numel() else 'no elements'}"


@_said("_softmax _log_softmax _safe_softmax logsumexp")
def _softmax(operands: Sequence[Any], out: Tensor, index: tuple[int, ...]) -> str:
    tensor, dim = operands[:2]
    dim = dim[0] if isinstance(dim, (tuple, list)) else dim
    if out.shape != tensor.shape:
        return ""
    row = tensor
    if index:
        others = list(index)
        del others[dim]
        row = tensor.movedim(dim, -1)[tuple(others)]
    if (row == -math.inf).all():
        return f"inf − inf: all {row.numel()} elements of the row are -inf"
    return "inf − inf: an element of the row is inf" if (row == math.inf).any() else ""


@_said("_log_softmax_backward_data")
def _log_softmax_backward(operands: Sequence[Any], out: Tensor, index: tuple[int, ...]) -> str:
    gradient, result, dim = operands[:3]
    total = gradient.sum(dim, keepdim=True).broadcast_to(out.shape)
    arriving, value, of_row = (number(each[index].item()) for each in (gradient, result, total))
    return f"{arriving} − exp({value}) × {of_row}"


def _reduced(operands: Sequence[Any], index: tuple[int, ...]) -> Tensor | None:
    """The elements that were reduced to one element of the result."""
    tensor: Tensor = operands[0]
    dims = operands[1] if len(operands) > 1 else None
    if dims is None or dims == []:
        return tensor.reshape(-1)
    if not isinstance(dims, (int, tuple, list)) or isinstance(dims, bool):
        return None
    gone = {dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims)}
    kept = [dim for dim in range(tensor.dim()) if dim not in gone]
    moved = tensor.permute(*kept, *sorted(gone))
    if len(index) == tensor.dim():  # keepdim
        index = tuple(index[dim] for dim in kept)
    return moved[index].reshape(-1) if len(index) == len(kept) else None
