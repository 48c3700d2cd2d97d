"""What happens to a cotangent at one node: the node's derivative runs once, and that run is a step of the pass.

A step is begun with the plain cotangents that arrive and their masks, hands the derivative what it should get, and ends
with plain results and their masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from . import distributed
from .cotangent import Cotangent, can_carry, is_finite, mask_of, prefer_exact, unwrap
from .distributed import Gathered, Gathering, is_distributed
from .failures import NotFollowed, RuleFailed
from .graph import Edge, can_be_read_again, for_each_edge, function_of, run, runs_of_the_engine
from .higher import entered, in_forward_mode, is_recorded, left, remember, tangent_of
from .jagged import is_jagged, values_of, with_values
from .masks import Mask, all_count, full, reduced, was_broadcast
from .registry import FUNCTIONS, GENERATED, UNKNOWN, Function, is_own
from .watching import Watching

_profiler: Any = torch.autograd

Results = tuple[Sequence[Any], Sequence[Mask]]
"""What a derivative gave, as plain tensors, and the mask of each."""


class Owner(Protocol):
    """What a step asks of the pass that it belongs to.

    Attributes:
        entered: as in `cotangent.Run`.
    """

    entered: dict[int, tuple[Tensor, Cotangent]]

    def failed(self, name: str, error: Exception, suspected: bool = False) -> None:
        """Something could not be followed."""

    def is_safe_ahead(self, node: Any) -> bool:
        """Whether plain PyTorch's backward can be trusted from this node on."""

    def inner(self, roots: Sequence[Any], keep: Iterable[Edge]) -> Any:
        """A pass inside of this one, over a part of the graph that was computed again."""

    def recomputing(self, function: Any) -> Any:
        """The step that runs and computes this function again; None if there is none."""


class Step:
    """The run of a derivative of PyTorch's own, on cotangents that know their masks."""

    is_anothers = False
    """Whether the derivative is code that was not written for PyTorch itself: what it makes zeros for is not known."""

    is_over = False
    """Whether the run has ended. A graph of the gradient may have saved some of its cotangents."""

    def __init__(self, owner: Owner, node: Any, function: Function, masks: Sequence[Mask]) -> None:
        self.owner = owner
        self.node = node
        self.function = function
        self.masks = masks
        self._comparisons: _Comparisons | None = None
        self._gathering: Gathering | None = None

    @property
    def entered(self) -> dict[int, tuple[Tensor, Cotangent]]:
        """Each tensor that entered a step of this pass, beside its cotangent."""
        return self.owner.entered

    @property
    def selects(self) -> bool:
        """Whether a zero that the derivative writes means "not selected"."""
        return self.function.may_select(self.node)

    @property
    def makes_up_zeros(self) -> bool:
        """Whether zeros like a cotangent are for what a derivative did not depend on: one that is differentiated."""
        return is_recorded(self.node)

    @property
    def is_needed(self) -> bool:
        """Whether anything can be ignored here though no masks arrive."""
        return self.selects

    @property
    def compares(self) -> bool:
        """Whether the derivative may compare what was saved."""
        return self.function.compares

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        if self.compares:
            self._watch_comparisons()
        cotangents = [
            value if value is None else self.cotangent(value, mask)
            for value, mask in zip(arriving, self.masks, strict=True)
        ]
        if any(map(is_distributed, arriving)):
            self._gathering = Gathering()
            self._gathering.start()
        return cotangents

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        if self._gathering is not None:
            self._gathering.stop()
        if self._comparisons is not None:
            self._comparisons.stop()
        values = left(results, [_given_back(result) for result in results])
        return values, [self._mask_of(result) for result in results]

    def _mask_of(self, result: Any) -> Mask:
        """That of a cotangent. Zeros that a derivative makes up without one are ignored with it.

        Such are the zeros of x**0, and of a product with a ZeroTensor, the tangent of a constant in forward mode.
        """
        if type(result) is not Tensor or not (can_carry(result) or result._is_zerotensor()):
            return mask_of(result)
        if bool(result.any()):
            if not is_finite(result) and not all(map(all_count, self.masks)):
                name = function_of(_name(self.node))
                self.owner.failed(name, NotFollowed("a result of its derivative is no Cotangent"), True)
            return None
        masks = (mask for mask in self.masks if mask is not None and was_broadcast(result.shape, mask.shape))
        return next((reduced(mask, result.shape) for mask in masks), None)

    def over(self) -> None:
        """What the run refers to is let go."""
        self.is_over = True
        del self.owner, self.node, self.masks

    def cotangent(self, value: Any, mask: Mask) -> Any:
        """What the derivative gets in place of a plain tensor."""
        if is_jagged(value):
            return with_values(value, Cotangent(value._values, mask, self))
        if not is_distributed(value):
            return entered(value, mask, self)
        cotangent = Cotangent(distributed.whole(value), mask, self)
        cotangent.parts = value
        return cotangent

    def all_ignored(self, number: int) -> Cotangent:
        """What the derivative gets for an output that was not used: zeros, all ignored."""
        kind = self.node._input_metadata[number]
        zeros = torch.zeros(tuple(kind.shape), dtype=kind.dtype, device=kind.device)
        return Cotangent(zeros, torch.zeros_like(zeros, dtype=torch.bool), self)

    def _watch_comparisons(self) -> None:
        """Until the end."""
        first, *others = (ahead is not None for ahead, _ in self.node.next_functions)
        # `clamp` compares its input with its bounds: where these have no gradient, whether they are NaN is no matter.
        self._comparisons = _Comparisons(first and not any(others))
        self._comparisons.start()

    def where_unordered(self, condition: Tensor) -> Mask:
        """Where a condition that the derivative made could not tell, for NaN compares with nothing."""
        return None if self._comparisons is None else self._comparisons.where_unordered(condition)

    def abandon(self) -> None:
        """The derivative failed, and will not end."""

    def failed(self, operator: str, error: Exception) -> None:
        """From this operator on the gradient is plain PyTorch's."""
        self.owner.failed(operator, error, suspected=True)


def _given_back(result: Any) -> Any:
    """What the engine gets of a result."""
    if type(result) is Cotangent and result.parts is not None:
        return distributed.prefer_exact(result.parts, result)
    return unwrap(result)


class _Comparisons(Watching):  # type: ignore[no-untyped-call]
    """What a derivative compares while it runs, and where NaN made that meaningless."""

    COMPARING = frozenset(getattr(torch.ops.aten, name) for name in ("eq", "ge", "gt", "le", "lt"))
    JOINING = frozenset(getattr(torch.ops.aten, name) for name in ("logical_and", "logical_or", "logical_and_"))

    def __init__(self, first_alone: bool) -> None:
        super().__init__()
        self.places = slice(1) if first_alone else slice(2)
        self.unordered: dict[int, tuple[Tensor, Tensor]] = {}
        """By each result of a comparison, which is kept so that it is known again: where its element was NaN."""

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = op(*args, **(kwargs or {}))
        if op.overloadpacket in self.COMPARING:
            for entry in args[:2] if op.overloadpacket is torch.ops.aten.eq else args[self.places]:
                self._compared(result, entry)
        elif op.overloadpacket in self.JOINING:
            for condition in args:
                self._note(result, self.where_unordered(condition))
        return result

    def where_unordered(self, condition: Any) -> Mask:
        """Where a condition is False because an element was NaN; None where it never is."""
        found = self.unordered.get(id(condition))
        return None if found is None else found[1]

    def _compared(self, result: Tensor, entry: Any) -> None:
        if isinstance(entry, Tensor) and entry.is_floating_point() and not is_distributed(entry):
            nan = unwrap(entry).isnan()
            if bool(nan.any()):
                self._note(result, nan.expand(result.shape))

    def _note(self, result: Tensor, unordered: Mask) -> None:
        if unordered is not None:
            before = self.where_unordered(result)
            self.unordered[id(result)] = result, unordered if before is None else before | unordered


class Linear(Step):
    """The run of a derivative that moves elements about, or adds them up: it does the same to their mask."""

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        if any(isinstance(value, Tensor) and value.is_nested and not is_jagged(value) for value in results):
            self.owner.failed("a nested tensor", NotFollowed("a tensor that can't carry a mask"), suspected=True)
            return results, [None] * len(results)
        given = [None if v is None else _as_values(v, mask) for v, mask in zip(arriving, self.masks, strict=True)]
        return results, [
            None if value is None or mask is None else reduced(values_of(mask), values_of(value).shape)
            for value, mask in zip(results, for_each_edge(self.node, run(self.node, *given)), strict=True)
        ]


def _as_values(like: Any, mask: Mask) -> Any:
    """The mask as what a derivative takes for a cotangent."""
    given = full(mask, values_of(like))
    return with_values(like, given) if is_jagged(like) else given


class DTensorBoundary(Step):
    """Where a tensor begins or ends to be spread over several processes: what it does, all of them do together."""

    selects = False
    is_needed = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        return results, distributed.masks_across(self.node, arriving, self.masks)


_ONCE = "its saved tensors can be had only once here"


class CustomVJP(Step):
    """The run of a derivative that ours may stand in for: PyTorch's runs as ever, and is mended when it is done."""

    is_needed = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        derivative = self.function.derivative
        all_count = all(mask is None for mask in self.masks) and all(value is not None for value in arriving)
        if all_count and not self.selects:
            return results, [None] * len(results)
        name = function_of(self.node.name())
        try:
            if any(map(is_jagged, arriving)):
                raise NotFollowed("gets a nested tensor")
            if derivative is None or not can_be_read_again(self.node, unknown=True):
                raise NotFollowed(_ONCE)
            given = [
                self.all_ignored(number) if value is None else self.cotangent(value, self.masks[number])
                for number, value in enumerate(arriving)
            ]
            node = Gathered(self.node) if any(map(is_distributed, arriving)) else self.node
            careful = derivative(node, given)
            try:
                ours = for_each_edge(self.node, careful)
                for exact, result, (ahead, _) in zip(results, ours, self.node.next_functions, strict=True):
                    if ahead is not None and isinstance(exact, Tensor) and not isinstance(result, Tensor):
                        raise TypeError(f"it returned {result} in place of a Cotangent")
                ended = [_repaired(exact, result) for exact, result in zip(results, ours, strict=True)]
            except (TypeError, ValueError, RuntimeError) as error:
                raise error if is_own(derivative) else RuleFailed(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            is_hidden = isinstance(error, CheckpointError)  # of which older releases don't tell before
            self.failed(name, NotFollowed(_ONCE) if is_hidden else error)
            return results, [None] * len(results)
        return [value for value, _ in ended], [mask for _, mask in ended]


def _repaired(exact: Any, careful: Any) -> tuple[Any, Mask]:
    """Plain PyTorch's result where it is finite, elsewhere ours; what it gives as another number than 0 counts."""
    if not isinstance(exact, Tensor):
        return exact, None
    if isinstance(careful, Tensor) and careful.shape != exact.shape and was_broadcast(exact.shape, careful.shape):
        # PyTorch has summed over what was broadcast.
        careful = careful.sum_to_size(exact.shape)
    mask = mask_of(careful)
    value = (
        distributed.prefer_exact(exact, careful)
        if is_distributed(exact)
        else unwrap(prefer_exact(exact.detach(), careful))
    )
    if mask is not None:
        mask = mask | distributed.not_zero(value)
    if (exact.requires_grad or in_forward_mode()) and is_finite(exact) and is_finite(tangent_of(exact)):
        # So is the record of how PyTorch got it.
        remember(exact, mask)
        return exact, mask
    return left([careful], [value])[0], mask


class Sliced(Step):
    """The run of an in-place function's derivative on the slice that it wrote to.

    `CopySlices` hides which function that was. PyTorch's profiler tells: it sees the wrapped derivative begin.
    """

    def __init__(self, owner: Owner, node: Any, function: Function, masks: Sequence[Mask]) -> None:
        super().__init__(owner, node, function, masks)
        self._profiling = False
        self._found: Function | None = None

    @property
    def selects(self) -> bool:
        if self._found is None:
            self._found = self._wrapped()
        # How the function was called is not to be seen from here.
        return self._found.selects is True

    is_needed = True
    compares = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        cotangents = super().begin(arriving)
        if not _profiler._profiler_enabled():
            config = _profiler.ProfilerConfig(
                _profiler.ProfilerState.CPU, False, False, False, False, False,
                torch._C._profiler._ExperimentalConfig(),
            )  # fmt: skip
            _profiler._enable_profiler_legacy(config)
            self._profiling = True
        return cotangents

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        self._stopped()
        ended, masks = super().end(results, arriving)
        values = list(ended)
        # For a subclass PyTorch sums up the gradient of a number that was written in another order.
        numbers = [i for i, value in enumerate(values) if i and value is not None and not value.dim()]
        if numbers and can_be_read_again(self.node, unknown=False):
            exact = self.node(*unwrap(arriving))
            for i in numbers:
                if not exact[i].dim():  # broadcast, the engine sums it up as ours was
                    values[i] = unwrap(prefer_exact(exact[i], values[i]))
        return values, masks

    def _wrapped(self) -> Function:
        """The record of the function whose derivative began last."""
        for event in reversed(self._stopped()):
            name = function_of(event.name())
            if event.kind() == "push" and name in FUNCTIONS and name != "CopySlices":
                return FUNCTIONS[name]
        return UNKNOWN

    def _stopped(self) -> list[Any]:
        """What the profiler saw on this thread."""
        if not self._profiling:
            return []
        self._profiling = False
        return [event for events in _profiler._disable_profiler_legacy() for event in events]


class Traced(Step):
    """The run of somebody's own derivative, in Python, of which a record says that operators are all that it calls."""

    is_anothers = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        if any(value is None for value in arriving):
            self.node.apply = self._apply  # the engine makes up zeros there, after its hooks
        return super().begin(arriving)

    def _apply(self, *cotangents: Any) -> Any:
        """The derivative, with zeros that are ignored where no cotangent arrived."""
        self.abandon()
        return self.node.apply(
            *(self.all_ignored(i) if type(value) is Tensor else value for i, value in enumerate(cotangents))
        )

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        self.abandon()
        made_otherwise = [r for r in results if isinstance(r, Tensor) and type(r) is not Cotangent and can_carry(r)]
        if made_otherwise and any(mask is not None and not bool(mask.all()) for mask in self.masks):
            error = NotFollowed("a result of its backward is no Cotangent: it was made without operators")
            self.owner.failed(_name(self.node), error, suspected=True)
        values, masks = super().end(results, arriving)
        # What was written past the operators, into memory that a Cotangent shares, has no part in its mask.
        return values, [
            mask if mask is None or value is None else mask | distributed.not_zero(value)
            for value, mask in zip(values, masks, strict=True)
        ]

    def abandon(self) -> None:
        vars(self.node).pop("apply", None)


class Opaque(Step):
    """The run of code that nobody has recorded: plain tensors go in, and what comes out counts.

    If that loses something, a gradient ahead is not finite, and the pass warns then. It warns at once if the loss may
    show where the pass can't look: in what the code did besides returning its results, or in a later pass.
    """

    selects = False

    is_needed = True

    def begin(self, arriving: Sequence[Any]) -> Sequence[Any]:
        self._is_pytorchs = _is_pytorchs(self.node)
        self._ignores = any(not all_count(mask) for mask in self.masks)
        self._before = runs_of_the_engine() if self._ignores and not self._is_pytorchs else 0
        self._versions = [_version(value) for value in arriving]
        return arriving

    def end(self, results: Sequence[Any], arriving: Sequence[Any]) -> Results:
        untouched = [_version(value) == version for value, version in zip(arriving, self._versions, strict=True)]
        handed_on = {
            id(value): mask
            for value, mask, is_untouched in zip(arriving, self.masks, untouched, strict=True)
            if value is not None and is_untouched
        }
        masks = [handed_on.get(id(result)) for result in results]
        rest = {id(result) for result in results if id(result) in handed_on}
        lost = [m for v, m in zip(arriving, self.masks, strict=True) if m is not None and id(v) not in rest]
        own = [r for r in results if isinstance(r, Tensor) and id(r) not in handed_on and can_carry(r)]
        is_lost = any(not all_count(mask) for mask in lost) or self._ignores and bool(own)
        at_once = is_lost and torch.is_grad_enabled() or self._ignores and self._does_more(results)
        if (
            is_lost
            or at_once
            or not all(map(is_finite, own))
            or (any(bool((values_of(r) == 0).any()) for r in own) and not self.owner.is_safe_ahead(self.node))
        ):
            reason = (
                "a Function of PyTorch's own without a record"
                if self._is_pytorchs
                else "not one of PyTorch's operators"
            )
            self.owner.failed(_name(self.node), NotFollowed(reason), suspected=self._is_pytorchs or not at_once)
        return results, masks

    def _does_more(self, results: Sequence[Any]) -> bool:
        """Whether a gradient may have gone another way: one is missing here, or the code ran backward itself."""
        if self._is_pytorchs:
            return False
        wanted = zip(self.node.next_functions, results, strict=False)
        is_missing = any(ahead is not None and result is None for (ahead, _), result in wanted)
        return is_missing or runs_of_the_engine() != self._before + 1


def _version(value: Any) -> int | None:
    """How often a tensor was written into; None for what is no tensor."""
    return value._version if isinstance(value, Tensor) else None


def _is_pytorchs(node: Any) -> bool:
    """Whether a node in Python is PyTorch's own."""
    function = getattr(node, "_forward_cls", None)
    return function is not None and function.__module__.startswith("torch.") and not _is_custom(node)


def _is_custom(node: Any) -> bool:
    """Whether `torch.library` made the node, for an operator that is not PyTorch's own."""
    name: str = node.name()
    return name.startswith(GENERATED) and not name.startswith(f"{GENERATED}torch_")


def _name(node: Any) -> str:
    """What a warning calls somebody's own derivative."""
    name: str = node.name().removesuffix("Backward")
    operator = name.removeprefix(GENERATED)
    if operator == name:
        return name
    # "mylib_op_default" is mylib::op.
    spaces = [space for space in torch.ops if operator.startswith(f"{space}_")]
    parts = [(space, operator.removeprefix(f"{space}_").rpartition("_")[0]) for space in spaces]
    return next((f"{space}::{op}" for space, op in parts if hasattr(getattr(torch.ops, space), op)), operator)
