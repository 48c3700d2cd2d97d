"""The calls that led to a tensor, which can run again in exact arithmetic.

If a number is not finite, the calls before it run again in float64. This shows whether the value does not exist, or
only an intermediate number was too large, too small or rounded: softplus(-110) is 1.7e-48, but 0 in float32.

A call is used only if it returns exactly the same result again. So a random function, or a tensor that was changed in
place since, ends the chain. Tensors from before the chain are used unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ...ignoring.inside import tree_map, tree_map_only
from ..program.code import place_at
from ..program.rerun import on_copies, rerun, without_side_effects
from ..program.tensors import node_of
from .call import Call

DEPTH = 12
"""The largest number of calls before the last call that run again."""

_CONVERSIONS = "float", "half", "bfloat16"

_NO_MODE = nullcontext()


@dataclass
class Chain:
    """A call, and the calls before it that computed its operands. The tensors in it are detached.

    Attributes:
        call: the last call.
        made: by the identity of a tensor, the tensor and the call that computed it.
        wanted: the identities of the tensors that had a gradient.
        order: the order of the derivative that the program computes: 2 for the gradient of a gradient.
    """

    call: Call
    made: dict[int, tuple[Tensor, Call]] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    order: int = 1

    def of(self, tensor: Any) -> Call | None:
        """The call that computed a tensor, if it is in the chain."""
        found = self.made.get(id(tensor))
        return None if found is None else found[1]

    def calls(self) -> list[Call]:
        """The calls, in reverse order of time: the last call comes first."""
        return [self.call, *(call for _, call in reversed(self.made.values()))]

    def with_calls(self, change: Callable[[Call], Call]) -> Chain:
        """The chain with `change` applied to each call."""
        made = {key: (tensor, change(call)) for key, (tensor, call) in self.made.items()}
        return replace(self, call=change(self.call), made=made)

    def through(
        self, tensors: Mapping[int, Tensor], function: Callable[[Tensor], Tensor], takes: Callable[[Call], Any]
    ) -> Chain:
        """The chain in which some calls get a function of some tensors, by identity, in place of these tensors."""
        results = {key: function(tensor) for key, tensor in tensors.items()}

        def changed(call: Call) -> Call:
            args, kwargs = call.args, dict(call.kwargs)
            if takes(call):
                args, kwargs = tree_map_only(Tensor, lambda each: results.get(id(each), each), (args, kwargs))
            return call._replace(args=args, kwargs=kwargs)

        chain = self.with_calls(changed)
        put = {
            id(results[key]): (results[key], Call(function, "", self.call.place, (tensor,)))
            for key, tensor in tensors.items()
        }
        return replace(chain, made={**chain.made, **put})

    def checked(self) -> Chain:
        """The chain without the calls that do not return the same result again."""
        made = {key: pair for key, pair in self.made.items() if _gives(pair[1], pair[0])}
        return replace(self, made=made)

    def run(
        self,
        dtype: torch.dtype | None = None,
        given: Mapping[int, Tensor] = MappingProxyType({}),
        mode: AbstractContextManager[Any] = _NO_MODE,
    ) -> Run:
        """Run the chain again, and record a graph.

        Args:
            dtype: the dtype of all floating-point tensors. By default, the program's.
            given: by the identity of a tensor, the value to use for it. Other tensors that no call in the chain
                computed are used unchanged.
            mode: a context that is entered while the calls and their derivatives run.
        """
        run = Run({}, {}, None, self.order, mode)
        with without_side_effects(), torch.enable_grad(), mode:
            for key, value in given.items():
                run.take(key, value, dtype, key in self.wanted)
            run.result = self._result(self.call, run, dtype)
        return run

    def _result(self, call: Call, run: Run, dtype: torch.dtype | None) -> Any:
        def computed(thing: Any) -> Any:
            if isinstance(thing, Tensor):
                return self._value(thing, run, dtype)
            return dtype if isinstance(thing, torch.dtype) and dtype is not None and thing.is_floating_point else thing

        args, kwargs = tree_map(computed, (tuple(call.args), dict(call.kwargs)))
        return result_of(call, dtype, args, kwargs)

    def _value(self, tensor: Tensor, run: Run, dtype: torch.dtype | None) -> Any:
        key, call = id(tensor), self.of(tensor)
        if key not in run.values:
            if call is None:
                run.take(key, tensor, dtype, key in self.wanted)
            else:
                run.values[key] = self._result(call, run, dtype)
        return run.values[key]


@dataclass
class Run:
    """The results of a chain that ran again.

    Attributes:
        values: by the identity of a tensor of the chain, its value in this run, in the order of computation.
        leaves: the values that no call computed, and that have a gradient.
        result: the result of the last call.
        order: the order of the chain.
        mode: a context that is entered while its derivatives are computed.
    """

    values: dict[int, Any]
    leaves: dict[int, Tensor]
    result: Any
    order: int = 1
    mode: AbstractContextManager[Any] = _NO_MODE

    def take(self, key: int, tensor: Tensor, dtype: torch.dtype | None, wanted: bool) -> None:
        """Use a copy of a tensor as a value; as a leaf, if its gradient is wanted."""
        value = on_copies(tensor)
        if value.is_floating_point() or value.is_complex():
            value = in_dtype(dtype, value)
            if wanted:
                self.leaves[key] = value.requires_grad_()
        self.values[key] = value


def result_of(call: Call, dtype: torch.dtype | None, args: Any, kwargs: Any, narrows: bool = False) -> Any:
    """What a call gives for arguments that are in a dtype, if this is not None: there, `x.half()` rounds nothing.

    Args:
        narrows: whether it does round.
    """
    if dtype is None:
        return call.again(args, kwargs)
    if call.name in _CONVERSIONS and not narrows:
        return args[0].to(dtype)  # of bools, too
    result = call.run(args, kwargs)
    return in_dtype(dtype, result) if isinstance(result, Tensor) else result  # it may have been made from no tensor


def in_dtype(dtype: torch.dtype | None, tensor: Tensor) -> Tensor:
    """A tensor in a floating-point dtype; if it is complex, in the complex dtype with such parts."""
    if dtype is None or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor.to(dtype.to_complex() if tensor.is_complex() else dtype)


def chain_of(call: Call, has_gradient: bool, computed_by: Callable[[Tensor], Call | None], order: int) -> Chain:
    """A call with the calls before it, as far as `computed_by` knows the call that computed a tensor.

    Under `no_grad`, the result has no gradient, so only the value has to be right.
    """
    detached: dict[int, Tensor] = {}
    chain = Chain(call, order=order)

    def without_graph(tensor: Tensor, depth: int) -> Tensor:
        if id(tensor) not in detached:
            detached[id(tensor)] = copy = tensor.detach()
            if tensor.requires_grad and has_gradient:
                chain.wanted.add(id(copy))
            is_leaf = tensor.requires_grad and node_of(tensor) is None
            before = computed_by(tensor) if depth and not is_leaf else None
            base = tensor._base
            if before is not None:
                chain.made[id(copy)] = copy, of(before, depth - 1)
            elif depth and base is not None and computed_by(base) is not None:
                chain.made[id(copy)] = copy, of(_view(tensor, base), depth)
        return detached[id(tensor)]

    def of(call: Call, depth: int) -> Call:
        detach = functools.partial(without_graph, depth=depth)
        args, kwargs = tree_map_only(Tensor, detach, (tuple(call.args), dict(call.kwargs)))
        return call._replace(args=args, kwargs=kwargs)

    chain.call = of(call, DEPTH)
    return chain


def _view(tensor: Tensor, base: Tensor) -> Call:
    """A call that gives a view of a tensor. The calls of views are not kept, because they compute nothing."""
    form = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.is_complex()
    return Call(_strided, "as_strided", place_at("", 0, "", None), (base, *form))


def view_like(base: Tensor, tensor: Tensor) -> Tensor:
    """A view of `base`, with the shape, strides and offset that `tensor` has in its own base."""
    return _strided(base, tensor.size(), tensor.stride(), int(tensor.storage_offset()), tensor.is_complex())


def _strided(base: Tensor, size: Sequence[int], stride: Sequence[int], offset: int, is_complex: bool) -> Tensor:
    if is_complex and not base.is_complex():
        pairs = base.as_strided((*size, 2), (*(2 * each for each in stride), 1), 2 * offset)
        return torch.view_as_complex(pairs)
    parts = torch.view_as_real(base) if base.is_complex() and not is_complex else base
    return parts.as_strided(size, stride, offset)


def _gives(call: Call, result: Tensor) -> bool:
    """Whether a call gives the same once more."""
    try:
        with rerun():
            again = call.again(on_copies(call.args), on_copies(call.kwargs))
        is_alike = isinstance(again, Tensor) and again.dtype is result.dtype
        return is_alike and torch.equal(again.nan_to_num(1.5, 2.5, 3.5), result.nan_to_num(1.5, 2.5, 3.5))
    except Exception:
        return False
