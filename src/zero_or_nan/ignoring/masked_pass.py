"""One backward pass that knows what the loss ignored.

PyTorch's engine runs the pass, with all hooks, on plain tensors. The pass works between the nodes: before a node's
derivative runs, it takes the masks that have arrived there; after the derivative, it keeps the masks of the results for
the nodes ahead.

Benefits of hooks on PyTorch's own engine: the order of the nodes, accumulation, checkpoints, threads, devices and the
user's hooks are PyTorch's. Each element that is finite there has the same bits here, because the same kernels compute
it. Downsides: two Python calls at each interpreted node, and a node that runs unknown code can't be looked into.

Two designs were rejected. An engine of our own would have to follow PyTorch in all of the above. Cotangents of a
subclass that travel through the whole engine would reach the user's hooks and the code of the user's own Functions.
"""

from __future__ import annotations

import itertools
import operator
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .compiling import compiled_autograd_aside
from .cotangent import Cotangent, can_carry, dispatches, is_finite
from .counts import Count
from .distributed import is_distributed, not_zero
from .failures import NotFollowed, RuleFailed
from .graph import Edge, Graph, edge_of, function_of, graph_from
from .higher import constants, is_recorded, tangent_of, without
from .hooks import PassHook, put_first
from .jagged import is_jagged, values_of
from .kinds import NodeKind
from .lifetimes import held_from
from .masks import Mask, all_count, and_whatever_is_not_0, both, either, everywhere, nothing_counts
from .plan import EVERYTHING, Ahead, planned
from .precheck import is_safe
from .registry import Function, Transfer
from .sparse import is_sparse
from .steps import Linear, Recomputed, Sliced, Step, Traced
from .threads import current, set_current
from .vmapped import is_wrapped

REPORT = "https://github.com/zero-or-nan/zero-or-nan/issues"
HELP = "https://zero-or-nan.github.io/zero-or-nan/chapters/operators-of-your-own.html"

_INSIDE = (
    "which can't carry a mask; call ignoring.grad outside of it, in a loop or with is_grads_batched=True, "
    "or over a graph that was made outside of it"
)

_current_pass: Callable[[], int] = torch._C._current_graph_task_id


class _Arrived(NamedTuple):
    """A mask on its way to a node, and the one cotangent that it belongs to as long as there is only one."""

    mask: Mask
    value: weakref.ref[Tensor] | None
    version: int

    def is_still(self, value: Tensor) -> bool:
        """Whether this is that one, as it was sent."""
        return self.value is not None and self.value() is value and value._version == self.version


def _sent(mask: Mask, value: Tensor) -> _Arrived:
    """A mask and its one cotangent. Inference tensors have no version, so whether a hook wrote to one is not known."""
    return _Arrived(mask, None, 0) if value.is_inference() else _Arrived(mask, weakref.ref(value), value._version)


class Observer(Protocol):
    """Watches a pass, and changes nothing."""

    def handed_on(self, node: Any, values: Sequence[Any], masks: Sequence[Mask]) -> None:
        """A node's derivative gave these values, one for each edge or None, and these are their masks."""


class Pass:
    """One pass from some roots; to be entered around the call of PyTorch's engine.

    Args:
        roots: the tensors or graph edges to differentiate.
        graph: all that can be reached from them.
        keep: edges whose masks are asked for at the end, in `masks`.
        outer: the pass that this one is a part of; it reports what could not be followed.
        asked_for: tensors inside of the graph whose gradients the user gets.
        unsafe: the nodes out of which ignored elements may come as other numbers than 0. If there are none, each node
            counts as unsafe.
        by_rules_alone: whether each derivative is interpreted, operator by operator, and none is left to plain
            PyTorch. This is needed if the pass is recorded.
        observer: is called with what each node that is not skipped hands on.

    Attributes:
        masks: the masks at the edges that are kept, None where all elements count. An edge that no cotangent has
            reached is missing.
        entered: where the pass is recorded, each tensor between the nodes beside the cotangent that it became.
    """

    policy = EVERYTHING
    """What the plan of a pass may do. Tests take some of it away."""

    raises_bugs = False
    """Whether an error in a rule is raised, as tests want it, in place of a warning."""

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
        self.keep = set(keep)
        self.masks: dict[Edge, Mask] = {}
        self._arrived: dict[Edge, _Arrived] = {}
        self._running: dict[Any, Step] = {}
        self.entered: dict[int, tuple[Tensor, Cotangent]] = {}
        self._engine_pass: int | None = None
        self._handles: list[Any] = []
        self._suspected: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._bugs: list[tuple[str, Exception]] = []
        self._mistakes: dict[str, str] = {}
        self.count: Count | None = None if outer is None else outer.count

    def __enter__(self) -> Pass:
        self._aside = compiled_autograd_aside()
        self._aside.__enter__()
        try:
            for root in self.roots:
                if isinstance(root, Tensor) and root._backward_hooks:  # these run before anything else
                    self._handles += put_first(root.register_hook(PassHook(self._begun)))  # type: ignore[no-untyped-call]
            plan = planned(
                self.roots, self.graph, self.keep, self.unsafe, self.by_rules_alone, self.outer is None, self.policy
            )
            self.by_rules_alone = plan.by_rules_alone
            if plan.first is not None:  # which run of the engine is ours, before anybody's hook starts another
                self._handles.append(plan.first.register_prehook(PassHook(self._begun)))
            for node, ahead, kind, repair in plan.transferred:
                self._transfer(node, ahead, kind, repair)
            for node, ahead, step, function in plan.interpreted:
                self._interpret(node, ahead, step, function)
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
        if self._bugs and self.raises_bugs:
            raise self._bugs[0][1]
        for name, error in self._bugs[:1]:
            warnings.warn(
                f"ignoring failed at {name} ({type(error).__name__}: {error}). This is a bug in zero_or_nan; please "
                f"report it at {REPORT}. From there on the gradient is plain PyTorch's, and ignored elements may "
                "contaminate it",
                stacklevel=_users_line(),
            )
        for name, mistake in self._mistakes.items():
            warnings.warn(
                f"ignoring failed in your rule of {name} ({mistake}): from there on the gradient is plain PyTorch's, "
                f"and ignored elements may contaminate it. How to write a rule: {HELP}",
                stacklevel=_users_line(),
            )
        if self._lost:
            told = ", ".join(f"{name} ({reason})" for name, reason in sorted(self._lost.items()))
            warnings.warn(
                f"ignoring could not follow {told}: from there on the gradient is plain PyTorch's, and ignored "
                f"elements may contaminate it. What to do: {HELP}",
                stacklevel=_users_line(),
            )

    def failed(self, name: str, error: Exception, suspected: bool = False) -> None:
        """Something could not be followed: by what a rule says of itself, or by mistake.

        What is only suspected to have lost something is told of when a gradient turns out not to be finite.
        """
        if self.outer is not None:
            self.outer.failed(name, error, suspected)
        elif isinstance(error, NotFollowed):
            is_told_later = suspected and not self.keep  # a mask that is asked for is lost at once
            (self._suspected if is_told_later else self._lost).setdefault(name, str(error))
        elif isinstance(error, RuleFailed):
            self._mistakes.setdefault(name, str(error))
        else:
            self._bugs.append((name, error))

    def recomputing(self, function: Any) -> Recomputed | None:
        """The checkpoint that runs and computes this function again."""
        steps = [step for node, step in self._running.items() if getattr(node, "run_function", None) is function]
        return steps[0] if steps and isinstance(steps[0], Recomputed) and current() is self else None

    def inner(self, roots: Sequence[Any], keep: Iterable[Edge]) -> Pass:
        """A pass inside of this one, over a part of the graph that was computed again."""
        return Pass(roots, held_from(roots), keep, self)

    def step_at(self, node: Any) -> Step | None:
        """The run of a node's derivative, while it lasts."""
        return self._running.get(node)

    def is_safe_ahead(self, node: Any) -> bool:
        """Whether plain PyTorch's backward can be trusted from this node on."""
        return is_safe(graph_from([GradientEdge(ahead, 0) for ahead, _ in node.next_functions if ahead is not None]))

    # What happens to a cotangent: it arrives, a step is made of it, its results are on their way.

    def _enter(
        self, node: Any, kind: Callable[..., Step], function: Function, arriving: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        if not self._is_mine():
            return None
        recorded = is_recorded(node)
        if recorded:
            arriving = tuple(self._at_constants(node, number, value) for number, value in enumerate(arriving))
        masks, values, masked, strange = [], [], recorded, None
        for number, value in enumerate(arriving):
            value, mask, carries = self._arriving(node, number, value, kind is Step and not self.by_rules_alone)
            masks.append(mask)
            values.append(value)
            masked = masked or mask is not None
            if not carries or kind in _ON_COTANGENTS and _is_anothers(value):
                strange = value
        if strange is not None:
            self._pass_by(strange)
            return None
        if not masked and function.selects is False and (kind is Step or kind is Linear):
            return None
        if self.count is not None:
            self.count.see(node, masks)
        step = kind(self, node, function, masks)
        if not masked and not step.is_needed:
            return None
        self._running[node] = step
        return tuple(step.begin(values))

    def _at_constants(self, node: Any, number: int, value: Any) -> Any:
        """What arrives at a node that an earlier pass recorded: 0, and ignored, where it reaches a constant."""
        counts = constants(node, number)
        if value is None or counts is None or not can_carry(value) or is_jagged(value):
            return value
        kept = without(value, counts)
        arrived = self._arrived.get((node, number))
        mask = both(None if arrived is None else arrived.mask, counts)
        self._arrived[node, number] = _sent(mask, kept)
        return kept

    def _leave(
        self, node: Any, edges: Sequence[tuple[Edge, bool]], results: tuple[Any, ...], arriving: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        if not self._is_mine():
            return None
        step = self._running.pop(node, None)
        if step is None:
            self._hand_on(node, edges, results, _NO_MASKS)
            return None
        values, masks = step.end(results, arriving)
        if torch.is_grad_enabled():
            step.over()
        self._hand_on(node, edges, values, masks)
        # PyTorch looks at what a hook returns, and can't at nested tensors.
        return None if all(map(operator.is_, values, results)) else tuple(values)

    def _follow(
        self,
        node: Any,
        edges: Sequence[tuple[Edge, bool]],
        function: Function,
        masks: Transfer,
        repair: Any,
        results: tuple[Any, ...],
        arriving: tuple[Any, ...],
    ) -> None:
        """Plain PyTorch's derivative has run on plain tensors, and only its mask follows."""
        if not self._is_mine():
            return
        grad, mask, carries = self._arriving(node, 0, arriving[0])
        found: Sequence[Mask] | None = None
        if not carries:
            self._pass_by(grad)
        elif grad is not None and (mask is not None or function.selects is not False):
            keep = self.keep
            wanted = [
                result if not last or edge in keep else None
                for (edge, last), result in zip(edges, results, strict=False)
            ]
            try:
                if self.count is not None and repair is not None:
                    self.count.see(node, [mask])
                if repair is not None and mask is not None:
                    repair(node, grad, mask, results)
                found = masks.follow(node, grad, mask, wanted)
            except Exception as error:
                self.failed(function_of(node.name()), error)
        self._hand_on(node, edges, results, _NO_MASKS if found is None else found)

    def _hand_on(
        self, node: Any, edges: Sequence[tuple[Edge, bool]], values: Sequence[Any], masks: Iterable[Mask]
    ) -> None:
        """Send the results of a node's derivative on to the next nodes."""
        sent: list[Mask] | None = None if self.observer is None else []
        for (edge, last), value, mask in zip(edges, values, masks, strict=False):
            if value is not None:
                mask = _unless_constant(node, value, mask)
                self._send(edge, last, value, mask)
            if sent is not None:
                sent.append(mask)
        if self.observer is not None and sent is not None:
            self.observer.handed_on(node, values, sent)

    def _send(self, edge: Edge, last: bool, value: Any, mask: Mask) -> None:
        """A cotangent and its mask are on their way to the next node, unless that is the last one."""
        if last or edge in self.asked_for:
            self.confirm_suspected(value)
        if last and edge not in self.keep:
            return
        if mask is not None and value.is_complex() and all_count(mask):
            mask = None  # a part of each entry was selected: what is ahead can be plain PyTorch's
        before = self._arrived.get(edge)
        if before is not None:
            arrived = _Arrived(None if is_sparse(value) else either(before.mask, mask), None, 0)
        elif mask is None:
            arrived = _NOTHING_IGNORED
        else:
            arrived = _sent(mask, value)
        self._arrived[edge] = arrived
        if edge in self.keep:
            self.masks[edge] = arrived.mask

    def confirm_suspected(self, gradient: Any) -> None:
        """A gradient that is not finite makes what was suspected a loss."""
        top = self
        while top.outer is not None:
            top = top.outer
        if top._suspected and not (is_finite(gradient) and is_finite(tangent_of(gradient))):
            top._lost.update(top._suspected)

    def _arriving(self, node: Any, number: int, value: Any, may_be_sparse: bool = False) -> tuple[Any, Mask, bool]:
        """A cotangent, which of its elements count, and whether it can carry a mask at all.

        Besides what was sent here, whatever a hook has made another number than 0 counts. A ZeroTensor of which nothing
        counts becomes zeros in memory.
        """
        arrived = self._arrived.pop((node, number), None)
        if value is None:
            return None, None, True
        mask = None if arrived is None else arrived.mask
        if self.by_rules_alone and is_jagged(value):  # its values would lose the record of the gradient
            return value, mask, False
        if is_distributed(value):  # another process may have got another value from a hook: all of them look
            return value, mask if mask is None else mask | not_zero(value), True
        if _is_zerotensor(value) and mask is not None and nothing_counts(mask):
            return value + torch.zeros_like(value), mask, True
        if arrived is not None and arrived.is_still(value) and (may_be_sparse or not is_sparse(value)):
            return value, mask, True
        if not can_carry(value):
            return value, mask, False
        return value, mask if mask is None else and_whatever_is_not_0(mask, values_of(value)), True

    def send(self, edge: Edge, mask: Mask) -> None:
        """A mask for a cotangent that the engine is given by others, for a pass inside of this one."""
        if mask is not None:
            self._arrived[edge] = _Arrived(mask, None, 0)

    # Whose turn it is.

    def _begun(self, cotangent: Tensor) -> None:
        self._is_mine()

    def _is_mine(self) -> bool:
        """Whether the engine calls for this pass: the nodes may be shared with another thread's, or a hook's."""
        running = _current_pass()
        if self._engine_pass is None and current() is self:
            self._engine_pass = running
        return running == self._engine_pass

    def _transfer(self, node: Any, ahead: Ahead, kind: NodeKind, repair: Any) -> None:
        """Let plain PyTorch run the node's derivative, and have the mask follow it."""
        assert kind.transfer is not None
        leave = PassHook(self._follow, node, ahead, kind.function, kind.transfer, repair)
        self._handles += put_first(node.register_hook(leave))

    def _interpret(self, node: Any, ahead: Ahead, step: type[Step], function: Function) -> None:
        """Have a step of ours around the run of the node's derivative."""
        self._handles.append(node.register_prehook(PassHook(self._enter, node, step, function)))  # after the others
        self._handles += put_first(node.register_hook(PassHook(self._leave, node, ahead)))
        if step is Recomputed:
            self._handles.append(Recomputed.prepare(node, self))

    def _pass_by(self, strange: Any) -> None:
        """A tensor that can't carry a mask: its node is plain PyTorch's."""
        if _is_zerotensor(strange):  # all of it counts, and plain PyTorch's derivative is right
            return
        if is_wrapped(strange):
            self.failed("a tensor inside of torch.vmap or torch.func", NotFollowed(_INSIDE), suspected=True)
            return
        kind = "a nested tensor" if strange.is_nested else type(strange).__name__
        if kind == "Tensor":
            kind = str(strange.layout)
        self.failed(kind, NotFollowed("a tensor that can't carry a mask"), suspected=True)

    def _let_go(self) -> None:
        self._aside.__exit__(None, None, None)
        for step in self._running.values():
            step.abandon()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._arrived.clear()
        self._running.clear()
        self.entered.clear()
        self.graph = {}


def _is_zerotensor(value: Any) -> bool:
    return type(value) is Tensor and value._is_zerotensor()


def _unless_constant(node: Any, value: Any, mask: Mask) -> Mask:
    """The mask of what a derivative gave, where the result depends on the input.

    A product with a ZeroTensor, the tangent of a constant, is one whatever the other factor is, also NaN: so the other
    factor is ignored. `sgn` gives a ZeroTensor too, but sgn(NaN) is NaN.
    """
    if _is_zerotensor(value) and function_of(node.name()) != "Sgn":
        return everywhere(False, value)
    return mask


_ON_COTANGENTS = (Step, Traced, Sliced)
"""How a derivative is run that gets cotangents in place of plain tensors."""


def _is_anothers(value: Any) -> bool:
    """Whether this is a tensor of a subclass, not known here, that runs operators in its own way."""
    return value is not None and dispatches(value) and not is_jagged(value) and not is_distributed(value)


def _users_line() -> int:
    """How many calls above the caller's the user's code stands: what calls us through the compiler is none."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(1))]
    between = itertools.takewhile(lambda name: name.startswith(("zero_or_nan.", "torch._")), names)
    return 1 + len(list(between))


_NOTHING_IGNORED = _Arrived(None, None, 0)
_NO_MASKS: Iterable[Mask] = itertools.repeat(None)
