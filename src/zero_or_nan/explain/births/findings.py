"""The findings of a watch so far: by call, by tensor, and by node of the graph.

The watch owns these objects, and passes them to the parts that need them. Findings about a node are written on the
node. Such a note lives as long as its node, so even a backward pass long after the block finds the note.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor

from ...functions.numerics import numerics_of
from ...ignoring.inside import (
    REPORT,
    TELLS_OF_HOOKS,
    can_be_read_again,
    home,
    hooks_of,
    is_pytorchs,
    is_wrapped,
    never_traced,
    saved_tensors,
    saw,
)
from ..program.code import Place, is_recomputed, printable
from ..program.tensors import address, bad_numbers_of, memory, node_of, tensors_in
from .call import Call, casts_on
from .chain import DEPTH, Chain, chain_of
from .provenance import Birth, Provenance, Provenances, all_births

T = TypeVar("T")

_MOST_UNCONSUMED = 1000

MOST_CALLS, MOST_BYTES = 16_000, 1 << 28
"""The largest number of calls that are kept, and the largest size of their operands."""

_MOST_KEPT, _MOST_BYTES_KEPT = 20, 1 << 16
"""The largest number of births whose calls are kept after a pass, and the largest operands of such a call, in bytes."""

COMPILED = "torch.compile"
"""The name of a compiled region in a report, if nothing inside the region is known."""


class Scope:
    """The thread in which a block runs, until the block ends."""

    def __init__(self) -> None:
        self._thread = home()
        self.is_over = False

    @never_traced
    def is_here(self) -> bool:
        """Whether the block still runs, and the current thread is the block's own thread, or works for it."""
        return not self.is_over and home() == self._thread


class Mistakes:
    """Exceptions in the code of `explain` itself, which must never reach the user's code."""

    are_raised = False
    """Whether a mistake is raised instead of a warning. Tests set this."""

    def __init__(self) -> None:
        self._first: tuple[str, Exception] | None = None

    def note(self, name: str, error: Exception) -> None:
        """Remember a mistake, and where it happened. Only the first is reported, because it may cause others."""
        if self.are_raised:
            raise error
        self._first = self._first or (name, error)

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """While entered, a mistake is noted, and ends only this block of code."""
        try:
            yield
        except Exception as error:
            self.note(name, error)

    def warn(self, stacklevel: int) -> None:
        if self._first is not None:
            name, error = self._first
            if "CUDA error" in str(error):
                return  # after an assert in a kernel, a GPU refuses every call, and PyTorch tells the user so
            what = printable(f"{name} ({type(error).__name__}: {error})")
            why = f"This is a bug in zero_or_nan; please report it at {REPORT}"
            if isinstance(error, (RecursionError, MemoryError, torch.OutOfMemoryError)):
                why = "It needs some memory and some space on the stack, but the watched code left too little"
            warnings.warn(f"explain failed at {what}. {why}. The report may be incomplete", stacklevel=stacklevel + 1)


class Births:
    """The births so far, one for each call."""

    def __init__(self) -> None:
        self.in_backward = False
        self._watch = object()
        self._by_call: WeakValueDictionary[tuple[Any, ...], Birth] = WeakValueDictionary()
        self._collecting: list[list[Birth]] = []

    def known(self, birth: Birth) -> Birth:
        """The birth, or the earlier birth if a checkpoint in backward only repeats the call."""
        birth.watch = self._watch
        place = birth.place
        key = birth.operator, place.code, place.instruction, place.module, birth.half is not None
        if self.in_backward:
            if is_recomputed():
                return self._by_call.get(key, birth)
            birth.phase = "backward"
        self._by_call[key] = birth
        for births in self._collecting:
            births.append(birth)
        return birth

    def own(self, notes: Sequence[T], birth_of: Callable[[T], Birth]) -> list[T]:
        """The notes on a node that this watch made. If it made none, all notes, because an earlier block made them.

        If a block is inside another block, both watches describe the same calls.
        """
        return [note for note in notes if birth_of(note).watch is self._watch] or [*notes]

    @never_traced
    def collect(self) -> list[Birth]:
        """A list that gets every new birth, until `stop`."""
        births: list[Birth] = []
        self._collecting.append(births)
        return births

    @never_traced
    def stop(self, births: list[Birth]) -> None:
        """Stop adding new births to the list."""
        self._collecting.pop(list(map(id, self._collecting)).index(id(births)))


class Step(NamedTuple):
    """A call, its result, the node of the result, the operands' size in bytes, and the order of a derivative.

    A call `is_formula` unless it writes in place, or decides: its result has no floats, such as the mask of `isnan`.
    `key` was the identity of the result while it existed.
    """

    call: Call
    result: weakref.ref[Tensor]
    node: Any
    size: int
    order: int = 1
    is_formula: bool = True
    key: int = 0


class History:
    """The last calls of a block, by their number, by the identity of their results, and by the results' nodes.

    Attributes:
        count: how many calls were kept, also those that are forgotten.
        loss: the identity of the loss of the pass that is explained; 0 if no pass has used the calls, None if it is
            unknown.
    """

    def __init__(self, provenances: Provenances) -> None:
        self._provenances = provenances
        self._steps: OrderedDict[int, Step] = OrderedDict()
        self._numbers: dict[int, int] = {}  # a later result may have the identity of one that is gone
        self._by_node: dict[Any, Step] = {}
        self._births: WeakKeyDictionary[Birth, Step] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[Birth, list[Chain]] = WeakKeyDictionary()
        self._bytes = self.count = 0
        self.loss: int | None = 0

    def note(self, call: Call, result: Tensor, node: Any) -> None:
        """Keep a call that computed a new tensor."""
        tensors = call.tensors()
        size = _bytes_of(tensors)
        is_needed = tensors or call.infinite_number() is not None  # another number may take the place of an infinity
        if not is_needed or size > MOST_BYTES // 8 or result.is_inference():
            return
        if any(result is tensor for tensor in tensors):
            return
        self._keep(Step(call, weakref.ref(result), node, size, key=id(result)))
        base = result._base
        if base is not None and all(base is not each and base is not each._base for each in tensors):
            func = call.func  # einsum gives a view of what it computes, and so does what the program makes of it

            def base_of(*args: Any, **named: Any) -> Any:
                return func(*args, **named)._base

            self._keep(Step(call._replace(func=base_of), weakref.ref(base), node_of(base), size, key=id(base)))

    def note_write(self, call: Call) -> None:
        """Keep a call that writes a tensor into another tensor, because it may refuse another dtype."""
        tensors = call.tensors()
        size = _bytes_of(tensors)
        if len(tensors) > 1 and size <= MOST_BYTES // 8 and not any(map(is_wrapped, tensors)):
            self._keep(Step(call, weakref.ref(tensors[0]), None, size, is_formula=False))

    def _keep(self, step: Step) -> None:
        self.count += 1
        self._steps[self.count] = step
        self._numbers[step.key] = self.count
        self._bytes += step.size
        node = step.node
        if node is not None:
            self._by_node[node] = step
        while len(self._steps) > MOST_CALLS or self._bytes > MOST_BYTES:
            self._drop(next(iter(self._steps)))

    def note_results(self, call: Call, result: Any) -> None:
        """Keep a call that computes. Of several results, each has a call of its own."""
        if call.plan.numerics.makes not in ("numbers", "no graph"):
            return
        calls = [(call, result)] if type(result) is Tensor else []
        if isinstance(result, (tuple, list)) and all(type(each) is Tensor for each in result):
            calls = [(call._replace(func=_One(call.func, at)), tensor) for at, tensor in enumerate(result)]
        for each, tensor in calls:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                size = _bytes_of(each.tensors())  # a mask changes with the numbers that it is of
                if size <= MOST_BYTES // 8 and not any(map(is_wrapped, each.tensors())):
                    self._keep(Step(each, weakref.ref(tensor), None, size, is_formula=False, key=id(tensor)))
            elif not is_wrapped(tensor):
                self.note(each._replace(casts=casts_on(tensor.device.type)), tensor, node_of(tensor))

    def _drop(self, number: int) -> None:
        step = self._steps.pop(number)
        self._bytes -= step.size
        if self._numbers.get(step.key) == number:
            del self._numbers[step.key]
        self._by_node.pop(step.node, None)

    def of(self, tensor: Tensor) -> Step | None:
        """The call that computed a tensor; None if it is unknown."""
        step = self._steps.get(self._numbers.get(id(tensor), 0))
        return step if step is not None and step.is_formula and step.result() is tensor else None

    def hooked(self) -> set[int | None]:
        """The memory of the results whose gradient the user's code reads or changes, by a hook or by `retain_grad`."""
        results = [tensor for step in self._steps.values() if (tensor := step.result()) is not None]
        return {address(each) for each in results if each.requires_grad and (each._backward_hooks or each.retains_grad)}

    def of_node(self, node: Any) -> Step | None:
        """The call whose derivative a node computes, with the order of this derivative."""
        forward, order = node.metadata.get(_DERIVED, (node, 1))
        step = self._by_node.get(forward)
        return None if step is None else step._replace(order=order)

    def note_birth(self, birth: Birth, call: Call, result: Tensor) -> None:
        """Note in which call a number was born. An in-place call is noted as a call that computes a new tensor."""
        step, plain = self.of(result), getattr(Tensor, call.name, None)
        if call.plan.in_place and plain is not None:
            step = Step(call._replace(func=plain), weakref.ref(result), node_of(result), 0)
        self.note_birth_in(birth, step)

    def of_birth(self, birth: Birth) -> Step | None:
        """The step in which a number was born."""
        return self._births.get(birth)

    def note_birth_in(self, birth: Birth, step: Step | None) -> None:
        """Note the step in which a number was born."""
        if step is not None:
            self._births[birth] = step

    def calls(self) -> list[tuple[int, Call]]:
        """The known calls, in order of time, each with the identity of its result; 0 if the result is gone.

        A call counts as recorded only if it was: its operands may have got a gradient later, by `requires_grad_`.
        """
        calls = []
        for step in self._steps.values():
            is_recorded = step.node is not None if step.is_formula else step.call.is_recorded
            calls.append((0 if step.result() is None else step.key, step.call._replace(is_recorded=is_recorded)))
        return calls

    def order_of(self, birth: Birth) -> int:
        """The order of the derivative that was computed when a number was born: 2 for a gradient of a gradient."""
        step = self.of_birth(birth)
        return 1 if step is None else step.order

    def chains(self, birth: Birth) -> list[Chain]:
        """The call in which a number was born, and the calls that used its result, each with the calls before it.

        The calls that used the result come first, because a formula of several calls is replaced as a whole.
        """
        step = self._births.pop(birth, None)
        return self._kept.pop(birth, []) if step is None else self._chains_from(step)[::-1]

    def _chains_from(self, step: Step) -> list[Chain]:
        """A call, and the first that used its result, each with the calls before it. In order of time."""
        steps, results = [each for each in self._steps.values() if each.is_formula], {id(step.result())}
        if numerics_of(step.call.name).is_open:  # one result of several
            results |= {id(each.result()) for each in steps if each.node is step.node is not None}
        if all(each.call is not step.call for each in steps):  # too many calls came after it, or it is in place
            steps = [step, *(each for each in steps if each.result is not step.result)]
        chains: list[Chain] = []
        latest: dict[Any, Any] = {}  # by place, the result of the last call from there

        def call_of(tensor: Tensor) -> Call | None:
            known = self.of(tensor)
            if known is None:
                return None
            return known.call._replace(is_old=latest.get(known.call.place[:2]) is not known.result)

        for each in steps:
            is_later = len(chains) <= DEPTH and any(id(tensor) in results for tensor in each.call.tensors())
            if each.result is step.result or is_later:
                results.add(id(each.result()))
                chains.append(chain_of(each.call, each.node is not None, call_of, step.order))
            latest[each.call.place[:2]] = each.result
        return chains

    def holds(self, birth: Birth, tensor: Tensor) -> bool:
        """Whether a tensor has a NaN or an infinity that comes from a birth."""
        provenance = self._provenances.of(tensor)
        return provenance is not None and birth in provenance and bad_numbers_of(tensor) is not None

    def comparison(self, birth: Birth, takes: Callable[[str], bool]) -> list[Chain]:
        """The call that compares a target that has a birth with a prediction, and the calls that used its result.

        The target is data: it has no gradient. The prediction is finite, has the same shape, and has a gradient. Only
        calls count for whose name `takes` returns True.
        """
        for step in self._steps.values():
            tensors = step.call.tensors() if takes(step.call.name) else []
            for target in tensors if all(each.layout is torch.strided for each in tensors) else ():
                if target.requires_grad or not self.holds(birth, target) or not bool(target.isnan().any()):
                    continue
                others = [each for each in tensors if each.shape == target.shape and each.requires_grad]
                if others and all(bad_numbers_of(each) is None for each in others):
                    return self._chains_from(step)
        return []

    def let_go(self) -> None:
        """Forget the calls after a pass, except for the calls of births that a later pass may report."""
        for birth, step in list(self._births.items())[: _MOST_KEPT - len(self._kept)]:
            if step.size <= _MOST_BYTES_KEPT:
                self._kept[birth] = self._chains_from(step)[::-1]
        self._steps.clear()
        self._numbers.clear()
        self._births.clear()
        self._by_node.clear()
        self._bytes = 0
        self.loss = 0  # a later tensor may get the identity of one that is gone

    def clear(self) -> None:
        self._births.clear()
        self._kept.clear()
        self.let_go()


class _One(NamedTuple):
    """A function that gives one of the results of a function. It has the same name."""

    function: Any
    at: int

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)[self.at]


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided)


class Findings:
    """Everything that is known about the tensors of a block.

    Attributes:
        births: all births.
        provenances: the provenances of the tensors that are not finite.
        secondhand: provenances of finite tensors that were computed from the gradient of a loss that was not finite.
        uninitialized: provenances of tensors whose memory was not finite when PyTorch handed it out.
        unconsumed: by memory, the provenances of results that no function has used yet.
        in_passes: the memory of leaves that were not finite when a pass began.
        carries: whether any node carries a note about elements that are not finite.
        history: the last calls.
        compiled_at: the call of the last compiled region.
        in_compiled: whether the backward of a compiled region is running. Its functions are not the user's.
    """

    def __init__(self) -> None:
        self.births = Births()
        self.provenances = Provenances()
        self.secondhand = Provenances()
        self.uninitialized = Provenances()
        self.unconsumed: dict[int | None, Provenance] = {}
        self.in_passes: set[int | None] = set()
        self.carries = False
        self.history = History(self.provenances)
        self.compiled_at: Place | None = None
        self.in_compiled = False

    def keep_result(self, tensor: Tensor, provenance: Provenance) -> None:
        """Keep the provenance of a result that no function has used yet."""
        self.provenances.keep(tensor, provenance)
        self.unconsumed[memory(tensor)._cdata] = provenance
        if len(self.unconsumed) > _MOST_UNCONSUMED:
            self.unconsumed.pop(next(iter(self.unconsumed)))

    def left(self) -> Iterator[Provenance]:
        """The provenances of the results that still exist, and that no function and no backward pass has used."""
        unseen = (each for each in self.unconsumed.items() if each[0] not in self.in_passes)
        return (known for memory, known in unseen if self.provenances.exists(memory))

    def carry(self, tensor: Tensor, carried: list[tuple[Birth, Tensor]]) -> None:
        """Write on the node of a result, if it has one, which of its elements are not finite."""
        node = node_of(tensor)
        if node is not None:
            self.carries = True
            node.metadata.setdefault(_CARRIES, {}).setdefault(tensor.output_nr, []).extend(carried)

    def of_bad(self, value: Any) -> Provenance | None:
        """The provenance of a tensor that is not finite, if it is known."""
        return None if bad_numbers_of(value) is None else self.provenances.of(value)

    def consume(self, things: Any) -> None:
        """Note that a function has used these tensors."""
        for tensor in tensors_in(things):
            self.unconsumed.pop(address(tensor), None)

    def place_of_region(self, node: Any) -> Place | None:
        """The call of a node's compiled region, or else of the last compiled region; None before the first region."""
        region = region_of(node)
        return self.compiled_at if region is None else region.place

    def clear(self) -> None:
        self.provenances.clear()
        self.secondhand.clear()
        self.uninitialized.clear()
        self.unconsumed.clear()
        self.history.clear()
        self.compiled_at = None  # a place has the user's module


# Notes on the nodes of the graph.

CALLED = "zero_or_nan.called"
"""The key in a node's metadata for the function and the place of its forward call."""
_DERIVED = "zero_or_nan.derived"
"""The key, in a node that a pass recorded, for the node of the forward call and the order of the derivative."""
_CARRIES = "zero_or_nan.carries"
"""The key for the elements of each output that are not finite, with their births."""
_PASSES = "zero_or_nan.passes"
"""The key for the provenances of the call's operands, by watch."""
_READABLE = "zero_or_nan.readable"
"""The key for whether a node's saved tensors can be read without a hook. Newer releases of PyTorch know this."""
_USES_HOOKS = "zero_or_nan.hooks"
"""The key for whether a user's hook packed a node's saved tensors. Newer releases of PyTorch know this, too."""
REGION = "zero_or_nan.region"
"""The key for the call of a compiled region that the node comes from."""

HOOKS: list[Any] = []
"""The hooks on saved tensors that are active now, on releases of PyTorch that do not know a node's hooks."""

Carried = dict[int, list[tuple[Birth, Tensor]]]
"""By output of a node, its births. Each has a tensor of bools, which is True at the elements of the birth."""


def note_call(node: Any, name: str, place: Place) -> None:
    """Write on a node which call it comes from. The first call counts."""
    known = node.metadata
    if CALLED not in known:
        known[CALLED] = name, place
        saw(node)
        if not TELLS_OF_HOOKS:
            known[_READABLE] = not HOOKS
            known[_USES_HOOKS] = any(map(is_users, (hooks.unpack_hook for hooks in HOOKS)))


def note_derivative(node: Any, caller: Any, name: str, place: Place) -> None:
    """Write on a node that a pass recorded which call's derivative it differentiates. `caller` is that call's node."""
    note_call(node, name, place)
    forward, order = caller.metadata.get(_DERIVED, (caller, 1))
    node.metadata[_DERIVED] = forward, order + 1


def note_passed(node: Any, provenances: Iterable[Provenance]) -> None:
    """Write on a node where its call's operands come from. The first note of each watch counts."""
    known = [provenance for provenance in provenances if provenance.kinds]
    if known:
        node.metadata.setdefault(_PASSES, {}).setdefault(known[0].first.watch, known)


def region_of(node: Any) -> Any:
    """The call of a compiled region that a node comes from, or None."""
    return None if node is None else node.metadata.get(REGION)


def share_readable(node: Any, caller: Any) -> None:
    """Copy what the node of a call knows about hooks to a node that PyTorch made inside the call."""
    node.metadata.setdefault(_READABLE, caller.metadata.get(_READABLE, False))


def carried_by(node: Any) -> Carried:
    """The elements of a node's outputs that were not finite in the forward pass."""
    carried: Carried = node.metadata.get(_CARRIES) or {}
    return carried


def passed_by(node: Any) -> tuple[Birth, ...]:
    """The births that came with the operands of a node's call."""
    return tuple(all_births(itertools.chain(*node.metadata.get(_PASSES, {}).values())))


def can_run_again(node: Any) -> bool:
    """Whether a node's derivative may run again. PyTorch's own derivatives may. Others may have side effects."""
    return is_pytorchs(node) and can_be_read_again(node, node.metadata.get(_READABLE, False))


def runs_hook(node: Any) -> bool:
    """Whether a node's derivative runs a user's hook, because such a hook may return a saved tensor only once."""
    return any(map(is_users, hooks_of(node))) or bool(node.metadata.get(_USES_HOOKS, False))


def is_users(hook: Any) -> bool:
    """Whether a hook on saved tensors is the user's. Those of checkpoints and of `save_on_cpu` are PyTorch's own."""
    return not str(getattr(hook, "__module__", "")).startswith("torch.")


def saved_by(node: Any) -> Iterator[Tensor]:
    """The tensors that a node saved, as far as they can be read without running a user's hook."""
    return saved_tensors(node, node.metadata.get(_READABLE, False))
