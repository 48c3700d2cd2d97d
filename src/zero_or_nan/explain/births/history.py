"""The calls that led to a tensor, and what they give in exact arithmetic.

While a block runs, `History` keeps its last calls, with their operands. When a number is not finite, the calls before
it run again in float64. This decides whether a value does not exist, or only a number on the way was too large, too
small or rounded: softplus(-110) is 1.7e-48, and in float32 it is 0.

A call is used only if it gives, run again as it was, exactly what it gave: so random functions, and tensors that were
changed in place since, end the chain. What is before the chain is taken as it is.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..program.tensors import on_copies, rerun, without_side_effects
from .call import Call
from .provenance import Birth

MOST_CALLS = 2000
"""The number of calls that are kept."""

MOST_BYTES = 1 << 28
"""The size of the operands that are kept."""

DEPTH = 12
"""The number of calls before the last one that are run again."""


AFTER = 3
"""The number of calls after it of which each may be part of the same formula."""


class Step(NamedTuple):
    """A call, what it gave, the node of the result, and the size of the operands in bytes."""

    call: Call
    result: weakref.ref[Tensor]
    node: Any
    size: int


class History:
    """The last calls of a block, by their results and by the nodes of these."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, Step] = OrderedDict()
        self._by_node: dict[Any, Step] = {}
        self._births: WeakKeyDictionary[Birth, Step] = WeakKeyDictionary()
        self._bytes = 0

    def note(self, call: Call, result: Tensor, node: Any) -> None:
        """Keep a call that computed a new tensor."""
        tensors = call.tensors()
        size = sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided)
        if not tensors or size > MOST_BYTES // 8 or result.is_inference():
            return
        self._drop(id(result))
        self._steps[id(result)] = step = Step(call, weakref.ref(result), node, size)
        self._bytes += size
        if node is not None:
            self._by_node[node] = step
        while len(self._steps) > MOST_CALLS or self._bytes > MOST_BYTES:
            self._drop(next(iter(self._steps)))

    def _drop(self, key: int) -> None:
        step = self._steps.pop(key, None)
        if step is not None:
            self._bytes -= step.size
            self._by_node.pop(step.node, None)

    def of(self, tensor: Tensor) -> Step | None:
        """The call that computed a tensor; None if it isn't known."""
        step = self._steps.get(id(tensor))
        return step if step is not None and step.result() is tensor else None

    def of_node(self, node: Any) -> Step | None:
        """The call whose derivative a node computes."""
        return self._by_node.get(node)

    def note_birth(self, birth: Birth, step: Step | None) -> None:
        """Note in which call a number was born."""
        if step is not None:
            self._births[birth] = step

    def chains(self, birth: Birth) -> list[Chain]:
        """The call in which a number was born, and those that used its result, each with the calls before it.

        Those that used it come first: a formula of several calls is replaced as a whole.
        """
        step = self._births.pop(birth, None)
        if step is None:
            return []
        found, results = [step], {id(step.result())}
        for later in self._steps.values():
            if any(id(tensor) in results for tensor in later.call.tensors()):
                found.append(later)
                results.add(id(later.result()))
            if len(found) > AFTER:
                break
        return [chain_of(each.call, self) for each in reversed(found)]

    def clear(self) -> None:
        self._steps.clear()
        self._births.clear()
        self._by_node.clear()
        self._bytes = 0


@dataclass
class Chain:
    """A call, and the calls before it that computed its operands. The tensors in it are detached.

    Attributes:
        call: the last call.
        made: by the identity of a tensor, the tensor and the call that computed it.
        wanted: the identities of the tensors that had a gradient.
    """

    call: Call
    made: dict[int, tuple[Tensor, Call]] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)

    def of(self, tensor: Any) -> Call | None:
        """The call that computed a tensor, if it is in the chain."""
        found = self.made.get(id(tensor))
        return None if found is None else found[1]

    def tensors(self) -> list[Tensor]:
        """All operands in the chain."""
        return [*self.call.tensors(), *(tensor for _, call in self.made.values() for tensor in call.tensors())]

    def checked(self) -> Chain:
        """The chain without calls that do not give, run again, what they gave."""
        made = {key: pair for key, pair in self.made.items() if _gives(pair[1], pair[0])}
        return Chain(self.call, made, self.wanted)

    def run(self, dtype: torch.dtype | None = None, given: Mapping[int, Tensor] = MappingProxyType({})) -> Run:
        """Run the chain again, and record a graph.

        Args:
            dtype: of all floating-point tensors; that of the program if left out.
            given: by the identity of a tensor, the value to take for it. Those that no call in the chain computed are
                taken as they are.
        """
        run = Run({}, {}, None)
        with without_side_effects(), torch.enable_grad():
            for key, value in given.items():
                run.take(key, value, dtype, key in self.wanted)
            run.result = self._result(self.call, run, dtype)
        return run

    def _result(self, call: Call, run: Run, dtype: torch.dtype | None) -> Any:
        def computed(thing: Any) -> Any:
            if isinstance(thing, Tensor):
                return self._value(thing, run, dtype)
            if isinstance(thing, (tuple, list)):
                parts = map(computed, thing)
                return type(thing)(*parts) if hasattr(thing, "_fields") else type(thing)(parts)
            if isinstance(thing, dict):
                return {key: computed(value) for key, value in thing.items()}
            return dtype if isinstance(thing, torch.dtype) and dtype is not None and thing.is_floating_point else thing

        result = call.func(*computed(call.args), **computed(dict(call.kwargs)))
        is_float = isinstance(result, Tensor) and result.is_floating_point()
        return result.to(dtype) if is_float and dtype is not None else result  # it may have been made from no tensor

    def _value(self, tensor: Tensor, run: Run, dtype: torch.dtype | None) -> Any:
        if id(tensor) not in run.values:
            call = self.of(tensor)
            if call is None:
                run.take(id(tensor), tensor, dtype, id(tensor) in self.wanted)
            else:
                run.values[id(tensor)] = self._result(call, run, dtype)
        return run.values[id(tensor)]


@dataclass
class Run:
    """What a chain gave when it ran again.

    Attributes:
        values: by the identity of a tensor of the chain, its value now, in the order in which they were computed.
        leaves: those that no call computed, and that have a gradient.
        result: the result of the last call.
    """

    values: dict[int, Any]
    leaves: dict[int, Tensor]
    result: Any

    def take(self, key: int, tensor: Tensor, dtype: torch.dtype | None, wanted: bool) -> None:
        """Take a tensor as it is; as a leaf, if its gradient is wanted."""
        value = on_copies(tensor)
        if value.is_floating_point():
            value = value if dtype is None else value.to(dtype)
            if wanted:
                self.leaves[key] = value.requires_grad_()
        self.values[key] = value


def chain_of(call: Call, history: History) -> Chain:
    """A call with the calls before it."""
    detached: dict[int, Tensor] = {}
    chain = Chain(call)

    def without_graph(thing: Any, depth: int) -> Any:
        if isinstance(thing, Tensor):
            if id(thing) not in detached:
                detached[id(thing)] = copy = thing.detach()
                if thing.requires_grad:
                    chain.wanted.add(id(copy))
                is_leaf = thing.requires_grad and thing.grad_fn is None
                step = history.of(thing) if depth and not is_leaf else None
                if step is not None:
                    chain.made[id(copy)] = copy, of(step.call, depth - 1)
            return detached[id(thing)]
        if isinstance(thing, (tuple, list)):
            parts = [without_graph(part, depth) for part in thing]
            return type(thing)(*parts) if hasattr(thing, "_fields") else type(thing)(parts)
        if isinstance(thing, dict):
            return {key: without_graph(value, depth) for key, value in thing.items()}
        return thing

    def of(call: Call, depth: int) -> Call:
        return call._replace(
            args=without_graph(tuple(call.args), depth), kwargs=without_graph(dict(call.kwargs), depth)
        )

    chain.call = of(call, DEPTH)
    return chain


def _gives(call: Call, result: Tensor) -> bool:
    """Whether a call gives the same once more."""
    try:
        with rerun():
            again = call.func(*on_copies(call.args), **on_copies(call.kwargs))
        return (
            isinstance(again, Tensor)
            and again.dtype is result.dtype
            and bool(torch.equal(again.nan_to_num(1.5, 2.5, 3.5), result.nan_to_num(1.5, 2.5, 3.5)))
        )
    except Exception:
        return False
