"""One watch over a block of code: it owns the parts, and hands on what one part finds to the next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import nn

from ..functions.graph import DEEP_GRAPHS
from ..masks.numbers import is_wrapped
from .backward import Backward, Request
from .course import Course, largest, loss_among
from .diagnosis import Verdict, diagnose, diagnose_results
from .findings import Findings, Mistakes, Scope
from .forward import Forward
from .names import Names
from .narration import Narration
from .patches import Patches
from .places import Places, users_frame
from .regions import FIXED_UNCOMPILED, NOT_INSIDE, Regions
from .report import NotFiniteError, Report
from .sandbox import Sandbox, is_extra
from .shadow import leaves_of
from .tensors import tensors_in
from .unseen import is_compiling, unseen

NOT_IN_TRANSFORMS = "a function transform (torch.func) was not looked into"
NOT_IN_BATCHES = "a backward pass for a batch of vectors (is_grads_batched, vectorize) was not looked into"
NO_PASS = (
    "compiled code ran, and no backward pass outside of it: explain sees neither a pass inside of compiled code, nor "
    'its results that no function uses. With torch.compiler.set_stance("force_eager"), explain sees all'
)


class Watch:
    """A watch over a block of code, from `begin` to `end`.

    Args:
        report: gets what is found.
        raises: whether a backward pass that finds something raises `NotFiniteError`.
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
        self.patches = Patches(self.engine, self.scope, self.forward, self.regions, self.sandbox, self.mistakes)
        self.narration = Narration(report, self.places.around)
        self.course = Course("backward pass", "backward passes")
        self.running: Backward | None = None

    def __enter__(self) -> Report:
        self.patches.put_on()
        self.forward.__enter__()
        return self.report

    def __exit__(self, *details: object) -> None:
        self.end()

    def engine(self, run: Callable[..., Any], roots: Any, *args: Any, **kwargs: Any) -> Any:
        """Run PyTorch's engine, watched."""
        if not self.scope.is_here():
            return run(roots, *args, **kwargs)
        if self.forward.is_aside:
            if is_compiling():
                return run(roots, *args, **kwargs)
            with self.patches.in_between():
                return self.engine(run, roots, *args, **kwargs)
        for things, note in ((roots, NOT_IN_TRANSFORMS), (args[0], NOT_IN_BATCHES)):
            if any(map(is_wrapped, tensors_in(things))):
                self.report.note(note)
                return run(roots, *args, **kwargs)
        if self.sandbox.is_entered:
            return self.sandbox.run(run, roots, *args, **kwargs)
        if is_extra():  # of a watch inside of this one, or around it
            with nullcontext() if self.running is None else self.running.aside():
                return run(roots, *args, **kwargs)
        self.report.passes += 1
        outer = self.running
        request = Request(roots, args[0], args[3] or (), kwargs.get("accumulate_grad", True))
        backward = Backward(request, self.findings, self.regions, self.sandbox, self.mistakes, outer)
        with self.mistakes.noted("backward"), unseen():
            backward.begin()
        self._run_within(backward)
        try:
            with self.forward if not self.forward.is_on() else nullcontext():  # hooks and checkpoints call functions
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
        if backward.events.reached and backward.outer is None:
            names = Names(users_frame(), self._called())
            found = backward.with_hidden(diagnose(backward.events, backward.shadow, self.narration.verdicts))
            for at, (birth, verdict, *_) in enumerate(found):
                if verdict.kind in ("contaminated", "undefined"):
                    found[at] = found[at]._replace(tie=backward.tie_of(birth, verdict.kind == "undefined"))
                inside = backward.events.inside.get(birth)
                if verdict == Verdict("contaminated", False) and inside is not None and inside.fixed:
                    self.report.note(FIXED_UNCOMPILED)
            self.narration.add(found, names)
        if was_ok and backward.outer is None and backward.request.accumulates:
            self._follow(backward)

    def _called(self) -> list[nn.Module]:
        """The outermost modules that were called in the block."""
        return list(dict.fromkeys(modules[0] for modules in self.places.around.values()))

    def _follow(self, backward: Backward) -> None:
        """Keep the numbers of a pass that was finite. Of the first other one, say what the passes before it show."""
        leaves = [leaf for _, leaf in leaves_of(backward.graph)]
        loss = loss_among(backward.request.roots)
        value = None if loss is None else float(loss)
        if not self.report.ok:
            self.report.cause = self.course.cause(value, largest(leaves), self.report.begins_with_overflow)
        elif value is not None and value - value == 0:
            self.course.begin(leaves)
            self.course.add(value, lambda: largest(leaves))

    def end(self) -> None:
        """End the watch, whatever ended the block, and complete the report."""
        self.patches.take_off()
        self.forward.leave()
        self.scope.is_over = True
        DEEP_GRAPHS.sweep()
        with self.mistakes.noted("the end"):
            if not self.report.passes and self.findings.unconsumed:
                results = diagnose_results(self.findings.unconsumed.values())
                self.narration.add(results, Names(users_frame(), self._called()))
        if self.regions.is_blind and not self.report.ok:
            self.report.note(NOT_INSIDE)
        if not self.report.passes and self.findings.compiled_at is not None:
            self.report.note(NO_PASS)
        self.mistakes.warn(stacklevel=3)
        # A module that was first imported in the block may keep our replacements, as Dynamo does, and they keep these.
        self.findings.clear()
        self.places.around.clear()
