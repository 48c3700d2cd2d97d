"""A watch over a block of code. It owns the parts, and passes the findings of each part to the next.

While it lasts, it replaces some functions of PyTorch. At its end, even after an error, it restores them.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, _HookMixin
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import checkpoint

from ...functions.numerics import numerics_of
from ...ignoring.inside import (
    TELLS_OF_HOOKS,
    compiled_autograd_aside,
    free_deep_graphs,
    is_captured,
    is_wrapped,
    lead_home,
    leaves_of,
    never_traced,
    not_compiled,
    set_compiler,
)
from ...replacing import is_replaced, put_back, replace, replace_engine
from ..births.diagnosis import WRITTEN, Diagnosis, Verdict, diagnose_results
from ..births.findings import HOOKS, Findings, Mistakes, Scope
from ..births.provenance import Birth
from ..program.code import Places, users_frame
from ..program.rerun import is_extra
from ..program.tensors import address, is_compiling, tensors_in, unseen
from ..report.course import Course, largest, loss_among
from ..report.narration import NOT_IN_TRANSFORMS, Names, Narration
from ..report.report import NotFiniteError, Report
from .backward import Backward, Request
from .forward import Forward
from .regions import FIXED_UNCOMPILED, NOT_INSIDE, Regions
from .shadow import Sandbox, function_modes
from .transforms import Transforms

NOT_IN_BATCHES = "a backward pass for a batch of vectors (is_grads_batched, vectorize) was not looked into"
NOT_CAPTURED = (
    "a backward pass was captured in a CUDA graph, and not looked into: nothing is computed before the graph is "
    "replayed. Run the step once without the graph"
)
NO_PASS = (
    "compiled code ran, and no backward pass outside of it: explain sees neither a pass inside of compiled code, nor "
    'its results that no function uses. With torch.compiler.set_stance("force_eager"), explain sees all'
)


class Watch:
    """A watch over a block of code, which writes its findings into the report.

    If `raises` is True, a backward pass that finds a NaN or infinity raises `NotFiniteError`.
    """

    def __init__(self, report: Report, raises: bool = False) -> None:
        self.report = report
        self.raises = raises
        self.scope = Scope()
        self.mistakes = Mistakes()
        self.findings = Findings()
        self.places = Places()
        self.sandbox = Sandbox(self.scope)
        self.regions = Regions(self.findings, self.places, report.note)
        self.forward = Forward(self.scope, self.findings, self.places, self.regions, self.sandbox, self.mistakes)
        self.transforms = Transforms(self.scope, self.forward, self.findings, self.places, self.mistakes)
        self.patches = Patches(self)
        self.narration = Narration(report, self.places, self.findings.history)
        self.course: Course | None = None
        self.running: Backward | None = None
        self._leaves: dict[int, weakref.ref[Tensor]] = {}

    def __enter__(self) -> Report:
        for mode in function_modes():
            if isinstance(mode, Forward) and mode.scope.is_over:
                mode.leave()  # of a generator that another thread has closed
        self.patches.put_on()
        self.forward.__enter__()
        return self.report

    def __exit__(self, *details: object) -> None:
        self.end()

    def engine(self, run: Callable[..., Any], roots: Any, *args: Any, **kwargs: Any) -> Any:
        """Run PyTorch's engine, and watch the pass."""
        if not self.scope.is_here():
            return run(roots, *args, **kwargs)
        if self.forward.is_aside:
            if is_compiling():
                return run(roots, *args, **kwargs)
            with self.patches.in_between():
                return self.engine(run, roots, *args, **kwargs)
        lead_home()
        if is_captured():
            self.report.note(NOT_CAPTURED)
            return run(roots, *args, **kwargs)
        for things, note in ((roots, NOT_IN_TRANSFORMS), (args[0], NOT_IN_BATCHES)):
            if any(map(is_wrapped, tensors_in(things))):
                if not self.forward.in_transform:
                    self.report.note(note)
                return run(roots, *args, **kwargs)
        if self.sandbox.is_entered:
            return self.sandbox.run(run, roots, *args, **kwargs)
        if is_extra():  # of a watch inside of this one, or around it
            with nullcontext() if self.running is None else self.running.aside():
                return run(roots, *args, **kwargs)
        self.report.passes += not self.transforms.is_again
        outer = self.running
        accumulates, place = kwargs.get("accumulate_grad", True), self.places.here()
        request = Request(roots, args[0], args[3] or (), accumulates, bool(args[1]), place, bool(args[2]))
        backward = Backward(request, self.findings, self.regions, self.sandbox, self.mistakes, outer)
        with self.mistakes.noted("backward"), unseen():
            backward.begin()
        with self.mistakes.noted("backward"), unseen(), torch.no_grad():
            self._note_leaves(backward)
        self._run_within(backward)
        try:
            # Hooks and checkpoints call functions, so these are watched. Compiled autograd would compile our hooks.
            with compiled_autograd_aside(), self.forward if not self.forward.is_on() else nullcontext():
                results = run(roots, *args, **kwargs)
        finally:
            self._run_within(outer)
            backward.let_go()
        with self.mistakes.noted("backward"), unseen():
            self._end_pass(backward, results)
        if self.raises and outer is None and (not self.report.ok or self.report.came_from_another_process):
            raise NotFiniteError(self.report)
        return results

    def _run_within(self, backward: Backward | None) -> None:
        self.running = backward
        self.findings.births.in_backward = backward is not None

    def _end_pass(self, backward: Backward, results: Any) -> None:
        """Report what a pass has found. The outermost pass speaks for those inside of it."""
        was_ok = self.report.ok
        if backward.end(results):
            self.narration.note_elsewhere()
        request = backward.request
        is_last = backward.outer is None and (request.accumulates or not request.keeps_graph)
        self.findings.history.loss = id(request.roots[0]) if is_last and len(request.roots) == 1 else None
        if backward.events.reached and backward.outer is None:
            found = backward.diagnosed(self.narration.verdicts)
            if self.transforms.is_again:  # whether the program uses what the transform gives is not known yet
                self.transforms.told.update((each.birth, each) for each in found)
                self.narration.verdicts.update((each.birth, each.verdict) for each in found)
                return
            found = [self.transforms.begun(each) for each in found]
            for birth, verdict, *_ in found:
                inside = backward.events.inside.get(birth)
                if verdict == Verdict("contaminated", False) and inside is not None and inside.verdict.fixed:
                    self.report.note(FIXED_UNCOMPILED)
            self.narration.add(found, self._names())
        if backward.outer is None and not backward.request.keeps_graph:
            self.findings.history.let_go()
        if was_ok and backward.outer is None and backward.request.accumulates:
            self._follow(backward)

    def _names(self) -> Names:
        """Names are looked up in the user's frame, and in the outermost modules that were called in the block."""
        return Names(users_frame(), dict.fromkeys(modules[0] for modules in self.places.around.values()))

    def _follow(self, backward: Backward) -> None:
        """Keep the numbers of a pass that was finite. Of the first other one, say what the passes before it show."""
        if self.course is None and not self.report.ok:
            return
        if self.course is None:
            self.course = Course("backward pass", "backward passes")
        leaves = [leaf for _, leaf in leaves_of(backward.graph)]
        loss = loss_among(backward.request.roots)
        value = None if loss is None else float(loss)
        if not self.report.ok:
            cause = self.course.cause(value, largest(leaves), self.report.begins_with_overflow)
            self.narration.name_cause(cause)
        elif value is not None and math.isfinite(value):
            self.course.begin(leaves)
            self.course.add(value, lambda: largest(leaves))

    def _note_leaves(self, backward: Backward) -> None:
        """Keep the leaves that a pass finds finite. What the others hold, the pass tells if it does harm."""
        for _, leaf in leaves_of(backward.graph):
            self._leaves[id(leaf)] = weakref.ref(leaf)
            if self.findings.provenances and self.findings.of_bad(leaf) is not None:
                del self._leaves[id(leaf)]
                self.findings.in_passes.add(address(leaf))

    def _written(self) -> list[Diagnosis]:
        """What a training step has made of leaves since their last pass: no pass after it tells of that."""
        reached: dict[Birth, tuple[list[Tensor | str], tuple[str, ...]]] = {}
        for leaf in [known() for known in self._leaves.values() if self.findings.provenances]:
            provenance = None if leaf is None else self.findings.of_bad(leaf.detach())
            if leaf is None or provenance is None:
                continue
            for birth, path in provenance.paths.items():
                is_made = birth.nature == "made" or birth.nature == "meant" and numerics_of(birth.operator).grows
                is_made_here = birth.optimizer or is_made and birth.phase == "forward"
                if is_made_here and birth not in self.narration.verdicts:
                    reached.setdefault(birth, ([] if birth.optimizer else [WRITTEN], path))[0].append(leaf)
        return [Diagnosis(birth, Verdict(birth.kind_if_used), *ends) for birth, ends in reached.items()]

    def end(self) -> None:
        """End the watch, even if an error ended the block, and complete the report."""
        put_back(self.patches)
        self.forward.leave()
        if self.scope.is_over:
            return  # it was interrupted, and ends once more
        self.scope.is_over = True
        free_deep_graphs()
        with self.mistakes.noted("the end"), unseen():
            told, written = self.transforms.told, self._written() if self.report.passes else []
            results = diagnose_results(self.findings.unconsumed.values())
            if self.report.passes:
                results = [each for each in results if each.birth in told]
            if self.report.passes and self.report.ok and not written and not results:  # it went round all passes
                left = diagnose_results(self.findings.left())
                results = [each for each in left if each.birth.nature == "made" and each.birth.phase == "forward"]
            unused = [self.transforms.begun(told.get(each.birth, each)) for each in results]
            if found := [*written, *unused]:
                self.narration.add(found, self._names())
        if self.regions.is_blind and not self.report.ok:
            self.report.note(NOT_INSIDE)
        if not self.report.passes and self.findings.compiled_at is not None:
            self.report.note(NO_PASS)
        self.mistakes.warn(stacklevel=3)
        # A module that was first imported in the block, as Dynamo, may keep our replacements, which keep these objects.
        self.findings.clear()
        self.transforms.told.clear()
        self.places.around.clear()


# The functions of PyTorch that a watch replaces while it lasts.

_EVAL_FRAME = "torch._dynamo.eval_frame"
_ENTRANCES = ("compile_wrapper", "_fn")
"""The names, in different releases, of Dynamo's functions that call compiled code."""


class Patches:
    """The replacements of one watch.

    - PyTorch's engine starts through the watch.
    - `autograd.Function.apply` reports its results, because PyTorch does not show them in any other way.
    - Hooks on nodes are registered through the sandbox, so that they do not run in an extra pass.
    - A checkpoint reports that it runs its code again, so that an extra pass does not use up its cache.
    - Modules still take their fast paths: they check for overrides of PyTorch's functions, and a watch is no override.
    - Hooks on saved tensors are counted, on releases of PyTorch that do not know a node's hooks.
    - A compiled region is not watched, because the compiler must see only the user's code, and not ours.
    - The node of a compiled region reports that it saves its tensors. The region's call is then written on the node.

    The replacements outlive the watch if a module that is first imported in the block keeps them.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._region: Any = None

    def put_on(self) -> None:
        replace_engine(self, self._engine)
        self._watch.transforms.put_on(self)
        replace(self, Function, "apply", self._apply)
        replace(self, _HookMixin, "_register_hook", self._register_hook)
        replace(self, FunctionCtx, "save_for_backward", self._save)
        replace(self, checkpoint._recomputation_hook, "__init__", self._recomputing)
        replace(self, torch.overrides, "has_torch_function", self._has_torch_function)
        if not TELLS_OF_HOOKS:
            replace(self, saved_tensors_hooks, "__enter__", _counted)
            replace(self, saved_tensors_hooks, "__exit__", _counted)
        replace(self, torch, "compile", self._compile)
        self._leave_compiled_alone()

    def _engine(self, run: Any) -> Any:
        return not_compiled(functools.partial(self._watch.engine, run))

    def _apply(self, apply: Any) -> Any:
        @never_traced
        def applied(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            run = apply.__get__(None, cls)
            if not self._watch.scope.is_here():
                return run(*args, **kwargs)
            births = self._watch.findings.births
            inside = births.collect()
            try:
                result = run(*args, **kwargs)
            finally:
                births.stop(inside)
            self._watch.forward.applied(cls, args, result, inside)
            return result

        return classmethod(applied)

    def _register_hook(self, register: Any) -> Any:
        @never_traced
        def registered(hooks: Any, hook: Callable[..., Any]) -> Any:
            try:
                hook = self._watch.sandbox.silenced(hook)
            except Exception as error:
                self._watch.mistakes.note("a hook", error)
            return register.__func__(hooks, hook)

        return staticmethod(registered)

    def _save(self, save: Any) -> Any:
        @never_traced
        def saved(context: Any, *tensors: Any) -> Any:
            if self._watch.scope.is_here():
                self._saves(context)
            return save(context, *tensors)

        return saved

    @not_compiled
    def _saves(self, context: Any) -> None:
        with self._watch.mistakes.noted("a compiled region"):
            self._watch.regions.saves(context)

    def _recomputing(self, init: Any) -> Any:
        @never_traced
        def began(hook: Any, frame: Any, *details: Any) -> None:
            self._watch.sandbox.begin_again(frame())
            init(hook, frame, *details)

        return began

    def _has_torch_function(self, has: Any) -> Any:
        def overrides(things: Any) -> bool:
            with self._watch.forward.aside():
                return has(things)

        return overrides

    def _compile(self, compile: Any) -> Any:
        def compiled(*args: Any, **kwargs: Any) -> Any:
            result = compile(*args, **kwargs)
            if not self._watch.scope.is_over:
                self._leave_compiled_alone()
            return result

        return compiled

    def _leave_compiled_alone(self) -> None:
        """Watch the functions by which Dynamo begins and ends compiled code."""
        module = sys.modules.get(_EVAL_FRAME)
        if module is None or is_replaced(self, module):
            return
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(module, name):
                replace(self, module, name, self._switch)

    def _switch(self, switch: Any) -> Any:
        """A function by which the compiler switches itself on and off. It is off while our own code runs."""

        @never_traced
        def switched(callback: Any) -> Any:
            before = set_compiler(None)
            if self._watch.scope.is_here():
                with self._watch.mistakes.noted("a compiled region"):
                    self._switches(callable(callback), sys._getframe(1))
            switch(callback)
            return before

        return switched

    def _switches(self, is_on: bool, caller: Any) -> None:
        """Note what a switch begins or ends. Only the outermost compiled region counts.

        Inside of it, the compiler is off while compiled code runs, or what must not be compiled.
        """
        while caller.f_code.co_filename == __file__:  # of a watch around this one
            caller = caller.f_back
        if self._region is None and is_on and caller.f_code.co_name in _ENTRANCES:
            self._region = caller
            self._watch.forward.begin_compiled()
        elif self._region is caller and not is_on:
            self._region = None
            self._watch.regions.leave()
            self._watch.forward.end_compiled()
        elif self._watch.forward.is_aside and caller.f_code.co_name == "_fn":
            (self._watch.regions.leave if is_on else self._watch.regions.enter)(caller)

    @contextmanager
    def in_between(self) -> Iterator[None]:
        """While entered, no region runs, because compiled code ends where it can't compile, as at a backward pass."""
        region, self._region, self._watch.forward.is_aside = self._region, None, False
        try:
            yield
        finally:
            self._region, self._watch.forward.is_aside = region, True


def _counted(enter_or_leave: Any) -> Any:
    def counted(hooks: Any, *details: Any) -> Any:
        HOOKS[:] = [each for each in HOOKS if each is not hooks] + ([] if details else [hooks])
        return enter_or_leave(hooks, *details)

    return counted
