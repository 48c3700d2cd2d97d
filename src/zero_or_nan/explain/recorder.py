"""One watch over a block of code: what was found not to be finite, what it has it from, and what it reached."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import Parameter

from ..ignoring.lifetimes import DEEP_GRAPHS
from ..ignoring.masked_pass import REPORT
from .backward import Reached, Watched
from .forward import (
    CARRIES,
    LEAVES,
    MEANT,
    PASSES,
    UPDATES,
    Call,
    Change,
    Forward,
    Plan,
    apart,
    born_at,
    buffers_of,
    came_too,
    come_in,
    describe,
    finite_ones,
    infinite_number,
    left_by,
    metadata,
    note_call,
    of_masks,
    was_there,
)
from .names import Names
from .patches import Patches
from .places import Place, is_recomputed, modules_around, place_here, users_frame
from .remedies import remedy
from .report import NotFiniteError, Origin, Report
from .traces import (
    Found,
    Trace,
    Traces,
    is_finite,
    is_sparse,
    is_transformed,
    joined,
    looked_at,
    memory,
    tensors_in,
    without,
)
from .undoing import Undoing

_MAKES_DATA = frozenset(
    """
tensor as_tensor from_numpy frombuffer asarray scalar_tensor load empty empty_like empty_strided new_empty new_tensor
new_empty_strided empty_permuted from_dlpack
""".split()
)
"""Functions that only bring data in; it is told of where it is first computed with."""


NOT_IN_TRANSFORMS = "a function transform (torch.func) was not looked into"

_NO_THREAD = -1

_MOST_LOOKS = 20
"""Passes in which names are looked for, of what one origin reached; a NaN in the parameters reaches all, each time."""

_OURS = frozenset({Watched.__module__})


class Recorder:
    """All that a watch knows.

    Attributes:
        thread: in which the block runs; others are not looked at. None of them when it has ended.
        traces: of the tensors that are not finite.
        suspects: traces of what is finite, but was computed from the gradient of a loss that was not.
        loose: tensors that are not finite, and that no function has taken in yet.
        reached: in order of time, what was found to have reached a loss or a gradient, with where it went.
        mistakes: our own.
    """

    raises_mistakes = False
    """Whether a mistake of ours is raised, as tests want it, in place of a warning."""

    def __init__(self, report: Report, raises: bool = False) -> None:
        self.report = report
        self.raises = raises
        self.forward = Forward(self)
        self.patches = Patches(self)
        self.thread = threading.get_ident()
        self.traces = Traces()
        self.suspects = Traces()
        self.loose: dict[int, Trace] = {}
        self.around: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        self.mistakes: list[tuple[str, Exception]] = []
        self.carries = False
        self.retaining: dict[int, weakref.ref[Tensor]] = {}
        self._aside: list[Callable[[Any], None]] | None = None
        self._undoing: Undoing | None = None
        self.running: Watched | None = None
        self.compiled_at: Place | None = None
        self._stepped_aside = False
        self.functions: list[list[Found]] = []
        self._called_at: WeakValueDictionary[tuple[Any, ...], Found] = WeakValueDictionary()
        self._kinds: WeakKeyDictionary[Found, Any] = WeakKeyDictionary()
        self._seen: dict[tuple[Any, ...], int] = {}
        self._told: dict[tuple[Any, ...], Origin] = {}
        self._last: dict[tuple[Any, ...], int] = {}

    @property
    def is_over(self) -> bool:
        return self.thread == _NO_THREAD

    def failed(self, name: str, error: Exception) -> None:
        if self.raises_mistakes:
            raise error
        if len(self.mistakes) < 10:
            self.mistakes.append((name, error))

    # The forward pass.

    def before(self, plan: Plan, args: Any) -> Tensor | None:
        """What a function is about to overwrite, where it could be asked for, and can't be told afterwards."""
        if not args or _is_left(plan, args) or not torch.is_grad_enabled() and plan.name in UPDATES:
            return None
        target = looked_at(args[0])
        if target is None or not torch.is_grad_enabled() and is_finite(target):
            return None
        if not is_sparse(args[0]):
            return target.detach().clone()
        copy: Tensor = args[0].detach().clone()
        trace = self.traces.of(args[0])
        if trace is not None:
            self.traces.keep(copy, trace)  # afterwards its numbers may be elsewhere in memory
        return copy

    def after(self, func: Any, plan: Plan, args: Any, kwargs: Any, result: Any, before: Tensor | None) -> None:
        """A function has returned."""
        recording = torch.is_grad_enabled()
        if recording:
            torch._C._set_grad_enabled(False)
        try:
            if self.loose:
                with torch._C.DisableTorchFunction():
                    self._taken_in(args, kwargs)
            if self.suspects and plan.in_place:
                self._suspected(args)
            if type(result) is Tensor:
                node = result.grad_fn
                if node is not None:
                    place = self._place()
                    note_call(node, plan.name, place)
                    if plan.in_place and result._base is not None and result._base.grad_fn is not None:
                        note_call(result._base.grad_fn, plan.name, place)
                here = looked_at(result)
                if here is None or is_finite(here):
                    if self.traces and here is not None:
                        self._overwritten(plan, here)
                    return
            elif result is None and not plan.in_place:
                return
            with torch._C.DisableTorchFunction():  # a subclass sees nothing of it
                self._look(func, plan, args, kwargs, result, before)
        finally:
            if recording:
                torch._C._set_grad_enabled(True)

    def prepared(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with which a tensor is to be told of its gradient, or to keep it."""
        try:
            if func is Tensor.retain_grad:
                self.retains(*args)
            elif len(args) == 2:
                return (args[0], self.quiet(args[1])), kwargs
            else:
                return args, {name: self.quiet(hook) for name, hook in kwargs.items()}
        except Exception as error:
            self.failed("a hook", error)
        return args, kwargs

    def retains(self, tensor: Tensor) -> None:
        """A tensor inside of a graph is to keep its gradient."""
        at = id(tensor)
        self.retaining[at] = weakref.ref(tensor, lambda _: self.retaining.pop(at, None))

    def quiet(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that does not run in a shadow of a pass; those of this library do."""
        here = threading.get_ident() == self.thread
        if not here or self._aside is not None or getattr(hook, "__module__", None) in _OURS:
            return hook

        def run(*args: Any, **kwargs: Any) -> Any:
            return None if self._aside is not None else hook(*args, **kwargs)

        with contextlib.suppress(AttributeError, TypeError):  # a callable of any kind
            functools.update_wrapper(run, hook)
        return run

    def applied(self, kind: type, args: Any, result: Any, inside: list[Found]) -> None:
        """An `autograd.Function` of the user's has returned: what was born inside of it is its own."""
        if threading.get_ident() != self.thread or not self.forward.is_on():
            return
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._taken_in(args, {})
                place = self._place()
                for found in () if kind.__module__.startswith("torch.") else inside:
                    found.operator, found.place = kind.__name__, place
                for tensor in tensors_in(result):
                    if tensor.grad_fn is None:
                        continue
                    note_call(tensor.grad_fn, kind.__name__, place)
                    here = looked_at(tensor)
                    if here is None or is_finite(here):
                        continue
                    trace = self.traces.of(tensor)
                    if trace is None:
                        call = Call(kind, kind.__name__, place, args)
                        trace = Trace({describe("made", call, tensor, ~torch.isfinite(here), ""): (kind.__name__,)})
                        self.traces.keep(tensor, trace)
                    self.loose[memory(tensor)._cdata] = trace
                    self._carry(tensor, [(found, ~torch.isfinite(here)) for found in trace.found])
        except Exception as error:
            self.failed(kind.__name__, error)

    def compiled_region(self, begins: bool) -> None:
        """The compiler takes over, or has done its work."""
        is_on = self.forward.is_on()
        if begins and is_on and self.forward.is_innermost():
            self.compiled_at = self._place()
            self.forward.leave()
            self._stepped_aside = True
        elif not begins and self._stepped_aside:
            self._stepped_aside = False
            self.forward.__enter__()

    def _carry(self, tensor: Tensor, carried: list[tuple[Found, Tensor]]) -> None:
        """Have the node of a result know what of it is not finite."""
        self.carries = True
        node: Any = tensor.grad_fn
        metadata(node).setdefault(CARRIES, {}).setdefault(tensor.output_nr, []).extend(carried)

    def _place(self) -> Place:
        """Where the user's code is; the modules around a module are noted when it is first seen."""
        place = place_here()
        module = place.module
        if module is not None and module not in self.around:
            self.around[module] = modules_around()
        return place

    def _taken_in(self, args: Any, kwargs: Any) -> None:
        for tensor in tensors_in((args, kwargs)):
            if looked_at(tensor) is not None:
                self.loose.pop(memory(tensor)._cdata, None)

    def _suspected(self, args: Any) -> None:
        """A parameter is changed by what is suspected."""
        traces = [trace for trace in map(self.suspects.of, tensors_in(args)) if trace is not None]
        if traces:
            for tensor in tensors_in(args[0]):
                self.suspects.keep(tensor, traces[0])

    def _overwritten(self, plan: Plan, here: Tensor) -> None:
        if plan.in_place and self.traces.of(here) is not None:
            whole = here.untyped_storage().nbytes() == here.nbytes
            if whole:
                self.traces.forget(here)

    def _look(self, func: Any, plan: Plan, args: Any, kwargs: Any, result: Any, before: Tensor | None) -> None:
        """Some result may not be finite."""
        results = list(tensors_in(args[0] if plan.in_place and args else result))
        place: Place | None = None
        bad: list[tuple[int, Tensor, Tensor]] = []
        for at, tensor in enumerate(results):
            if tensor.grad_fn is not None and not plan.in_place:
                place = place or self._place()
                note_call(tensor.grad_fn, plan.name, place)
            here = looked_at(tensor)
            if here is not None and not is_finite(here):
                bad.append((at, tensor, here))
        if bad:
            place = place or self._place()
            if _is_left(plan, args):
                before = left_by(func, args, kwargs)
            now = args if before is None else tuple(before if each is args[0] else each for each in args)
            call = Call(func, plan.name, place, now, kwargs)
            self._not_finite(call, plan, args, bad, before)

    def _not_finite(
        self, call: Call, plan: Plan, args: Any, bad: list[tuple[int, Tensor, Tensor]], before: Tensor | None
    ) -> None:
        buffers = buffers_of(call.func, call.args, call.kwargs)
        skipped = set(map(id, (*buffers, *tensors_in(call.kwargs.get("out")))))
        overwrites = plan.in_place and before is None and bool(args)
        if overwrites:
            skipped.update(map(id, tensors_in(args[0])))
        traces: list[Trace] = []
        inputs: list[Tensor] = []
        enters: list[Found] = []
        for tensor in tensors_in((call.args, call.kwargs)):
            here = looked_at(tensor)
            if here is None or id(tensor) in skipped or bool(torch.isfinite(here).all()):
                continue
            original = args[0] if tensor is before and not is_sparse(tensor) else tensor
            trace = self.traces.of(original)
            if trace is None:
                trace = Trace({self._came_in(original, here, call): ()})
                self.traces.keep(original, trace)
            inputs.append(here)
            traces.append(trace)
            if tensor.grad_fn is None and tensor is not before:
                enters += trace.found
        if overwrites:
            if not inputs and not self._suspects_in(call):
                self._was_there(call, bad)
            traces += [trace for trace in map(self.traces.of, tensors_in(args[0])) if trace is not None]
        for at, tensor, here in bad:
            trace = self._of_result(call, plan, at, tensor, here, inputs, traces, enters)
            if trace is not None:
                self.traces.keep(tensor, trace)
                self.loose[memory(tensor)._cdata] = trace
                if len(self.loose) > 1000:
                    self.loose.pop(next(iter(self.loose)))
        for tensor in buffers:
            here = looked_at(tensor)
            if here is not None and self.traces.of(tensor) is None and not is_finite(here):
                known = joined(traces) if traces else trace or Trace({})
                # What the loss of this pass ignores may be used by that of another, which the statistics reach.
                self.traces.keep(tensor, Trace({replace(found): way for found, way in known.ways.items()}))

    def _was_there(self, call: Call, bad: list[tuple[int, Tensor, Tensor]]) -> None:
        """Find what was not finite before a function in place first overwrote it."""
        for at, tensor, here in bad:
            if self.traces.of(tensor) is None:
                came = was_there(call, here, ~torch.isfinite(here), at)
                if bool(came.any()):
                    found = self._known(come_in(tensor, torch.where(came, here, 0), call))
                    self.traces.keep(tensor, Trace({found: ()}))

    def _of_result(
        self,
        call: Call,
        plan: Plan,
        at: int,
        tensor: Tensor,
        here: Tensor,
        inputs: list[Tensor],
        traces: list[Trace],
        enters: list[Found],
    ) -> Trace | None:
        """What a result that is not finite has it from."""
        entries = ~torch.isfinite(here)
        carried: list[tuple[Found, Tensor]] = []
        mine: list[Found] = []
        if not traces and plan.name in _MAKES_DATA:
            return None
        made_of: tuple[Found, ...] = ()
        change: Change = finite_ones
        if plan.in_place and traces and not inputs:
            births = torch.zeros_like(entries)
        else:
            births = apart(call, here, entries, inputs, at)
            known = set(joined(traces).found)
            masks = {found for found in known if found.nature == "meant" or found.infinite == -math.inf}
            if masks:
                change = functools.partial(finite_ones, keep={found.infinite for found in masks})
                is_meant = all(_is_meant(found, call.name) for found in masks)
                made, harms = of_masks(call, here, entries & ~births, inputs, at, change)
                if is_meant:
                    births = births | made
                    made_of = tuple(found for found in masks if found.nature == "meant" and bool(made.any()))
                elif bool(made.any()):
                    for found in masks:
                        found.infinite = 0.0  # it leaves nothing out: it has become NaN
                if (is_meant and bool(made.any())) or (masks != known and not harms):
                    traces = [without(trace, masks) for trace in traces]
                    enters = [found for found in enters if found not in masks]
        if bool(births.any()) and self.suspects and (suspects := self._suspects_in(call)):
            births, traces = torch.zeros_like(births), [*traces, *suspects]
        if bool(births.any()):
            found = self._known(self._newborn(call, tensor, births, at, change))
            found.made_of = made_of
            mine.append(found)
            carried.append((found, births))
        rest = entries & ~births
        if mine and traces and call.name not in MEANT:
            rest |= came_too(call, births, at)
        if bool(rest.any()) or not mine:
            # What was made elsewhere is known at its own node, and beside something that is made here at this one too.
            carried += [(found, rest) for found in dict.fromkeys([*enters, *(joined(traces).found if mine else ())])]
        else:
            traces = []
        if tensor.grad_fn is not None and carried:
            self._carry(tensor, carried)
            base = tensor._base
            if plan.in_place and base is not None and base.grad_fn is not None:  # its node is a new one too
                note_call(base.grad_fn, call.name, call.place)
                self._carry(base, [(found, ~torch.isfinite(base)) for found, _ in carried])
        if tensor.grad_fn is not None and traces:
            metadata(tensor.grad_fn).setdefault(PASSES, joined(traces).found)
        return joined(traces, call.name, mine)

    def _came_in(self, tensor: Tensor, here: Tensor, call: Call) -> Found:
        """A tensor that nobody here has made."""
        node = tensor.grad_fn
        if node is not None and "Compiled" in node.name() and self.compiled_at is not None:
            compiled = call._replace(name="torch.compile", place=self.compiled_at)
            found = describe("made", compiled, tensor, ~torch.isfinite(here), "inside of a compiled region")
            note_call(node, "torch.compile", self.compiled_at)
            found = self._known(found)
            metadata(node).setdefault(PASSES, (found,))
            return found
        return self._known(come_in(tensor, here, call))

    def given(self, tensor: Tensor, here: Tensor, call: Call) -> Found:
        """A vector to multiply the derivatives by."""
        trace = self.traces.of(tensor)
        return trace.found[0] if trace is not None and trace.found else come_in(tensor, here, call)

    def _known(self, found: Found) -> Found:
        """In backward, code runs again where it is a checkpoint's, and what it gives is known already."""
        place = found.place
        key = found.operator, place.code, place.instruction, place.module
        if self.running is not None:
            if is_recomputed():
                return self._called_at.get(key, found)
            found.phase = "backward"
        self._called_at[key] = found
        for function in self.functions:
            function.append(found)
        return found

    def _suspects_in(self, call: Call) -> list[Trace]:
        return [trace for trace in map(self.suspects.of, tensors_in((call.args, call.kwargs))) if trace is not None]

    def _newborn(self, call: Call, result: Tensor, births: Tensor, at: int, change: Change) -> Found:
        written = infinite_number((call.args, call.kwargs))
        here = looked_at(result)
        if written is not None and written != written:
            return describe("given", call, result, births, str(written))
        if written is not None and not (here is not None and bool((here.isnan() & births).any())):
            return describe("meant", call, result, births, str(written), infinite=written)
        return born_at(call, result, births, at, change)

    # The backward pass.

    def begin(self) -> None:
        self.patches.put_on()
        self.forward.__enter__()

    def end(self) -> None:
        self.patches.take_off()
        self.forward.leave()
        self.thread = _NO_THREAD
        DEEP_GRAPHS.sweep()

    @contextmanager
    def aside(self) -> Iterator[Callable[[Any], None]]:
        """While entered, passes run unwatched; a function can be told of the roots of each."""
        before = self._aside, self._undoing
        told: list[Any] = []
        retaining = [tensor for tensor in (known() for known in self.retaining.values()) if tensor is not None]
        undoing = Undoing(retaining)
        self._aside, self._undoing = told, undoing
        try:
            yield told.append
        finally:
            self._aside, self._undoing = before
            undoing.undo()

    def engine(self, run: Callable[..., Any], roots: Any, *args: Any, **kwargs: Any) -> Any:
        """Run PyTorch's engine, watched."""
        if threading.get_ident() != self.thread or self._stepped_aside:
            return run(roots, *args, **kwargs)
        if any(map(is_transformed, tensors_in(roots))):
            self.report.note(NOT_IN_TRANSFORMS)
            return run(roots, *args, **kwargs)
        if self._aside is not None:
            for tell in self._aside:
                tell(roots)
            assert self._undoing is not None
            with torch._C._EnableTorchFunction(), self._undoing.on():
                return run(roots, *args, **kwargs)
        self.report.passes += 1
        watched = Watched(self, roots, args[0], args[3] or (), kwargs.get("accumulate_grad", True), self.running)
        try:
            with torch._C.DisableTorchFunction():
                watched.begin()
        except Exception as error:
            self.failed("backward", error)
        self.running = watched
        try:
            with self.forward if not self.forward.is_on() else nullcontext():  # hooks and checkpoints call functions
                results = run(roots, *args, **kwargs)
        finally:
            self.running = watched.outer
            watched.let_go()
        try:
            with torch._C.DisableTorchFunction():
                watched.ended(results)
        except Exception as error:
            self.failed("backward", error)
        if self.raises and not self.report.ok and watched.outer is None:
            raise NotFiniteError(self.report)
        return results

    # What is told.

    def has_reached(self, watched: Watched, frame: Any) -> None:
        """A pass has found what reached the loss or a gradient."""
        names = Names(frame)
        by_found: dict[Found, list[Reached]] = {}
        for reached in watched.reached:
            for found in reached.trace.found:
                by_found.setdefault(found, []).append(reached)
        for found, targets in sorted(by_found.items(), key=lambda pair: pair[0].number):
            kind, mended = self._kinds.get(found) or watched.kind(found, targets)
            if watched.loss_trace is not None and found.phase == "backward" and kind == "overflow":
                continue  # the gradient of a loss that was too large is too large
            self._kinds[found] = kind, mended
            path = max((reached.trace.ways[found] for reached in targets), key=len)
            labels = [] if self._is_well_known(found, kind) else [names.of_target(target.target) for target in targets]
            self._tell(found, kind, mended, list(dict.fromkeys(labels)), list(path), names)

    def _is_well_known(self, found: Found, kind: Any) -> bool:
        """Whether it has been told of so often that its targets need no names any more."""
        key = _key(found, kind)
        if key not in self._told:
            return False
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._seen[key] > _MOST_LOOKS

    def _tell(
        self, found: Found, kind: Any, mended: bool | None, labels: list[str], path: list[str], names: Names
    ) -> None:
        place = found.place
        key = _key(found, kind)
        known = self._told.get(key)
        if known is not None:
            known.reached += [label for label in labels if label not in known.reached]
            if self._last.get(key) != found.number:  # statistics of a norm have a copy of it
                known.times += 1
            self._last[key] = found.number
            return
        operands = found.operands
        came_in = found.tensor() if found.tensor is not None else None
        if came_in is not None and (name := names.of_tensor(came_in)):
            operands = f"{operands} in {name}"
        if found.in_backward and kind == "contaminated":
            operands = f"{operands}; in backward {found.in_backward}" if operands else found.in_backward
        origin = Origin(
            phase=found.phase,
            operator=found.operator,
            filename=place.filename,
            line=place.line,
            source=place.source,
            module=names.of_module(place.module, self.around),
            entries=found.where,
            count=found.count,
            shape=found.shape,
            dtype=str(found.dtype).removeprefix("torch."),
            device=str(found.device),
            operands=operands,
            kind=kind,
            reached=labels,
            path=path,
            mended=mended,
            rank=_rank(),
            is_sure=found.is_sure,
        )
        origin.remedy, origin.chapter = remedy(
            kind, "zero_grad" if found.held else found.operator, origin.dtype, mended
        )
        self._told[key] = origin
        self._last[key] = found.number
        self.report.origins.append(origin)

    def not_made_here(self) -> None:
        """A gradient is not finite, and no operator in this process made it so."""
        rank = _rank()
        if rank is not None:
            self.report.note(f"a gradient is not finite, and nothing of rank {rank} made it so: see the other ranks")

    def close(self) -> None:
        """The block has ended."""
        try:
            self._without_a_pass()
        except Exception as error:
            self.failed("the end", error)
        for name, mistake in self.mistakes[:1]:
            warnings.warn(
                f"explain failed at {name} ({type(mistake).__name__}: {mistake}). This is a bug in zero_or_nan; "
                f"please report it at {REPORT}. The report may be incomplete",
                stacklevel=3,
            )
        if self.compiled_at is not None:
            self.report.note("explain watched a compiled region from outside: it can't see the functions in it")
        # A module that was first imported in the block may keep our replacements, as Dynamo does, and they keep this.
        self.traces = self.suspects = Traces()
        for known in (self.around, self.loose):
            known.clear()

    def _without_a_pass(self) -> None:
        """What no function has taken in is a result, where there was no loss."""
        if not self.report.passes and self.loose:
            names = Names(users_frame())
            seen: dict[Found, list[str]] = {}
            for trace in self.loose.values():
                for found, way in trace.ways.items():
                    if found.nature != "meant":
                        seen.setdefault(found, list(way))
            for found, path in seen.items():
                self._tell(found, found.kind_where_used, None, ["a result"], path, names)


def _is_left(plan: Plan, args: Any) -> bool:
    """Whether what a function in place has overwritten can be told from what is there afterwards."""
    return (
        plan.in_place
        and plan.name in LEAVES
        and bool(args)
        and type(args[0]) in (Tensor, Parameter)
        and not is_sparse(args[0])
    )


def _is_meant(found: Found, function: str) -> bool:
    return found.nature == "meant" or (found.infinite == -math.inf and function in MEANT)


def _key(found: Found, kind: Any) -> tuple[Any, ...]:
    """What happens on one line, by one function, is told of once."""
    return found.phase, found.operator, found.place.filename, found.place.line, kind


def _rank() -> int | None:
    """Which of several processes this is."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None
