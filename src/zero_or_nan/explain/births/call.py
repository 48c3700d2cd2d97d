"""A call of a function by the user's code, experiments with this call, and the birth that they find.

If a result is not finite, the call runs again on copies, with finite numbers in place of some NaN and infinities. The
changes of the result show which elements the operator made, and which came with an operand.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...functions.numerics import numerics_of
from ...ignoring.inside import any_of, is_sparse, part_here, tree_map_only, was_broadcast
from ..program.code import Place, Plan, optimizer_here, plan_of
from ..program.rerun import RandomState, on_copies, rerun
from ..program.tensors import (
    NeedsOthersError,
    each_in,
    first_entries,
    first_stored,
    is_finite,
    not_finite,
    numbers_of,
    tensors_in,
)
from .arithmetic import Computation, first_born, is_nan, number
from .provenance import Birth

Change = Callable[[Tensor], Tensor]


class Call(NamedTuple):
    """A call of a function by the user's code.

    Attributes:
        func, args, kwargs: the function and its arguments.
        name: the public name of the function.
        place: the place of the call.
        casts: the dtype to which autocast casts operands; None if it is off.
        is_recorded: False under `no_grad`.
        needs_others: whether the call can't run again, because it exchanges tensors with other processes.
        drawn: the state of the random numbers before the call, if it draws some that it would draw in each dtype.
        is_old: whether the same place in the code made another call before the call that is explained.
    """

    func: Any
    name: str
    place: Place
    args: Any = ()
    kwargs: Any = MappingProxyType({})
    casts: torch.dtype | None = None
    is_recorded: bool = True
    needs_others: bool = False
    drawn: RandomState | None = None
    is_old: bool = False

    @property
    def plan(self) -> Plan:
        return plan_of(self.func)

    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return list(tensors_in((self.args, self.kwargs)))

    def is_again(self, other: Call) -> bool:
        """Whether another call comes from the same place in the code."""
        return self.place == other.place and self.name == other.name

    def is_same(self, other: Call) -> bool:
        """Whether another call is this call in another chain: the place and the operands' memory are the same."""
        operands, others = ([each for each in of.tensors() if each.layout is torch.strided] for of in (self, other))
        return self.is_again(other) and [*map(Tensor.data_ptr, operands)] == [*map(Tensor.data_ptr, others)]

    def is_beside(self, other: Call) -> bool:
        """Whether another call is in the same line of code."""
        return self.place.code is other.place.code and self.place.line == other.place.line

    def again(self, args: Any, kwargs: Any) -> Any:
        """The results of the function with these arguments, under this call's autocast."""
        if self.casts is None:
            return self.run(args, kwargs)
        with torch.autocast(self.tensors()[0].device.type, dtype=self.casts):
            return self.run(args, kwargs)

    def run(self, args: Any, kwargs: Any) -> Any:
        """The results of the function with these arguments, and with the same random numbers."""
        if self.needs_others:
            raise NeedsOthersError(f"{self.name} needs the other processes")
        if self.drawn is not None:
            self.drawn.put_back()
        return self.func(*args, **kwargs)

    def on_this_process(self, results: Mapping[int, Tensor]) -> Call:
        """The call on this process's parts of distributed tensors, if its results are the same.

        Args:
            results: some of its results on this process, each by its position.
        """
        args, kwargs = tree_map_only(Tensor, part_here, (self.args, self.kwargs))
        here = self._replace(args=args, kwargs=kwargs)
        again = ((here.result(at, result), result) for at, result in results.items())
        return here._replace(needs_others=not all(one is not None and bool(_same(one, it).all()) for one, it in again))

    def infinite_number(self) -> float | None:
        """The first NaN or infinity among the arguments, outside tensors."""
        return next((number for number in each_in((self.args, self.kwargs), float) if not math.isfinite(number)), None)

    def results(self, change: Change | None = None) -> list[Tensor | None]:
        """The results of running the call again on copies, to which `change` is applied first."""
        args = on_copies(self.args, change)
        with rerun():
            result = self.run(args, on_copies(self.kwargs, change))
        return [numbers_of(tensor) for tensor in tensors_in(args[:1] if result is None else result)]

    def result(self, at: int, like: Tensor, change: Change | None = None) -> Tensor | None:
        """One of these results; None if the call can't run again, or if the shape differs."""
        try:
            alone = self.results(change)[at]
        except Exception:
            return None
        return alone if alone is not None and alone.shape == like.shape else None


def casts_on(device: str) -> torch.dtype | None:
    """The dtype to which autocast now casts on a type of device; None if autocast is off, or if the device has none."""
    is_on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_on else None


def in_order(call: Call) -> list[Any]:
    """The arguments of a call in the order in which an operator has its operands: `1 - x` is a call with x first."""
    name = getattr(call.func, "__name__", "")
    is_reversed = name == "rsub" or name.startswith("__r") and name not in ("__repr__", "__round__")
    return [*call.args[1::-1], *call.args[2:]] if is_reversed else list(call.args)


class Arranged(NamedTuple):
    """The arguments of a call.

    Attributes:
        operands: in the order in which an operator has them.
        options: the other arguments, by name.
        unusual: the names of the options without their default value.
    """

    operands: list[Any]
    options: dict[str, Any]
    unusual: set[str]


def arranged(call: Call) -> Arranged:
    """The arguments of a call, arranged by the function's signature, if the function has one in Python."""
    try:
        parameters = inspect.signature(call.func).parameters
        given = inspect.signature(call.func).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return Arranged(in_order(call), dict(call.kwargs), {key for key, each in call.kwargs.items() if each})
    optional = {key: each.default for key, each in parameters.items() if each.default is not each.empty}
    operands = [each for key, each in given.items() if key not in optional]
    options = {key: given.get(key, default) for key, default in optional.items() if key != "_stacklevel"}
    unusual = {key for key, each in options.items() if isinstance(each, Tensor) or each != optional[key]}
    return Arranged(in_order(call._replace(args=tuple(operands))), options, unusual)


# Experiments with a call whose result is not finite.


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
"""Changes that put finite numbers in place of NaN and infinity. There are several, because a single number may be a
pole, as 1 is for `logit`, and equal numbers make a matrix singular, or the spread of a row 0."""


def apart(call: Call, result: Tensor, bad: Tensor, came: Sequence[Tensor], at: int) -> Tensor | None:
    """The bad elements that an operator made, as opposed to those that came with an operand; None if it made none.

    Such an element stays the same if any finite numbers replace the operands' NaN and infinities. `bad` says where the
    result at position `at` is not finite, and `came` where each such operand is not.
    """
    if not came:
        return bad
    births = bad
    if call.infinite_number() is None:  # such a number may have replaced an element of an operand
        for bad_there in came:
            if bad_there.shape == bad.shape and torch.equal(bad_there, bad):  # the usual case
                return None
            if was_broadcast(bad_there.shape, bad.shape):
                births = births & ~bad_there
        if not any_of(births):  # found out without another run
            return None
    for change in _STAND_INS:
        alone = call.result(at, result, change)
        if alone is None or is_finite(alone):
            return None
        births = births & _same(alone, result)
        if not any_of(births):
            return None
    return births


def came_too(call: Call, births: Tensor, at: int) -> Tensor:
    """The elements that an operator made, but that the NaN and infinities of its operands alone explain as well.

    Such an element stays not finite if all finite numbers become small. The function tries two small numbers, because
    one of them may be a pole.
    """
    for small in (1.0, 0.5):
        alone = call.result(at, births, functools.partial(_small_ones, small=small))
        if alone is None:
            return torch.zeros_like(births)
        births = births & not_finite(alone)
    return births


def _small_ones(tensor: Tensor, small: float) -> Tensor:
    return torch.where(not_finite(tensor), tensor, small)


def of_infinities(
    call: Call, result: Tensor, bad: Tensor, inputs: Sequence[Tensor], at: int, change: Change
) -> tuple[Tensor, bool]:
    """The effect on a result of infinities that leave elements out, if all other numbers are finite.

    Args:
        call, result, at: as for `apart`.
        bad: the elements that are not finite, and that an operator did not make.
        inputs: the numbers of the operands that are not finite.
        change: keeps these infinities, and puts finite numbers in place of all other infinities and NaN.

    Returns:
        The elements that are undefined because of these infinities alone, and whether the infinities did any harm: they
        made such elements, or the result passes them on.
    """
    alone: Tensor | None = result
    if not all(torch.equal(change(value), value) for value in inputs):
        alone = call.result(at, bad, change)
    if alone is None:
        return torch.zeros_like(bad), True
    wrong = bad & not_finite(alone)
    return (wrong if numerics_of(call.name).needs_one else wrong & alone.isnan()), any_of(wrong)


def was_there(call: Call, result: Tensor, bad: Tensor, at: int) -> Tensor:
    """The elements that were already not finite before an in-place function overwrote them.

    No finite number would have become the present value of such an element.
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
    """The tensor that an in-place call has overwritten, with a finite number for each element that was replaced.

    The function runs again on a copy of the overwritten tensor, and this time it writes only finite numbers.
    """

    def finite(value: Any) -> Any:
        return 1.0 if isinstance(value, float) and not math.isfinite(value) else value

    target = on_copies(args[0])
    given, named = on_copies((args[1:], kwargs), torch.ones_like)
    with rerun():
        func(target, *map(finite, given), **{name: finite(value) for name, value in named.items()})
    return numbers_of(target)


# The descriptions of births: which call, which elements, made of which numbers.

UNREADABLE = ", which explain can't read"
"""The end of the text about a NaN or infinity that came out of an unreadable tensor."""


def describe(
    nature: Any, call: Call, whole: Tensor, entries: Tensor, operands: str, phase: Any = "forward", **more: Any
) -> Birth:
    """A birth in some elements of a tensor."""
    where = first_stored(whole, entries) if is_sparse(whole) else None
    shape = entries.shape if where is None else whole.shape
    where = first_entries(entries) if where is None else where
    count, kind = int(entries.sum()), (tuple(shape), whole.dtype, whole.device)
    here = numbers_of(whole)
    is_nan = here is not None and here.shape == entries.shape and not bool((entries & ~here.isnan()).any())
    return Birth(nature, phase, call.name, call.place, where, count, *kind, operands, is_nan=is_nan, **more)


def come_in(tensor: Tensor, here: Tensor, call: Call) -> Birth:
    """The birth of a NaN or infinity in a tensor that nothing in the block made."""
    bad = not_finite(here)
    first = here[bad][0].item()
    infinite = first if isinstance(first, float) and bool((here[bad] == first).all()) else 0.0
    base = None if tensor._base is None else weakref.ref(tensor._base)
    return describe("given", call, tensor, bad, number(first), infinite=infinite, tensor=weakref.ref(tensor), base=base)


def come_from(source: str, tensor: Tensor, here: Tensor, call: Call, held: bool = False) -> Birth:
    """The birth of a NaN or infinity in a tensor from a source outside the block."""
    bad = not_finite(here)
    return describe("given", call, tensor, bad, f"{number(here[bad][0].item())} {source}", held=held)


def newborn(call: Call, result: Tensor, entries: Tensor, at: int, change: Change) -> Birth:
    """The birth of elements of the result at a position: the call made them, or an argument is this number.

    `change` puts finite numbers in place of those NaN and infinities of the operands that did not cause the elements.
    """
    written, optimizer = call.infinite_number(), optimizer_here()
    here = numbers_of(result)
    if written is not None and (is_nan(written) or optimizer):
        return describe("given", call, result, entries, str(written), optimizer=optimizer)
    if written is not None and not (here is not None and bool((here.isnan() & entries).any())):
        return describe("meant", call, result, entries, str(written), infinite=written)
    args, kwargs = on_copies((call.args, call.kwargs), change)
    born = first_born(lambda: call.run(args, kwargs), entries)
    is_overwritten = any(result is each for each in tensors_in(call.args[:1]))  # the experiments have 1 in its place
    made_nan = here is not None and not bool((entries & ~here.isnan()).any())
    is_of_lost_number = is_overwritten and not optimizer and born is None and made_nan  # as `log_` of -1
    too_large = not is_of_lost_number and _only_too_large(call, entries, at, born, result, change)
    text = born.text if born is not None else ""
    of_large = born is not None and born.of_large
    if is_overwritten:
        divided = re.match(r"1 (/ \S+)", text)
        text = f"… {divided[1]}" if divided is not None else text[4:] if text.startswith("1 + ") else ""
    more = {"too_large": too_large, "of_large": of_large, "optimizer": optimizer}
    return describe("made", call, result, entries, text, **more)


def _only_too_large(
    call: Call, entries: Tensor, at: int, born: Computation | None, result: Tensor, change: Change
) -> bool:
    """Whether the true value is a number that the dtype has no room for."""
    if born is not None and is_nan(born.result) and not born.of_large:
        return False
    wider = call.result(at, entries, lambda tensor: _in_double(change(tensor)))
    if wider is not None and wider.dtype != result.dtype and any_of(entries & ~not_finite(wider)):
        return True
    if born is None:  # a sum of products of finite numbers has a value
        return numerics_of(call.name).products
    return not born.is_pole


def _in_double(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
