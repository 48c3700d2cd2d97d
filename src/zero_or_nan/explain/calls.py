"""A call whose result is not finite, and experiments with it.

The call runs again on copies, with finite numbers in place of some that are not. How the result changes shows which of
its elements the operator made, and which came with an operand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from ..masks.mask import was_broadcast
from .arithmetic import Born, first_born, on_copies, rerun
from .functions import WEIGHS_ALL
from .places import Place
from .tensors import any_of, each_in, is_finite, not_finite, numbers_of, tensors_in

Change = Callable[[Tensor], Tensor]


class Call(NamedTuple):
    """A call of a function by the user's code."""

    func: Any
    name: str
    place: Place
    args: Any = ()
    kwargs: Any = MappingProxyType({})

    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return list(tensors_in((self.args, self.kwargs)))

    def infinite_number(self) -> float | None:
        """The first argument, not in a tensor, that is a NaN or an infinity."""
        return next((number for number in each_in((self.args, self.kwargs), float) if not math.isfinite(number)), None)

    def results(self, change: Change | None = None) -> list[Tensor | None]:
        """The results of running it again on copies, changed first."""
        args = on_copies(self.args, change)
        with rerun():
            result = self.func(*args, **on_copies(self.kwargs, change))
        return [numbers_of(tensor) for tensor in tensors_in(args[:1] if result is None else result)]

    def result(self, at: int, like: Tensor, change: Change | None = None) -> Tensor | None:
        """One of these results, or None if it cannot run again or gives another shape."""
        try:
            alone = self.results(change)[at]
        except Exception:
            return None
        return alone if alone is not None and alone.shape == like.shape else None

    def first_born(self, entries: Tensor, change: Change | None = None) -> Born | None:
        """The first number in it that is not finite, when it is run again on copies, changed first."""
        args, kwargs = on_copies(self.args, change), on_copies(self.kwargs, change)
        return first_born(lambda: self.func(*args, **kwargs), entries)


def finite_ones(tensor: Tensor, keep: Collection[float] = ()) -> Tensor:
    """The tensor, with 1 in place of each NaN and infinity, except for the infinities to keep."""
    if not keep and not tensor.is_complex():
        return tensor.nan_to_num(1.0, 1.0, 1.0)
    goes = not_finite(tensor)
    for infinity in keep:
        goes &= tensor != infinity
    return torch.where(goes, 1.0, tensor)


def _all_different(tensor: Tensor, scale: float) -> Tensor:
    """The tensor, with another number between ¼ and ¾ of the scale for each element that is not finite."""
    numbers = scale * (torch.arange(tensor.numel(), dtype=torch.float32, device=tensor.device) * 0.618 % 0.5 + 0.25)
    return torch.where(not_finite(tensor), numbers.reshape(tensor.shape).to(tensor.dtype), tensor)


_STAND_INS: tuple[Change, ...] = (
    finite_ones,
    *(functools.partial(_all_different, scale=scale) for scale in (1.0, 1000.0, -1000.0)),
)
"""Changes that put finite numbers in place of others. One number is not enough to know how a function treats finite
numbers: it may be a pole, as 1 is of `logit`, and equal numbers make a matrix singular, or leave a row no spread."""


def apart(call: Call, result: Tensor, bad: Tensor, came: Sequence[Tensor], at: int) -> Tensor | None:
    """The elements that an operator made, as opposed to those that came with an operand; None if it made none.

    Such an element is the same whatever finite numbers take the place of the operands' NaN and infinities.

    Args:
        call: the call of the operator.
        result: one of its results.
        bad: its elements that are not finite.
        came: the same of each operand that is not finite.
        at: the position of the result among the results.
    """
    if not came:
        return bad
    births = bad
    if call.infinite_number() is None:  # such a number may have replaced an element of an operand
        for mask in came:
            if mask.shape == bad.shape and torch.equal(mask, bad):  # the usual case
                return None
            if was_broadcast(mask.shape, bad.shape):
                births = births & ~mask
        if not any_of(births):  # found out without another run
            return None
    if _is_small_product(call, result):
        return None
    for change in _STAND_INS:
        alone = call.result(at, result, change)
        if alone is None or is_finite(alone):
            return None
        births = births & _same(alone, result)
        if not any_of(births):
            return None
    return births


_PRODUCTS = frozenset({
    F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm,
    F.conv1d, F.conv2d, F.conv3d,
})  # fmt: skip
"""Functions whose results are sums of products of one element each of their first two arguments."""


def _is_small_product(call: Call, result: Tensor) -> bool:
    """Whether the result is a sum of products, which cannot overflow once 1 is in place of NaN and infinities.

    For large operands it takes much less to find this out than to multiply once more.
    """
    numbers = [tensor for tensor in call.tensors() if type(tensor) in (Tensor, Parameter)]
    if call.func not in _PRODUCTS or len(numbers) != len(call.tensors()) or result.is_complex():
        return False
    sizes = []
    for tensor in numbers:
        here = numbers_of(tensor)
        if here is None:
            return False
        sizes.append(max(1.0, *(abs(float(end)) for end in torch.aminmax(finite_ones(here)))))
    largest = max(numbers[0].numel(), numbers[1].numel()) * sizes[0] * sizes[1] + max(sizes)
    return largest < torch.finfo(result.dtype).max / 2


def came_too(call: Call, births: Tensor, at: int) -> Tensor:
    """The elements that an operator made, and that its operands alone would make not finite as well.

    Such an element stays not finite if all finite numbers become small. Two small numbers are tried, because one of
    them may be a pole.
    """
    for small in (1.0, 0.5):
        alone = call.result(at, births, functools.partial(_small_ones, small=small))
        if alone is None:
            return torch.zeros_like(births)
        births = births & not_finite(alone)
    return births


def _small_ones(tensor: Tensor, small: float) -> Tensor:
    return torch.where(not_finite(tensor), tensor, small)


def of_masks(
    call: Call, result: Tensor, bad: Tensor, inputs: Sequence[Tensor], at: int, change: Change
) -> tuple[Tensor, bool]:
    """The effect that the infinities of masks have on a result if all other numbers are finite.

    Args:
        call, result, inputs, at: as for `apart`.
        bad: the elements that are not finite, and that an operator did not make.
        change: leaves the infinities of masks, and puts finite numbers in place of the others.

    Returns:
        The elements that are undefined because of the masks alone, and whether the masks did any harm: such elements,
        or infinities that the result passes on.
    """
    alone: Tensor | None = result
    if not all(torch.equal(change(value), value) for value in inputs):
        alone = call.result(at, bad, change)
    if alone is None:
        return torch.zeros_like(bad), True
    wrong = bad & not_finite(alone)
    return (wrong if call.name in WEIGHS_ALL else wrong & alone.isnan()), any_of(wrong)


def was_there(call: Call, result: Tensor, bad: Tensor, at: int) -> Tensor:
    """The elements that were already not finite when a function in place overwrote them.

    No finite number would have become what such an element is now.
    """
    largest = torch.finfo(result.dtype).max
    for value in (0.0, 1.0, -1.0, largest, -largest):
        target = on_copies(call.args[0], functools.partial(torch.full_like, fill_value=value))
        alone = call._replace(args=(target, *call.args[1:])).result(at, bad)
        if alone is None:
            return torch.zeros_like(bad)
        bad = bad & ~_same(alone, result)
    return bad


def _same(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | (one.isnan() & other.isnan())


def recovered(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The tensor that one of `REPLACES` has overwritten, with a finite number for each element that was replaced.

    The function runs again on the tensor as it is now, and this time it writes finite numbers only.
    """
    target = on_copies(args[0])
    given, named = on_copies((args[1:], kwargs), torch.ones_like)
    with rerun():
        func(target, *map(_finite_number, given), **{name: _finite_number(value) for name, value in named.items()})
    return numbers_of(target)


def _finite_number(value: Any) -> Any:
    return 1.0 if isinstance(value, float) and not math.isfinite(value) else value
