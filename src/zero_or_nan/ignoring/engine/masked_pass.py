"""One backward pass that knows what the loss ignored.

PyTorch's engine runs the pass, with all hooks, on plain tensors. The pass works between the nodes. Before a node's
derivative runs, the pass takes the masks that have arrived there. After the derivative, the pass keeps the masks of the
results for the nodes ahead.

Benefits of hooks on PyTorch's own engine: the order of the nodes, accumulation, checkpoints, threads, devices and the
user's hooks are PyTorch's. Each element that is finite there has the same bits here, because the same kernels compute
it. Downsides: two Python calls at each interpreted node, and masks can't follow unknown code inside of a node.

Two designs were rejected. An engine of our own would have to follow PyTorch in all of the above. Cotangents of a
subclass that travel through the whole engine would reach the user's hooks and the code of the user's own Functions.
"""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...functions.fills import mark_formula
from ...functions.graph import Edge, Graph, came_as_nan, edge_of, engine_run, function_of, held_from, senders_of
from ...functions.record import Function, Transfer
from ...masks.cotangent import Cotangent, NotFollowed, can_carry, dispatches, is_finite
from ...masks.mask import Mask, all_count, and_whatever_is_not_0, both, either, everywhere
from ...masks.numbers import form_of, is_dense, is_sparse, is_wrapped, not_zero, values_of
from .attach import PassHook, compiled_autograd_aside, current, put_first, set_current
from .higher import constants, is_recorded, tangent_of, without
from .plan import Ahead, Follower, classify, planned
from .precheck import is_safe
from .problems import Problems
from .steps.recomputed import Recomputed, reporting
from .steps.sliced import Sliced
from .steps.step import Step
from .steps.transferred import OverNothing, is_over_nothing

Gradients = tuple[Any, ...]

_INSIDE = (
    "which can't carry a mask; call ignoring.grad outside of it, in a loop or with is_grads_batched=True, "
    "or over a graph that was made outside of it"
)


class _Arrived(NamedTuple):
    """A mask on its way to a node. `value` is its cotangent, as long as only one cotangent was sent there."""

    mask: Mask
    value: weakref.ref[Tensor] | None
    version: int

    def is_still(self, value: Tensor) -> bool:
        """True if this is the cotangent that was sent, and nothing was written into it."""
        return self.value is not None and self.value() is value and value._version == self.version


def _sent(mask: Mask, value: Tensor) -> _Arrived:
    """A mask and its cotangent, which is left out if it has no version, as in inference mode: a hook may change it."""
    return _Arrived(mask, None, 0) if value.is_inference() else _Arrived(mask, weakref.ref(value), value._version)


class Observer:
    """Watches a pass, and changes nothing. Subclasses override what they want to be called for."""

    def handed_on(self, node: Any, values: Sequence[Any], masks: Sequence[Mask]) -> None:
        """Called after a node's derivative, with a value, or None, and a mask for each edge."""

    def not_followed(self) -> None:
        """Called each time that the pass can't follow something."""


class Pass:
    """One masked pass from some roots. Enter it around the call of PyTorch's engine.

    Args:
        roots: the tensors or graph edges to differentiate.
        graph: the nodes that the engine runs from the roots.
        keep: the edges whose masks `masks` has at the end.
        outer: the pass that this pass is a part of. It reports what could not be followed.
        asked_for: tensors inside of the graph whose gradients the user gets.
        unsafe: the nodes whose derivatives may turn ignored elements into other numbers than 0. If it is empty, each
            node counts as unsafe.
        by_rules_alone: whether each derivative is interpreted, operator by operator, and none is left to plain
            PyTorch. This is needed if the pass is recorded.
        observer: is called with the results of each node that is not skipped, and if something is not followed.

    Attributes:
        masks: the mask of each edge in `keep`, None if all elements count. If no cotangent has reached an edge, it has
            no mask here.
        forward: if the pass is recorded, all nodes that it may differentiate: what is behind them, it has recorded.
        entered: if the pass is recorded, each tensor between the nodes, with the cotangent that it became.
        running: the steps of the nodes whose derivatives run now.
    """

    raises_bugs = False
    """Whether an error in a rule is raised, as the tests need it, instead of reported in a warning."""

    def __init__(
        self,
        roots: Sequence[Any],
        graph: Graph,
        keep: Iterable[Edge] = (),
        outer: Pass | None = None,
        asked_for: Iterable[Any] = (),
        unsafe: Iterable[Any] = (),
        by_rules_alone: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self.observer = observer
        self.roots = roots
        self.graph = graph
        self.outer = outer
        self.asked_for = set(map(edge_of, asked_for))
        self.unsafe = set(unsafe)
        self.by_rules_alone: bool = by_rules_alone or outer is not None and outer.by_rules_alone
        self.forward = held_from(roots) if self.by_rules_alone else graph
        self.keep = set(keep)
        self.masks: dict[Edge, Mask] = {}
        self._arrived: dict[Edge, _Arrived] = {}
        self.running: dict[Any, Step] = {}
        self.entered: dict[int, tuple[Tensor, Cotangent]] = {}
        self._engine_pass: int | None = None
        self._within: tuple[Mask, Mask] = None, None
        self._handles: list[Any] = []
        self._problems: Problems | None = None
        self.count: Any = None if outer is None else outer.count

    def __enter__(self) -> Pass:
        self._aside = compiled_autograd_aside()
        self._aside.__enter__()
        try:
            for root in self.roots:
                if isinstance(root, Tensor) and root._backward_hooks:  # they run before the first node
                    self._handles += put_first(root.register_hook(PassHook(self._begun)))  # type: ignore[no-untyped-call]
            plan = planned(self.roots, self.graph, self.keep, self.unsafe, self.by_rules_alone, self.outer is None)
            self.by_rules_alone = plan.by_rules_alone
            if plan.first is not None:  # to know this pass's run of the engine before a user's hook starts another run
                self._handles.append(plan.first.register_prehook(PassHook(self._begun)))
            for node, ahead, function, transfer in plan.transferred:
                if is_recorded(node):
                    self._handles.append(node.register_prehook(PassHook(self._arrive, node)))
                hook = PassHook(self._after, node, ahead, function, transfer)
                self._handles += put_first(node.register_hook(hook))
            for node, ahead, function, step in plan.interpreted:
                # The user's prehooks run before this one, so the step gets what they return.
                self._handles.append(node.register_prehook(PassHook(self._enter, node, function, step)))
                self._handles += put_first(node.register_hook(PassHook(self._leave, node, ahead)))
                if step is Recomputed:
                    self._handles.append(reporting(node))
            self._before = current()
            set_current(self)
        except BaseException:
            self._let_go()
            raise
        return self

    def __exit__(self, failed: type[BaseException] | None, *details: object) -> None:
        self._let_go()
        set_current(self._before)
        if failed is not None:
            return
        if self.count is not None and self.outer is None:
            self.count.end()
        if self._problems is not None:
            self._problems.report(self.raises_bugs)

    def begin_again(self, count: Any) -> None:
        """Prepare for another run of the engine over the same graph: the plan and the hooks stay."""
        if self.count is not None:
            self.count.end()
        self.count = count
        self.masks, self._engine_pass = {}, None
        self._forget()

    def failed(self, name: str, error: Exception, suspected: bool = False) -> None:
        """Record that something could not be followed.

        If it is only `suspected` to have lost a mask, a warning reports it only if a gradient is not finite.
        """
        if self.observer is not None:
            self.observer.not_followed()
        if self.outer is not None:
            self.outer.failed(name, error, suspected)
            return
        if self._problems is None:
            self._problems = Problems()
        # A mask that the user asked for is wrong at once.
        self._problems.add(name, error, is_only_suspected=suspected and not self.keep)

    def recomputing(self, function: Any) -> Recomputed | None:
        """The running step of the checkpoint that computes this function again; None if there is none."""
        steps = (step for node, step in self.running.items() if getattr(node, "run_function", None) is function)
        step = next(steps, None)
        return step if isinstance(step, Recomputed) else None

    def inner(self, roots: Sequence[Any], keep: Iterable[Edge]) -> Pass:
        """A pass inside of this one, over a part of the graph that was computed again."""
        return Pass(roots, held_from(roots), keep, self)

    def is_safe_ahead(self, node: Any) -> bool:
        """True if plain PyTorch's backward can be trusted from this node on."""
        return node not in self._before_unsafe

    @functools.cached_property
    def _before_unsafe(self) -> set[Any]:
        """The nodes with an unsafe node ahead."""
        stack = list(self.unsafe)
        if not stack:  # no precheck was made before the pass
            is_safe(self.graph, stack)
        senders = senders_of(self.graph)
        found: set[Any] = set()
        while stack:
            new = {node for node, _ in senders.get(stack.pop(), ())} - found
            found |= new
            stack += new
        return found

    # A cotangent arrives at a node, a step runs the derivative, and the results go to the next nodes.

    def _enter(self, node: Any, function: Function, step_type: type[Step], arriving: Gradients) -> Gradients | None:
        """The hook before an interpreted node: begins a step."""
        if not self._is_mine():
            return None
        if is_recorded(node):
            arriving = self._at_constants(node, arriving)
        if step_type.runs_one_derivative and is_over_nothing(arriving):
            step_type = OverNothing
        arrived = self._all_arriving(node, function, step_type, arriving)
        if arrived is None:
            return None
        values, masks = arrived
        if self.count is not None:
            self.count.see(node, masks)
        self.running[node] = step = step_type(self, node, function, masks)
        return tuple(step.begin(values))

    def _arrive(self, node: Any, arriving: Gradients) -> Gradients | None:
        """The hook before a transferred node that an earlier pass recorded."""
        return self._at_constants(node, arriving) if self._is_mine() else None

    def _at_constants(self, node: Any, arriving: Gradients) -> Gradients:
        """What arrives at a node, with 0, and ignored, at each element that an earlier pass ignored there."""
        values = list(arriving)
        for number, value in enumerate(arriving):
            counts = constants(node, number)
            if value is None or counts is None or not can_carry(value) or not form_of(value).can_be_recorded:
                continue
            arrived = self._arrived.get((node, number), _NOTHING_IGNORED)
            if arrived.mask is not None and arrived.is_still(value) and self._is_within(arrived.mask, counts):
                continue
            values[number] = kept = without(value, counts)
            self._arrived[node, number] = _sent(both(arrived.mask, counts), kept)
        return tuple(values)

    def _is_within(self, mask: Tensor, counts: Tensor) -> bool:
        """True if an element that counts in the first mask counts in the second. Most often, they are the last two."""
        smaller, larger = self._within
        if smaller is not mask or larger is not counts:
            if bool(mask.gt(counts).any()):
                return False
            self._within = mask, counts
        return True

    def _leave(self, node: Any, edges: Ahead, results: Gradients, arriving: Gradients) -> Gradients | None:
        """The hook after an interpreted node: ends its step."""
        if not self._is_mine():
            return None
        step = self.running.pop(node, None)
        if torch.is_grad_enabled():
            function = classify(node).function
            selects = step.selects if type(step) is Sliced else function.may_select(node)
            compared = step.where_unordered if step is not None and function.compares else None
            mark_formula(node, selects, results, arriving, self.forward, compared)
        if step is None:
            self._hand_on(node, edges, results, _NO_MASKS, arriving)
            return None
        values, masks = step.end(results, arriving)
        if torch.is_grad_enabled():  # the recorded graph keeps the cotangents, and they keep the step
            step.over()
        self._hand_on(node, edges, values, masks, arriving)
        # PyTorch checks what a hook returns, and can't check nested tensors.
        return None if all(map(operator.is_, values, results)) else tuple(values)

    def _after(
        self, node: Any, edges: Ahead, function: Function, transfer: Follower, results: Gradients, arriving: Gradients
    ) -> Gradients | None:
        """The hook after a transferred node: plain PyTorch's derivative has run, and now the masks go through it."""
        if not self._is_mine():
            return None
        if torch.is_grad_enabled():
            mark_formula(node, function.may_select(node), results, arriving, self.forward)
        if transfer.runs_one_derivative and is_over_nothing(arriving):
            transfer = OverNothing
        values: Sequence[Any] = results
        masks: Iterable[Mask] = _NO_MASKS
        arrived = self._all_arriving(node, function, transfer, arriving)
        if arrived is not None:
            keep = self.keep
            wanted = [
                result if not last or edge in keep else None
                for (edge, last), result in zip(edges, results, strict=False)
            ]
            try:
                values, masks = transfer.after(self, node, function, arrived, results, wanted)
            except Exception as error:
                self.failed(function_of(node.name()), error)
        self._hand_on(node, edges, values, masks, arriving)
        return None if values is results or all(map(operator.is_, values, results)) else tuple(values)

    def _hand_on(
        self, node: Any, edges: Ahead, values: Sequence[Any], masks: Iterable[Mask], arriving: Gradients
    ) -> None:
        """Send the results of a node's derivative on to the next nodes."""
        sent: list[Mask] = []
        for (edge, last), value, mask in zip(edges, values, masks, strict=False):
            if value is not None and edge[0] is not None:
                if _is_zerotensor(value) and not any(map(_is_zerotensor, arriving)):
                    mask = _of_constant(node, value, mask)
                self._send(edge, last, value, mask)
            sent.append(mask)
        if self.observer is not None:
            self.observer.handed_on(node, values, sent)

    def _send(self, edge: Edge, last: bool, value: Any, mask: Mask) -> None:
        """Keep a cotangent's mask for the next node, unless the mask ends here because that node is skipped."""
        if last or edge in self.asked_for:
            self.confirm_suspected(value)
        if last and edge not in self.keep:
            return
        if mask is not None and value.is_complex() and all_count(mask):
            mask = None  # its real or its imaginary part counts, so plain PyTorch can run what is ahead
        before = self._arrived.get(edge)
        if before is not None:  # the engine adds the cotangents; two sparse ones may store different elements
            arrived = _Arrived(None if is_sparse(value) else either(before.mask, mask), None, 0)
        elif mask is None:
            arrived = _NOTHING_IGNORED
        else:
            arrived = _sent(mask, value)
        self._arrived[edge] = arrived
        if edge in self.keep:
            self.masks[edge] = arrived.mask

    def confirm_suspected(self, gradient: Any) -> None:
        """Report what was suspected to have lost a mask, if a gradient is not finite."""
        if self.outer is not None:
            self.outer.confirm_suspected(gradient)
            return
        problems = self._problems
        if (
            problems is not None
            and problems.suspected
            and not (is_finite(gradient) and is_finite(tangent_of(gradient)))
        ):
            problems.lost.update(problems.suspected)

    def _all_arriving(
        self, node: Any, function: Function, step: type[Step] | Transfer, arriving: Gradients
    ) -> tuple[list[Any], list[Mask]] | None:
        """The cotangents that arrive at a node, and their masks; None if plain PyTorch's results need no masks."""
        masks, values, unmaskable = [], [], None
        has_to_run = step.always_runs or is_recorded(node)
        may_be_sparse, on_cotangents = step is Step and not self.by_rules_alone, step.on_cotangents
        for number, value in enumerate(arriving):
            value, mask, carries = self._arriving(node, number, value, may_be_sparse)
            masks.append(mask)
            values.append(value)
            if mask is not None:
                has_to_run = True
            is_anothers = on_cotangents and value is not None and dispatches(value) and is_dense(value)
            if not carries or is_anothers:
                unmaskable = value
        if unmaskable is not None:
            self._pass_by(unmaskable)
            return None
        return (values, masks) if has_to_run or function.may_select(node) else None

    def _arriving(self, node: Any, number: int, value: Any, may_be_sparse: bool) -> tuple[Any, Mask, bool]:
        """A cotangent, its mask, and whether it can carry a mask at all.

        If a user's hook has turned an ignored element into a number other than 0, the element counts. A ZeroTensor
        with a mask becomes zeros in memory.
        """
        arrived = self._arrived.pop((node, number), None)
        if value is None:
            return None, None, True
        mask = None if arrived is None else arrived.mask
        if mask is None and not value.is_nested and not value.numel() and not is_sparse(value):
            mask = everywhere(False, value)
        form = form_of(value)
        if self.by_rules_alone and not form.can_be_recorded:
            return value, mask, False
        if form.is_shared:  # a hook may have changed the value on another process: all processes check
            return value, mask if mask is None else mask | not_zero(value), True
        if _is_zerotensor(value) and mask is not None:
            return torch.zeros(value.shape, dtype=value.dtype, device=value.device), mask, True
        if arrived is not None and arrived.is_still(value) and (may_be_sparse or not is_sparse(value)):
            return value, mask, True
        if not can_carry(value):
            return value, mask, mask is None and may_be_sparse and is_sparse(value)
        return value, mask if mask is None else and_whatever_is_not_0(mask, values_of(value)), True

    def send(self, edge: Edge, mask: Mask) -> None:
        """Set the mask of a cotangent with which the engine starts. The outer pass calls this on its inner pass."""
        if mask is not None:
            self._arrived[edge] = _Arrived(mask, None, 0)

    # Whether the engine runs for this pass.

    def _begun(self, cotangent: Tensor) -> None:
        """The hook at the start of the engine's run, which notes that the run belongs to this pass."""
        self._is_mine()

    def _is_mine(self) -> bool:
        """True if the engine runs for this pass. Another thread's pass, or a hook's, may share the nodes."""
        run = engine_run()
        if self._engine_pass is None and current() is self:
            self._engine_pass = run
        return run == self._engine_pass

    def _pass_by(self, unmaskable: Any) -> None:
        """Leave a node to plain PyTorch, because a tensor that arrives there can't carry a mask."""
        if _is_zerotensor(unmaskable):  # all of its elements count, so plain PyTorch's derivative is right
            return
        if is_wrapped(unmaskable):
            self.failed("a tensor inside of torch.vmap or torch.func", NotFollowed(_INSIDE), suspected=True)
            return
        described = "a nested tensor" if unmaskable.is_nested else type(unmaskable).__name__
        if described == "Tensor":
            described = str(unmaskable.layout)
        self.failed(described, NotFollowed("a tensor that can't carry a mask"), suspected=True)

    def _let_go(self) -> None:
        """Remove the hooks, and free what the pass holds."""
        self._aside.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forget()
        self.graph = self.forward = {}

    def _forget(self) -> None:
        """Free what a run of the engine has left."""
        for step in self.running.values():
            step.abandon()
        self._arrived.clear()
        self._within = None, None
        self.running.clear()
        self.entered.clear()


def _is_zerotensor(value: Any) -> bool:
    return type(value) is Tensor and value._is_zerotensor()


def _of_constant(node: Any, value: Tensor, mask: Mask) -> Mask:
    """The mask of a ZeroTensor that a derivative makes. Most often, all of its elements are ignored.

    A ZeroTensor is the tangent of a constant. A product with it is a ZeroTensor, also if the other factor is NaN. So
    the other factor is ignored. But the derivative of a step function is a ZeroTensor, too, and a NaN that came in was
    used.
    """
    unknown = came_as_nan(node, value)
    return everywhere(False, value) if unknown is None else mask if all_count(mask) else both(unknown, mask)


_NOTHING_IGNORED = _Arrived(None, None, 0)
_NO_MASKS: Iterable[Mask] = itertools.repeat(None)
