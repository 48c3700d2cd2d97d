"""A tape of the operators that a user's backward calls, from which masks and repaired values of its results follow.

The user's code runs once, on plain tensors. A dispatch mode sees each operator that the code calls. For each *storage*
(the memory that a tensor and its views share), the tape has a second memory: the same numbers, but 0 at each ignored
element, and which elements count. Each operator runs as the user called it. If one of its arguments has ignored
elements, it is then followed by its rule on the second memory.

Benefits of a second memory for each storage, in place of a cotangent for each tensor: views and writes into views need
no rule, `.data` is followed, and a write that no operator made is found, because the storage then differs from what
operators have written. Downside: each followed result takes more than three times its memory. A storage is forgotten
as soon as the user's code lets it go.

Rejected: handing cotangents to the user's code. Type checks raise, and cotangents stay in attributes and gradients.

Numbers can leave PyTorch's operators: to NumPy, to Python, to a kernel that gets a pointer. The tape then is *lost*: it
can't say what became of them. A decision of Python that contaminated numbers have changed is a loss, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ....functions.fills import recorded_between
from ....functions.graph import Graph, saved_tensors
from ....functions.record import RULES
from ....masks.cotangent import Cotangent, NotFollowed, Run, mask_of, unwrap
from ....masks.in_place import RESHAPING, OpOverload, out_of_place, written_by
from ....masks.mask import Mask, all_count
from ....masks.trees import tree_leaves
from ....masks.watching import Watching, functions_unseen, set_recording
from ...engine.attach import not_compiled
from ...engine.dispatch import dispatch
from .memory import Lost, Memory, key_of, same_bits

LEAVING = frozenset(
    "numpy tolist data_ptr storage untyped_storage _typed_storage __array__ __dlpack__ __cuda_array_interface__ "
    "__reduce_ex__ __deepcopy__ share_memory_".split()
)
"""The methods by which numbers leave PyTorch's operators, unseen by a dispatch mode."""


def _operators(names: str) -> frozenset[Any]:
    return frozenset(getattr(torch.ops.aten, name) for name in names.split())


WITH_THE_SHAPE_OF = _operators(
    "empty_like full_like new_empty new_empty_strided new_full new_ones new_zeros ones_like rand_like randint_like "
    "randn_like zeros_like"
)
"""Operators that take nothing but the shape of a tensor: the numbers that they write count."""

REPLACING = _operators("resize_ resize_as_ set_")
"""Operators that give a tensor other memory."""

RESHAPING_IN_PLACE = frozenset(f"aten::{name}_" for name in RESHAPING)

ZEROS = _operators("new_zeros zeros zeros_like")
"""Operators that make zeros."""

SUMS = _operators(
    "_to_copy add add_ addbmm addbmm_ addcdiv addcdiv_ addcmul addcmul_ addmm addmm_ addmv addmv_ addr baddbmm "
    "baddbmm_ bmm cat clone copy_ cumsum div div_ index_add index_add_ mm mul mul_ neg neg_ scatter_add "
    "scatter_add_ stack sub sub_ sum"
)
"""Linear operators. Zeros that were just made are a sum of nothing for them, and add nothing that counts."""


class Tape(Watching):  # type: ignore[no-untyped-call]
    """Runs the user's backward, and lasts until it is stopped: PyTorch then sums what was broadcast in the results.

    `step` is the run of the backward, to which the cotangents belong. `lost` says why the tape can't follow it.
    """

    supports_higher_order_operators = True

    def __init__(self, step: Run) -> None:
        super().__init__()
        self.step = step
        self.lost: Lost | Exception | None = None
        self.is_paused = False
        self._memory: dict[int, Memory] = {}
        self._many = 64
        self._leaving = _Leaving(self)

    def run(self, derivative: Callable[..., Any], cotangents: Sequence[Any], forward: Graph) -> Any:
        """Run the derivative, and begin to follow its operators. `forward`: the graph that is differentiated."""
        self.start()
        try:
            with self._leaving:
                results = derivative(*cotangents)
        except BaseException:
            self.stop()
            raise
        kept = _tensors(results)
        if torch.is_grad_enabled():
            recorded = recorded_between(kept, cotangents, forward)
            kept = kept + [tensor for node in recorded for tensor in saved_tensors(node)]
        self._guarded(self._check_what_stays, [*kept, *cotangents])
        return results

    def arrive(self, value: Tensor, mask: Mask) -> None:
        """Begin with a cotangent and its mask."""
        key = key_of(value)
        if key is None:
            raise NotFollowed("a tensor that can't carry a mask")
        memory = self._memory.get(key)
        if memory is None:
            memory = self._add(value, False)
        elif memory.values is not None:  # two cotangents share memory: an element that counts in one of them counts
            before = memory.read(value)[1]
            mask = None if before is None or mask is None else before | mask
        memory.write(value, value.resolve_conj().resolve_neg(), mask)

    def result(self, value: Any) -> tuple[Any, Mask]:
        """The repaired value of a result of the backward, and its mask."""
        found = self._guarded(self._result, value) if isinstance(value, Tensor) else None
        return (value, None) if found is None else found

    def _result(self, value: Tensor) -> tuple[Tensor, Mask]:
        memory = self._memory.get(key_of(value))  # type: ignore[arg-type]
        if memory is None:
            raise Lost("a result was made without operators")
        memory.check(value)
        if memory.values is None:
            return value, None
        repaired, mask = memory.read(value)
        if memory.values is memory.plain:
            return value, mask
        return torch.empty_like(value).copy_(repaired), mask

    def _check_what_stays(self, results: Sequence[Any]) -> None:
        """Raises `Lost` if the user's code keeps a tensor with ignored elements, besides its results and its record."""
        given = {key_of(tensor) for tensor in results}
        for key, memory in self._memory.items():
            if key not in given and not memory.ref.expired() and (memory.differs() or not all_count(memory.counts)):
                raise Lost("it keeps a tensor besides its results", at_once=memory.differs())

    # How one operator runs.

    @not_compiled  # the user's backward may call compiled code
    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        finish = self._guarded(self._begin, op, args, kwargs)
        result = op(*args, **kwargs)
        if finish is not None:
            self._guarded(finish, result)
        return result

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the tape. If it fails, the tape is lost, and the user's code runs on."""
        if self.lost is not None or self.is_paused:
            return None
        recording = torch.is_grad_enabled()
        try:
            set_recording(False)  # within, because Ctrl-C may come between any two lines
            with functions_unseen():
                return function(*args)
        except Exception as error:
            self.lost = error
            self._memory.clear()
            return None
        finally:
            set_recording(recording)

    def _begin(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Any], None] | None:
        """Look at an operator before it runs. Returns what to call with its result."""
        given = _tensors(args) + _tensors(kwargs)
        in_sum = getattr(op, "overloadpacket", None) in SUMS or _accumulates(op, args, kwargs)
        followed = []
        for tensor in given:
            memory = self._memory.get(key_of(tensor))  # type: ignore[arg-type]
            if memory is not None:
                memory.check(tensor)
                if memory.follows(tensor, in_sum):
                    followed.append(tensor)
        if not isinstance(op, OpOverload):
            if followed:
                raise Lost(f"calls {op}")
            return self._constant
        if op is torch.ops.aten.lift_fresh.default:  # new data: numbers that left the tape have been noticed
            return self._constant
        if op.is_view or op._schema.name in RESHAPING_IN_PLACE:
            return None
        if not given or op.overloadpacket in WITH_THE_SHAPE_OF:
            return partial(self._fresh, op)
        written = written_by(op, args, kwargs) if op._schema.is_mutable else []
        if not followed:
            return partial(self._overwritten, written) if written else self._constant
        finish = self._unfollowed(op, args, followed, written)
        if finish is not None:
            return finish
        target = written[0] if written else None
        twins = self._twins_of(op, args, kwargs, followed, target, in_sum)
        return partial(self._follow, op, target, set(map(key_of, given)), *twins)

    def _unfollowed(
        self, op: Any, args: tuple[Any, ...], followed: list[Tensor], written: list[Tensor]
    ) -> Callable[[Any], None] | None:
        """What to call with the result of an operator that no rule can follow; None if its rule can.

        Raises:
            Lost: if it is not known what the operator does with ignored elements.
        """
        name = op._schema.name
        if op.namespace != "aten" and op.overloadpacket not in RULES:
            if written:
                raise Lost(f"{name} writes into its arguments")
            self.step.failed(name, NotFollowed("no rule"))
            return self._constant
        if torch.Tag.nondeterministic_seeded in op.tags:
            if any(all(tensor is not each for each in written) for tensor in followed):
                raise Lost(f"{name} draws random numbers by ignored elements")
            return partial(self._overwritten, written)
        if op.overloadpacket in REPLACING:
            raise Lost(f"{name} gives a tensor other memory")
        if written:
            if out_of_place(op) is None or len(written) != 1 or written[0] is not args[0]:
                raise Lost(f"{name} writes into its arguments")
            if written[0].is_conj() or written[0].is_neg():
                raise Lost(f"{name} writes into a view that negates")
        return None

    def _twins_of(
        self, op: Any, args: Any, kwargs: Any, followed: list[Tensor], target: Tensor | None, in_sum: bool
    ) -> tuple[Any, Any, Mask]:
        """The arguments, with cotangents in place of ignored elements, and which elements of a sum add up nothing.

        They are read before the operator runs, because it may write into its arguments.
        """
        masked = {id(tensor): (tensor, self._memory_of(tensor)) for tensor in followed}
        if target is not None:
            masked[id(target)] = target, self._memory_of(target, is_written=True)

        def in_place_of(how: str) -> Any:
            twins = {number: memory.twin(tensor, self.step, how) for number, (tensor, memory) in masked.items()}
            return _with_twins(args, twins), _with_twins(kwargs, twins)

        if not in_sum or all(memory.empty is None for _, memory in masked.values()):
            return *in_place_of(""), None
        twins = in_place_of("in a sum")
        return *twins, self._empties(op if target is None else out_of_place(op), *in_place_of("empty"))

    def _follow(
        self, op: Any, target: Any, given: set[Any], twins: Any, twins_by_name: Any, empties: Mask, result: Any
    ) -> None:
        """Note what an operator has computed, or written into its target, and what its rule gives for the twins."""
        results = _tensors(result)
        fresh = [tensor for tensor in results if key_of(tensor) not in given]
        if results and not fresh and target is None:
            return  # it is an argument
        is_masked = any(type(twin) is Cotangent for twin in _tensors(twins) + _tensors(twins_by_name))
        better = dispatch(op, twins, twins_by_name) if is_masked else op(*twins, **twins_by_name)
        if target is not None:
            self._store(target, twins[0], empties)
        if isinstance(result, Tensor):
            result, better = [result], [better]
        for each, better_each in zip(tree_leaves(result), tree_leaves(better), strict=True):
            if not isinstance(each, Tensor):
                _decided(each, better_each, twins)
            elif any(each is tensor for tensor in fresh):
                self._store(each, better_each, empties)

    def _empties(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mask:
        """The elements of a sum's result that are a sum of nothing; None if there are none."""
        if not any(type(each) is Cotangent and each.mask is not None for each in tree_leaves((args, kwargs))):
            return None
        mask = mask_of(dispatch(op, args, kwargs))
        return None if mask is None else mask.logical_not()

    def _memory_of(self, tensor: Tensor, is_written: bool = False) -> Memory:
        """The memory of a tensor into which ignored elements are written, or may be."""
        key = key_of(tensor)
        if key is None:
            raise Lost(f"writes into a {type(tensor).__name__} of layout {tensor.layout}")
        memory = self._memory.get(key)
        if memory is None:
            memory = self._add(tensor, True)
        memory.follow(tensor, is_written)
        return memory

    def _add(self, tensor: Tensor, is_copied: bool) -> Memory:
        if len(self._memory) >= self._many:  # forget what the user's code has let go
            self._memory = {key: memory for key, memory in self._memory.items() if not memory.ref.expired()}
            self._many = 2 * len(self._memory) + 64
        memory = self._memory[key_of(tensor)] = Memory(tensor, is_copied)  # type: ignore[index]
        return memory

    def _fresh(self, op: Any, result: Any) -> None:
        """Note results that depend on no tensor. A kernel may write into them later, so they are copied."""
        for tensor in _tensors(result):
            if key_of(tensor) is not None:
                memory = self._add(tensor, True)
                if op.overloadpacket in ZEROS:
                    memory.follow(tensor)
                    memory.empty = memory.counts.clone()  # type: ignore[union-attr]

    def _constant(self, result: Any) -> None:
        """Note results that depend on no ignored element."""
        for tensor in _tensors(result):
            key = key_of(tensor)
            if key is not None and key not in self._memory:
                self._add(tensor, False)

    def _overwritten(self, written: Sequence[Tensor], result: Any) -> None:
        """Note that an operator has written numbers that count."""
        for tensor in written:
            memory = self._memory.get(key_of(tensor))  # type: ignore[arg-type]
            if memory is not None and memory.values is not None:
                memory.write(tensor, tensor.resolve_conj().resolve_neg(), None)
            elif memory is not None:
                memory.plain = None
        self._constant(result)

    def _store(self, tensor: Tensor, twin: Any, empties: Mask) -> None:
        """Note what the user's code has computed, and what it should have been."""
        if key_of(tensor) is None:
            raise Lost(f"makes a {type(tensor).__name__} of layout {tensor.layout}")
        value, mask = unwrap(twin), twin.mask if type(twin) is Cotangent else None
        if value.shape != tensor.shape:
            raise Lost("a shape depends on contaminated numbers", at_once=True)
        if value.is_floating_point() or value.is_complex():
            value = _repaired(tensor, value, mask)
        if empties is not None:
            mask = None if mask is None else mask | empties  # they count, unless something ignored is added
        memory = self._memory.get(key_of(tensor))  # type: ignore[arg-type]
        if memory is None:
            memory = self._add(tensor, False)
            if mask is None and empties is None and same_bits(value, tensor):
                return
        memory.write(tensor, value, mask, empties)

    def leaves(self, tensor: Tensor, by: str) -> None:
        """Note that numbers leave PyTorch's operators."""
        memory = self._memory.get(key_of(tensor))  # type: ignore[arg-type]
        if memory is not None and memory.follows(tensor):
            value, mask = memory.read(tensor)
            differs = not same_bits(value, tensor.resolve_conj().resolve_neg())
            if differs or mask is not None:
                raise Lost(f"calls {by.strip('_')}", at_once=differs)


class _Leaving(TorchFunctionMode):
    """Sees the methods by which numbers leave PyTorch's operators."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    @not_compiled
    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name == "__get__":
            name = function.__self__.__name__
        if name in LEAVING and isinstance(args[0], Tensor):
            self.tape._guarded(self.tape.leaves, args[0], name)
        if name != "__repr__":
            return function(*args, **(kwargs or {}))
        self.tape.is_paused = True  # what is printed decides nothing
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.tape.is_paused = False


def _decided(plain: Any, better: Any, twins: Any) -> None:
    """Raises `Lost` if a number that Python gets is contaminated, or is a placeholder for an ignored element."""
    both_nan = isinstance(plain, float) and isinstance(better, float) and math.isnan(plain) and math.isnan(better)
    if plain != better and not both_nan:
        raise Lost("Python decides by a contaminated number", at_once=True)
    if isinstance(plain, (float, complex)) and any(
        type(twin) is Cotangent and not all_count(twin.mask) for twin in twins
    ):
        raise Lost("Python gets the number of an ignored element")


def _repaired(plain: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """The finite elements of the user's result, and the others from the repaired one. Raises `Lost` if they disagree.

    An element that is finite, but differs from the repaired one, was decided by a contaminated number. Sums by atomic
    additions differ by rounding.
    """
    if same_bits(plain, value):
        return plain
    if plain.is_floating_point() and same_bits(plain.nan_to_num(0.0, 0.0, 0.0), value):
        return value  # as after most elementwise functions: this takes a third of the time
    finite = plain.isfinite()
    if not all_count((plain == value).logical_or_(finite.logical_not())):
        zero = torch.zeros((), dtype=plain.dtype, device=plain.device)
        counted = torch.where(finite, plain, zero)
        difference = torch.where(finite, value, zero).sub_(counted).abs()
        bound = counted.abs().max() * torch.finfo(plain.dtype).eps ** 0.5
        if not bool((difference <= bound).all()):
            raise Lost("a finite number depends on contaminated ones", at_once=True)
    return torch.where(finite if mask is None else finite & mask, plain, value)


def _accumulates(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator adds to the elements of a tensor that it writes into by index."""
    if getattr(op, "overloadpacket", None) not in (torch.ops.aten.index_put, torch.ops.aten.index_put_):
        return False
    return bool(args[3] if len(args) > 3 else kwargs.get("accumulate"))


def _tensors(thing: Any) -> list[Tensor]:
    """The tensors among arguments or results. `tree_leaves` takes longer than most operators."""
    if isinstance(thing, Tensor):
        return [thing]
    found: list[Tensor] = []
    for item in thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (tuple, list)) else ():
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list, dict)):
            found += _tensors(item)
    return found


def _with_twins(thing: Any, twins: dict[int, Any]) -> Any:
    """The arguments of an operator, with twins in place of tensors. `tree_map` takes longer than most operators."""
    if isinstance(thing, Tensor):
        return twins.get(id(thing), thing)
    if isinstance(thing, (tuple, list)):
        return type(thing)([_with_twins(item, twins) for item in thing])
    return {key: _with_twins(item, twins) for key, item in thing.items()} if isinstance(thing, dict) else thing
