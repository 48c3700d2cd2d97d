"""A backward pass, watched: what each node passes on is looked at, and what is not finite is followed to where it goes.

Before the pass, where the graph holds a number that could contaminate, a shadow of it is run by `ignoring`, which
changes no `.grad`: it tells which elements the loss ignored, and whether the gradient exists.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ..ignoring.graph import (
    KINDS,
    AccumulateGrad,
    Edge,
    can_be_read_again,
    edge_of,
    function_of,
    run,
    saved_tensors,
)
from ..ignoring.lifetimes import held_from
from ..ignoring.plan import nothing_ignored
from ..ignoring.precheck import is_safe
from .arithmetic import again, first_born, limit, number, on_copies
from .forward import (
    CALLED,
    CARRIES,
    MEANT,
    PASSES,
    READABLE,
    Call,
    come_in,
    describe,
    finite_ones,
    held_before,
    note_call,
)
from .places import Place, place_here, users_frame
from .shadow import Shadow, leaves_of, shadow_of
from .traces import Found, Trace, all_finite, are_finite, is_finite, joined, looked_at

if TYPE_CHECKING:
    from .recorder import Recorder

NOT_TOLD_APART = (
    "explain could not find out whether the loss uses an element or ignores it: this needs a second backward pass, "
    "which failed, or was not tried because a custom autograd.Function may allow only one pass"
)

_unwatched = torch._C.DisableTorchFunction
_STRIDED = torch.strided


class Reached(NamedTuple):
    """Where something that is not finite came to: a leaf, what was asked for, or the loss."""

    target: Tensor | str
    edge: Edge | None
    trace: Trace


class Watched:
    """One run of PyTorch's engine.

    Args:
        recorder: the watch that it is a part of.
        roots, vectors: what is differentiated, and the vectors of the vector-Jacobian product.
        inputs: with respect to what; empty for all leaves.
        accumulates: whether gradients go into `.grad`.
        outer: the run that this one is a part of, as in a reentrant checkpoint.

    Attributes:
        arrived: by edge, what has been passed on there that is not finite.
        carried: by node and output, what in the forward pass was not finite, with its elements.
        born: at which node something was born in this pass.
        reached: where something has come to, in passes inside of this one too.
        holders: the leaves with a `.grad` that this pass adds to, by whether both are finite unless something arrives.
    """

    def __init__(
        self,
        recorder: Recorder,
        roots: Sequence[Any],
        vectors: Sequence[Any],
        inputs: Sequence[Any],
        accumulates: bool,
        outer: Watched | None,
    ) -> None:
        self.recorder, self.outer = recorder, outer
        self.roots, self.vectors, self.inputs, self.accumulates = roots, vectors, inputs, accumulates
        self.graph = held_from(roots)
        self.arrived: dict[Edge, Trace] = {}
        self.carried: dict[Any, dict[int, list[tuple[Found, Tensor]]]] = {}
        self.born: dict[Any, tuple[Found, Tensor]] = {} if outer is None else outer.born
        self.reached: list[Reached] = [] if outer is None else outer.reached
        self.holders: dict[Edge, bool] = {} if outer is None else dict(outer.holders)
        self.root_edges = {edge_of(root) for root in roots}
        self.loss_trace: Trace | None = None
        self.shadow: Shadow | None = None
        self._lacks_shadow = False
        self._handles: list[Any] = []

    # Before.

    def begin(self) -> None:
        recorder = self.recorder
        if recorder.traces:
            for root in self.roots:
                trace = self._trace_of(root)
                if trace is not None:
                    if self.outer is None:
                        self.reached.append(Reached("the loss", None, trace))
                        self.loss_trace = trace
                    edge = edge_of(root)
                    if edge is not None:
                        self.arrived[edge] = trace
        for root, vector in zip(self.roots, self.vectors, strict=False):
            here, edge = looked_at(vector), edge_of(root)
            if here is not None and edge is not None and not is_finite(here):
                call = Call(None, "backward", place_here(users_frame()))
                self.arrived[edge] = Trace({recorder.given(vector, here, call): ("backward",)})
        if self.accumulates:
            self._look_at_holders()
        if recorder.carries:
            for node in self.graph:
                carried = node.metadata.get(CARRIES)
                if carried:
                    self.carried[node] = carried
        if self.outer is None:
            unsafe: list[Any] = []
            if (not is_safe(self.graph, unsafe) or self.carried) and not nothing_ignored(self.graph):
                self._cast_shadow(unsafe)
        for node in self.graph:
            if type(node) is not AccumulateGrad:
                self._handles.append(node.register_hook(self._hook(node)))

    def _look_at_holders(self) -> None:
        """Whether a gradient that this pass adds to is not finite already."""
        asked = {edge_of(tensor) for tensor in self.inputs}
        holders = {(node, 0): leaf for node, leaf in leaves_of(self.graph) if not asked or (node, 0) in asked}
        grads = {
            edge: leaf.grad for edge, leaf in holders.items() if leaf.grad is not None and edge not in self.holders
        }
        if not grads:
            return
        alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        self.holders.update({edge: alone and not holders[edge]._backward_hooks for edge in grads})
        if all_finite(grads.values()):
            return
        found: Found | None = None
        for edge, grad in grads.items():
            here = looked_at(grad)
            if here is None or is_finite(here):
                continue
            self.holders[edge] = False
            trace = self.recorder.traces.of(grad) or self.recorder.suspects.of(grad)
            if trace is None:
                found = found or held_before(grad, here, Call(None, "backward", place_here(users_frame())))
                trace = Trace({found: ()})
                self.recorder.traces.keep(grad, trace)
            self.arrived[edge] = trace

    def _trace_of(self, value: Any) -> Trace | None:
        """What a tensor that is not finite has it from, where that is known."""
        here = looked_at(value)
        return None if here is None or is_finite(here) else self.recorder.traces.of(value)

    def _cast_shadow(self, unsafe: Sequence[Any]) -> None:
        keep = [(node, 0) for node in unsafe if type(node) is not AccumulateGrad]
        keep += [(node, output) for node, carried in self.carried.items() for output in carried]
        with self.recorder.aside() as nested:
            self.shadow = shadow_of(self.roots, self.vectors, self.inputs, self.graph, keep, unsafe, nested)
        self._lacks_shadow = self.shadow is None

    def _hook(self, node: Any) -> Callable[..., None]:
        recorder = self.recorder

        def look(results: Sequence[Tensor | None], arriving: Sequence[Tensor | None]) -> None:
            with _unwatched():
                for result in results:
                    if type(result) is not Tensor or result.dtype is not torch.float32 or result.layout is not _STRIDED:
                        here = looked_at(result)
                        if here is None or is_finite(here):
                            continue
                    else:  # the usual, in as few steps as possible
                        try:
                            total = result.sum().item()
                        except RuntimeError:  # on the meta device, or nested
                            continue
                        if total - total == 0 or is_finite(result):
                            continue
                    try:
                        self._not_finite(node, results, arriving)
                    except Exception as error:
                        recorder.failed(str(node.name()), error)
                    break
                if torch.is_grad_enabled():
                    self._recorded(node, results)

        return look

    # During.

    def _recorded(self, node: Any, results: Sequence[Any]) -> None:
        """A gradient that can be differentiated comes from the same call."""
        for result in results:
            if result is not None and result.grad_fn is not None and CALLED not in result.grad_fn.metadata:
                note_call(result.grad_fn, *self._called(node)[1])

    def _not_finite(self, node: Any, results: Sequence[Any], arriving: Sequence[Any]) -> None:
        """A node passes something on that is not finite."""
        traces = []
        for at, value in enumerate(arriving):
            here = looked_at(value)
            if here is not None and not is_finite(here):
                trace = self.arrived.get((node, at)) or self.recorder.traces.of(value)
                trace = trace or self._added_up((node, at), here)
                if trace is not None:
                    traces.append(trace)
        caller, called = self._called(node)
        node.metadata.setdefault(READABLE, caller.metadata.get(READABLE, False))
        name = called[0]
        explained: bool | None = None
        for at, ((ahead, slot), result) in enumerate(zip(node.next_functions, results, strict=False)):
            here = looked_at(result)
            if here is None or ahead is None or is_finite(here):
                continue
            born: list[Found] = []
            bad = ~torch.isfinite(here)
            finite = self._of_finite(node, arriving, bad)
            if finite is not None and not traces and not bool(finite.any()):
                finite = bad
            if finite is None:
                if explained is None:
                    explained = self._is_explained(node, arriving, traces)
                births = None if explained else (bad, self._at_finite(node, caller, bad))
            else:
                births = (finite, self._at_finite(node, caller, finite)) if not traces or bool(finite.any()) else None
            if births is not None:
                born = self._births(node, caller, called, arriving, results, at, *births)
            trace = joined(traces, name, born)
            before = self.arrived.get((ahead, slot))
            if before is not None:
                trace = joined([before, trace])
            self.arrived[ahead, slot] = trace
            self.recorder.traces.keep(result, trace)

    def _added_up(self, edge: Edge, here: Tensor) -> Trace | None:
        """Gradients that were finite, and whose sum is too large."""
        senders = [node for node, edges in self.graph.items() for other in edges if other == edge]
        count = len(senders) + self.holders.get(edge, False)
        if count < 2 or bool(here.isnan().any()):
            return None
        bad = ~torch.isfinite(here)
        call = Call(None, *self._called(senders[0])[1])
        text = f"the sum of {count} gradients > {limit(here.dtype)}"
        return Trace({describe("made", call, here, bad, text, "backward", too_large=True): (call.name,)})

    def _is_explained(self, node: Any, arriving: Sequence[Any], traces: Sequence[Trace]) -> bool:
        """Whether what a node passes on is not finite only because what arrived was not."""
        if not traces:
            return False
        if not can_run_again(node):
            return True
        try:
            with again():
                return are_finite(run(node, *_finite(arriving)))
        except Exception:
            return True

    def _of_finite(self, node: Any, arriving: Sequence[Any], bad: Tensor) -> Tensor | None:
        """Of the elements that are not finite, those for which what arrived is; None where that can't be told apart."""
        cotangent = looked_at(arriving[0]) if len(arriving) == 1 and _is_entrywise(node) else None
        return None if cotangent is None or cotangent.shape != bad.shape else bad & torch.isfinite(cotangent)

    def _at_finite(self, node: Any, caller: Any, bad: Tensor) -> Tensor | None:
        """Of those, the ones at which the forward pass was finite too; None where that can't be told apart."""
        if not _is_entrywise(node):
            return None
        entries = bad.clone()
        for pairs in (self.carried.get(node) or self.carried.get(caller) or {}).values():
            for _, not_finite in pairs:
                if not_finite.shape != bad.shape:
                    return None
                entries &= ~not_finite
        for saved in saved_by(node):
            try:
                here = looked_at(saved)
                entries &= torch.isfinite(saved if here is None else here)
            except RuntimeError:  # broadcast along the way
                return None
        return entries

    def _births(
        self,
        node: Any,
        caller: Any,
        called: tuple[str, Place],
        arriving: Sequence[Any],
        results: Sequence[Any],
        at: int,
        bad: Tensor,
        new: Tensor | None,
    ) -> list[Found]:
        """What of a result was born at this node: in the forward pass already, or only now.

        Args:
            bad: the elements.
            new: those that the forward pass has no part in; None where that is not known.
        """
        result = results[at]
        inside = self.recorder.traces.of(result)
        if inside is not None and type(node).__name__ == "CheckpointFunctionBackward":
            return list(inside.found)
        born: list[Found] = []
        if new is None or bool((bad & ~new).any()):
            born = self._from_forward(node, caller, called)
            text = self._multiplied(node, arriving, at, bad if new is None else bad & ~new)
            for each in born:
                each.in_backward = each.in_backward or text
            if born and (new is None or not bool(new.any())):
                return born
        entries = new if born and new is not None else bad
        known = self.born.get(node)
        if known is None:
            text = self._multiplied(node, arriving, at, entries) or (inside.found[0].operands if inside else "")
            too_large = self._only_too_large(node, arriving, at, entries)
            found = describe("made", Call(None, *called), result, entries, text, "backward", too_large=too_large)
            self.born[node] = known = found, entries
        return [*born, known[0]]

    def _from_forward(self, node: Any, caller: Any, called: tuple[str, Place]) -> list[Found]:
        """What in the forward pass made a factor of this node not finite."""
        carried = self.carried.get(node) or self.carried.get(caller) or {}
        found = self._at_fault(found for pairs in carried.values() for found, _ in pairs)
        if not found:
            found = self._at_fault(joined(filter(None, map(self._trace_of, saved_by(node)))).found)
        found = found or self._at_fault(caller.metadata.get(PASSES, ())) or self._came_in(node, called)
        if called[0] in MEANT:  # an infinity that leaves an element out is not at fault beside something else
            found = [each for each in found if each.infinite != -math.inf] or found
        return found

    def _at_fault(self, found: Iterable[Found]) -> list[Found]:
        """Without infinities that the code wrote down: what multiplies one by 0 is at fault, unless the loss has it."""
        in_loss = self.loss_trace.found if self.loss_trace is not None else ()
        became = {meant: each for each in in_loss for meant in (*each.made_of, each)}
        return list(dict.fromkeys(became.get(each, each) for each in found if each.nature != "meant" or each in became))

    def _came_in(self, node: Any, called: tuple[str, Place]) -> list[Found]:
        """Data that is not finite, where the result did not show it: fused attention may give 0 for a row of NaN."""
        for saved in saved_by(node):
            here = looked_at(saved)
            if here is not None and saved.grad_fn is None and bool(here.isnan().any()):
                return [come_in(saved, here, Call(None, *called))]
        return []

    def _multiplied(self, node: Any, arriving: Sequence[Any], at: int, bad: Tensor) -> str:
        """The numbers at the first element: the cotangent, times the derivative."""
        with contextlib.suppress(Exception):
            cotangent = looked_at(arriving[0])
            if cotangent is not None and len(arriving) == 1 and cotangent.shape == bad.shape and _is_entrywise(node):
                index = tuple(bad.nonzero()[0].tolist())
                slope = math.inf
                if can_run_again(node):
                    with again():
                        slope = run(node, torch.ones_like(cotangent))[at][index].item()
                return f"{number(cotangent[index].item())} × {number(slope)}{_point(node, index, bad)}"
        if can_run_again(node):
            with contextlib.suppress(Exception):
                finite = _finite(arriving)
                born = first_born(lambda: run(node, *finite))
                if born is not None:
                    return born.text
        return ""

    def _only_too_large(self, node: Any, arriving: Sequence[Any], at: int, bad: Tensor) -> bool:
        """Whether the true value is a number that the dtype has no room for."""
        if not can_run_again(node):
            return False
        with contextlib.suppress(Exception), again():
            small = [None if value is None else torch.sign(value) * 1e-3 for value in arriving]
            slopes = looked_at(run(node, *small)[at])
            if slopes is not None and bool(torch.isfinite(slopes[bad]).all()):
                return True
        return _is_entrywise(node) and not is_at_pole(node, tuple(bad.nonzero()[0].tolist()), bad)

    def _called(self, node: Any) -> tuple[Any, tuple[str, Place]]:
        """Which call of the user's a node is of, and the node that knows: its own, or the nearest that it works for."""
        called = node.metadata.get(CALLED)
        if called is not None:
            return node, called
        consumers: dict[Any, list[Any]] = {}
        for other, edges in self.graph.items():
            for ahead, _ in edges:
                consumers.setdefault(ahead, []).append(other)
        waiting, seen = [node], {node}
        while waiting:
            at = waiting.pop(0)
            called = at.metadata.get(CALLED)
            if called is not None:
                return at, called
            for consumer in consumers.get(at, ()):
                if consumer not in seen:
                    seen.add(consumer)
                    waiting.append(consumer)
        return node, (function_of(node.name()), self.recorder.compiled_at or place_here(users_frame()))

    # After.

    def let_go(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def ended(self, results: Any) -> None:
        """The pass is over: who was reached by what is told."""
        for target, edge, gradient in self._targets(results):
            here = looked_at(gradient)
            if here is not None and is_finite(here):
                here = None
            trace = self.arrived.get(edge) or self.recorder.traces.of(gradient)  # a hook may have made it
            if trace is None and here is not None and self.loss_trace is None:
                trace = self._added_up(edge, here)
            if trace is None and here is not None and not self.reached:
                self.recorder.not_made_here()
            if trace is None or here is None:
                if self.loss_trace is not None:
                    self.recorder.suspects.keep(gradient, self.loss_trace)
                continue
            if self.outer is None or isinstance(target, Parameter):  # others are a checkpoint's own
                self.reached.append(Reached(target, edge, trace))
            self.recorder.traces.keep(gradient, trace)
        if self.reached and self.outer is None:
            self.recorder.has_reached(self, users_frame())

    def _targets(self, results: Any) -> Iterator[tuple[Tensor, Edge, Tensor]]:
        """The leaves, or what was asked for, with their gradients."""
        if self.inputs and not self.accumulates:
            for tensor, gradient in zip(self.inputs, results or (), strict=False):
                edge = edge_of(tensor)
                if edge is not None and isinstance(gradient, Tensor):
                    yield tensor, edge, gradient
            return
        for node, leaf in leaves_of(self.graph):
            if leaf.grad is not None:
                yield leaf, (node, 0), leaf.grad

    def kind(self, found: Found, targets: Sequence[Reached]) -> tuple[str, bool | None]:
        """What an origin is, and whether `ignoring` mended what it reached; None where that was not tried."""
        leaves = [target for target in targets if target.edge is not None]
        mended = None
        if found.held:
            return "bad input", None
        if self.shadow is not None and leaves:
            mended = all(self.shadow.mended(target.target, target.edge) for target in leaves if target.edge)
        used = self._used(found)
        in_loss = len(leaves) < len(targets)
        in_hook = found.phase == "backward" and all(known is not found for known, _ in self.born.values())
        if used is False or (mended and not in_loss and not in_hook):
            return "contaminated", mended
        return found.kind_where_used, mended

    def _used(self, found: Found) -> bool | None:
        """Whether the loss uses the elements; None where that can't be told."""
        if self.shadow is None:
            if self._lacks_shadow:
                found.is_sure = False
                self.recorder.report.note(NOT_TOLD_APART)
            return True
        if found.phase == "backward":
            verdicts = [self._used_at(node, entries) for node, (known, entries) in self.born.items() if known is found]
            if not verdicts:  # made by a hook, which does not run in a shadow
                return True
            return None if None in verdicts else any(verdicts)
        answers = [
            self._counts((node, output), entries)
            for node, carried in self.carried.items()
            for output, pairs in carried.items()
            for other, entries in pairs
            if other is found
        ]
        return any(answers) if answers else None

    def _used_at(self, node: Any, entries: Tensor) -> bool | None:
        """Whether elements that were born at a node are used, where it was followed."""
        assert self.shadow is not None
        if type(node) not in KINDS and (node, 0) in self.shadow.masks:  # nobody can look into it
            return self._counts((node, 0), entries)
        finite = self.shadow.finite.get(node)
        return None if finite is None else not finite

    def _counts(self, edge: Edge, entries: Tensor) -> bool:
        """Whether one of the elements counts in what arrives at an edge."""
        assert self.shadow is not None
        if edge in self.root_edges:
            return True
        if edge not in self.shadow.masks:
            return False
        mask = self.shadow.masks[edge]
        return bool((mask & entries).any()) if mask is not None and mask.shape == entries.shape else True


def _finite(arriving: Sequence[Any]) -> list[Any]:
    """What arrives, with 1 where it is not finite."""
    return on_copies(list(arriving), finite_ones)


def can_run_again(node: Any) -> bool:
    """Whether a node's derivative may be run once more: PyTorch's own can, others' may do anything."""
    return type(node) in KINDS and can_be_read_again(node, node.metadata.get(READABLE, False))


def saved_by(node: Any) -> Iterator[Tensor]:
    """What a node saved, as far as it can be had without running anybody's hook."""
    return saved_tensors(node, node.metadata.get(READABLE, False))


_ENDS = frozenset({"Acos", "Asin", "Atanh", "Acosh", "Erfinv", "Logit"})
"""Functions whose derivative is infinite at 1 and -1; that of others is so at 0."""


def is_at_pole(node: Any, index: tuple[int, ...], bad: Tensor) -> bool:
    """Whether a derivative is infinite, or does not exist, at what stood at an element."""
    for saved in saved_by(node):
        with contextlib.suppress(Exception):
            here = looked_at(saved)
            value = (saved if here is None else here).broadcast_to(bad.shape)[index].item()
            if value == 0 or value - value != 0 or function_of(node.name()) in _ENDS and abs(value) in (0, 1):
                return True
    return False


_FROM_RESULT: dict[str, Callable[[float], float]] = {
    "Sqrt": lambda result: result * result,
    "Rsqrt": lambda result: 1 / (result * result),
    "Exp": math.log,
    "Reciprocal": lambda result: 1 / result,
    "Tanh": math.atanh,
}
"""Functions that save their result alone, and what they were given by it."""


def _point(node: Any, index: tuple[int, ...], bad: Tensor) -> str:
    """At which number a derivative was taken, as far as the node knows."""
    name = function_of(node.name())
    with contextlib.suppress(Exception):
        saved = getattr(node, "_saved_self", None)
        if isinstance(saved, Tensor):
            value = saved.broadcast_to(bad.shape)[index].item()
        else:
            value = _FROM_RESULT[name](node._saved_result[index].item())
        return f", the derivative of {name.lower()} at {number(value)}" if math.isfinite(value) else ""
    return ""


_ENTRYWISE = frozenset("""
Exp Exp2 Log Log2 Log10 Log1P Sqrt Rsqrt Pow Mul Div Reciprocal Sin Cos Tan Asin Acos Atan Atanh Acosh Asinh Sinh Cosh
Tanh Sigmoid LogSigmoid Softplus Abs Expm1 Erf Erfc Erfinv Logit Lgamma Digamma Relu Xlogy Square Sinc Atan2 Clamp
MaskedFill Neg
""".split())  # fmt: skip


def _is_entrywise(node: Any) -> bool:
    return function_of(node.name()) in _ENTRYWISE
