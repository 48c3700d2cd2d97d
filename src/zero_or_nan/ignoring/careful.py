"""One backward pass that knows what the loss ignored.

PyTorch's engine runs it, hooks and all, on plain tensors. The pass stands between the nodes: as a node's derivative
begins it takes the masks that have arrived there, and as it ends it keeps those of the results for the nodes ahead. All
that it knows are the fields of one object.
"""

from __future__ import annotations

import itertools
import operator
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from .checkpoints import CHECKPOINT, Recomputed
from .compiling import compiled_autograd_aside
from .cotangent import can_carry, is_finite
from .distributed import is_border, is_distributed, not_zero
from .graph import NODES, AccumulateGrad, Edge, Graph, edge_of, function_of, graph_from
from .hooks import Ours, put_first
from .lifetimes import DEEP_GRAPHS
from .looks import harmless
from .masks import Mask, either
from .registry import UNKNOWN, Function, NotFollowed, RuleFailed, record_of
from .steps import Border, Followed, Foreign, Moved, Replaced, Sliced, Step
from .threads import current, set_current

REPORT = "https://github.com/zero-or-nan/zero-or-nan/issues"
HELP = "https://zero-or-nan.github.io/zero-or-nan/chapters/operators-of-your-own.html"

_current_pass: Callable[[], int] = torch._C._current_graph_task_id


class _Arrived(NamedTuple):
    """A mask on its way to a node, and the one cotangent that it belongs to as long as there is only one."""

    mask: Mask
    value: weakref.ref[Tensor] | None
    version: int

    def is_still(self, value: Tensor) -> bool:
        """Whether this is that one, as it was sent."""
        return self.value is not None and self.value() is value and value._version == self.version


class Pass:
    """One pass from some roots; to be entered around the call of PyTorch's engine.

    Args:
        roots: the tensors or graph edges to differentiate.
        graph: all that can be reached from them.
        keep: edges whose masks are asked for at the end, in `masks`.
        outer: the pass that this one is a part of; what can't be followed is told there.
        asked_for: tensors inside of the graph whose gradients the user gets.

    Attributes:
        masks: the masks at the edges that are kept, None where all entries count. An edge that no cotangent has
            reached is missing.
    """

    raises_bugs = False
    """Whether an error in a rule is raised, as tests want it, in place of a warning."""

    def __init__(
        self,
        roots: Sequence[Any],
        graph: Graph,
        keep: Iterable[Edge] = (),
        outer: Pass | None = None,
        asked_for: Iterable[Any] = (),
    ) -> None:
        self.roots = roots
        self.graph = graph
        self.outer = outer
        self.asked_for = set(map(edge_of, asked_for))
        self.keep = set(keep)
        self.masks: dict[Edge, Mask] = {}
        self._arrived: dict[Edge, _Arrived] = {}
        self._running: dict[Any, Step] = {}
        self._engine_pass: int | None = None
        self._handles: list[Any] = []
        self._suspected: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._bugs: list[tuple[str, Exception]] = []
        self._mistakes: dict[str, str] = {}

    def __enter__(self) -> Pass:
        self._aside = compiled_autograd_aside()
        self._aside.__enter__()
        try:
            for root in self.roots:
                if isinstance(root, Tensor) and root._backward_hooks:  # these run before anything else
                    self._handles += put_first(root.register_hook(Ours(self._begun)))  # type: ignore[no-untyped-call]
            for node, edges in self.graph.items():
                if type(node) is not AccumulateGrad:  # has no derivative
                    self._follow(node, edges)
        except BaseException:
            self._let_go()
            raise
        self._before = current()
        set_current(self)
        return self

    def __exit__(self, failed: type[BaseException] | None, *details: object) -> None:
        self._let_go()
        set_current(self._before)
        if failed is not None:
            return
        if self._bugs and self.raises_bugs:
            raise self._bugs[0][1]
        for name, error in self._bugs[:1]:
            warnings.warn(
                f"ignoring failed at {name} ({type(error).__name__}: {error}), which is a mistake of its own; "
                f"please report it at {REPORT}. From there on the gradient is plain PyTorch's, and ignored entries may "
                "contaminate it",
                stacklevel=_users_line(),
            )
        for name, mistake in self._mistakes.items():
            warnings.warn(
                f"ignoring failed in your rule of {name} ({mistake}): from there on the gradient is plain PyTorch's, "
                f"and ignored entries may contaminate it. How to write a rule: {HELP}",
                stacklevel=_users_line(),
            )
        if self._lost:
            told = ", ".join(f"{name} ({reason})" for name, reason in sorted(self._lost.items()))
            warnings.warn(
                f"ignoring could not follow {told}: from there on the gradient is plain PyTorch's, and ignored entries "
                f"may contaminate it. What to do: {HELP}",
                stacklevel=_users_line(),
            )

    def failed(self, name: str, error: Exception, suspected: bool = False) -> None:
        """Something could not be followed: by what a rule says of itself, or by mistake.

        What is only suspected to have lost something is told of when a gradient turns out not to be finite.
        """
        if self.outer is not None:
            self.outer.failed(name, error, suspected)
        elif isinstance(error, NotFollowed):
            (self._suspected if suspected else self._lost).setdefault(name, str(error))
        elif isinstance(error, RuleFailed):
            self._mistakes.setdefault(name, str(error))
        else:
            self._bugs.append((name, error))

    def recomputing(self, function: Any) -> Recomputed | None:
        """The checkpoint that runs and computes this function again."""
        steps = [step for node, step in self._running.items() if getattr(node, "run_function", None) is function]
        return steps[0] if steps and isinstance(steps[0], Recomputed) and current() is self else None

    def is_harmless_ahead(self, node: Any) -> bool:
        """Whether plain PyTorch's backward can be trusted from this node on."""
        return harmless(graph_from([GradientEdge(ahead, 0) for ahead, _ in node.next_functions if ahead is not None]))

    # What happens to a cotangent: it arrives, a step is made of it, its results are on their way.

    def _enter(
        self, node: Any, kind: Callable[..., Step], function: Function, arriving: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        if not self._is_mine():
            return None
        masks, masked, strange = [], False, None
        for number, value in enumerate(arriving):
            mask, carries = self._arriving(node, number, value)
            masks.append(mask)
            masked = masked or mask is not None
            strange = strange if carries else value
        if strange is not None:
            self._pass_by(strange)
            return None
        if not masked and function.selects is False and (kind is Step or kind is Moved):
            return None
        step = kind(self, node, function, masks)
        if not masked and not step.is_needed:
            return None
        self._running[node] = step
        return tuple(step.begin(arriving))

    def _leave(
        self, node: Any, edges: Sequence[tuple[Edge, bool]], results: tuple[Any, ...], arriving: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        if not self._is_mine():
            return None
        step = self._running.pop(node, None)
        if step is None:
            for (edge, last), value in zip(edges, results, strict=False):
                if value is not None:
                    self._send(edge, last, value, None)
            return None
        values, masks = step.end(results, arriving)
        for (edge, last), value, mask in zip(edges, values, masks, strict=False):
            if value is not None:
                self._send(edge, last, value, mask)
        # PyTorch looks at what a hook returns, and can't at nested tensors.
        return None if all(map(operator.is_, values, results)) else tuple(values)

    def _send(self, edge: Edge, last: bool, value: Any, mask: Mask) -> None:
        """A cotangent and its mask are on their way to the next node, unless that is the last one."""
        if last or edge in self.asked_for:
            self.is_told_of(value)
        if last and edge not in self.keep:
            return
        if mask is not None and value.is_complex() and bool(mask.all()):
            mask = None  # a part of each entry was selected: what is ahead can be plain PyTorch's
        before = self._arrived.get(edge)
        if before is not None:
            arrived = _Arrived(either(before.mask, mask), None, 0)
        elif mask is None:
            arrived = _NOTHING_IGNORED
        else:
            arrived = _Arrived(mask, weakref.ref(value), value._version)
        self._arrived[edge] = arrived
        if edge in self.keep:
            self.masks[edge] = arrived.mask

    def is_told_of(self, gradient: Any) -> None:
        """A gradient that is not finite makes what was suspected a loss."""
        top = self
        while top.outer is not None:
            top = top.outer
        if top._suspected and not is_finite(gradient):
            top._lost.update(top._suspected)

    def _arriving(self, node: Any, number: int, value: Any) -> tuple[Mask, bool]:
        """What of a cotangent counts, and whether it can carry a mask at all.

        Besides what was sent here, whatever a hook has made another number than 0 counts.
        """
        arrived = self._arrived.pop((node, number), None)
        if value is None:
            return None, True
        mask = None if arrived is None else arrived.mask
        if is_distributed(value):  # another process may have got another value from a hook: all of them look
            return (mask if mask is None else mask | not_zero(value)), True
        if arrived is not None and arrived.is_still(value):
            return mask, True
        if not can_carry(value):
            return mask, False
        return (mask if mask is None else mask | (value != 0)), True

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

    def _follow(self, node: Any, edges: Sequence[Edge]) -> None:
        kind, function = _kind_of(node)
        only_if = function.derivative_if if kind is Replaced else function.moves if kind is Moved else None
        if callable(only_if) and not only_if(node):
            kind = Step
        enter = Ours(self._enter, node, kind, function)
        self._handles.append(node.register_prehook(enter))  # after the others
        ahead = [(edge, edge[0] is None or type(edge[0]) is AccumulateGrad) for edge in edges]
        self._handles += put_first(node.register_hook(Ours(self._leave, node, ahead)))
        if kind is Recomputed:
            self._handles.append(Recomputed.prepare(node, self))

    def _pass_by(self, strange: Any) -> None:
        """A tensor that can't carry a mask: its node is plain PyTorch's."""
        if type(strange) is Tensor and strange._is_zerotensor():  # zeros without memory: nothing can be lost
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
        DEEP_GRAPHS.hold(self.graph)
        self.graph = {}


def _kind_of(node: Any) -> tuple[type[Step], Function]:
    """How the derivative of a node is run, and the record of its function."""
    name, function = function_of(node.name()), record_of(node)
    if function.moves:
        return (Border if is_border(node) else Moved), function
    if function.derivative is not None:
        return Replaced, function
    if isinstance(node, BackwardCFunction):
        return (Recomputed if name == CHECKPOINT else Foreign if function is UNKNOWN else Followed), function
    if name not in NODES:
        return Foreign, function
    return (Sliced if name == "CopySlices" else Step), function


def _users_line() -> int:
    """How many calls above the caller's the user's code stands: what calls us through the compiler is none."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(1))]
    between = itertools.takewhile(lambda name: name.startswith(("zero_or_nan.", "torch._")), names)
    return 1 + len(list(between))


_NOTHING_IGNORED = _Arrived(None, None, 0)
