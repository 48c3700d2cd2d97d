"""The forward pass, watched: each public function of PyTorch that the user's code calls is checked as it returns.

One sum says whether a result is finite. If it is not, `attribution` finds out where its elements come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from ...ignoring.inside import is_captured, is_sparse, is_wrapped, not_compiled, set_recording
from ..births.attribution import Attribution, Result
from ..births.call import Call, casts_on, come_in, describe, recovered
from ..births.findings import Findings, Mistakes, Scope, note_call
from ..births.provenance import Birth, Provenance, joined
from ..program.code import Place, Places, Plan, is_recoverable, plan_of
from ..program.tensors import (
    bad_in,
    bad_numbers_of,
    is_finite,
    is_shared,
    node_of,
    not_finite,
    numbers_of,
    tensors_in,
    unseen,
)
from .regions import Regions
from .shadow import Sandbox, function_modes, functions_seen


class Forward(TorchFunctionMode):
    """While entered, watches what is called in this thread.

    Attributes:
        is_aside: whether a compiled region runs, which nobody watches from inside.
    """

    def __init__(
        self,
        scope: Scope,
        findings: Findings,
        places: Places,
        regions: Regions,
        sandbox: Sandbox,
        mistakes: Mistakes,
    ) -> None:
        super().__init__()
        self.scope, self.findings, self.places, self.mistakes = scope, findings, places, mistakes
        self.sandbox = sandbox
        self.attribution = Attribution(findings, regions.made)
        regions.watched = self.alone
        self.is_aside = False

    def is_on(self) -> bool:
        """Whether this mode sees the next call."""
        return self in function_modes()

    def leave(self) -> None:
        """Leave from any position in the stack: blocks in generators end in any order, and in any thread.

        After Ctrl-C this mode may be there twice: PyTorch puts it back after each call.
        """
        above = []
        while self.is_on():
            mode = _pop_mode()
            if mode is not self:
                above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While entered, this mode is not there, if it is on top of the stack."""
        is_top = self.is_on() and function_modes()[-1] is self
        if is_top:
            _pop_mode()
        try:
            yield
        finally:
            if is_top:
                _push_mode(self)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While entered, this is the only mode: what runs a second time must not be seen by those of the user."""
        others = [_pop_mode() for _ in function_modes()]
        try:
            with functions_seen(), self:
                yield
        finally:
            for mode in reversed(others):
                _push_mode(mode)

    def begin_compiled(self) -> None:
        """Leave while the compiler works, or its code runs: the compiler must see the user's code alone."""
        if self.is_on() and function_modes()[-1] is self:
            self.findings.compiled_at = self.places.here()
            self.leave()
            self.is_aside = True

    def end_compiled(self) -> None:
        if self.is_aside:
            self.is_aside = False
            self.__enter__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plan = plan_of(func)
        if not plan.is_checked or self.scope.is_over or self.findings.in_compiled or is_captured():
            if func is Tensor.register_hook or func is Tensor.retain_grad:
                try:
                    args, kwargs = self.sandbox.prepared(func, args, kwargs)
                except Exception as error:
                    self.mistakes.note("a hook", error)
            return func(*args, **kwargs)
        before = None
        if plan.in_place:
            try:
                with unseen():
                    before = self.before(plan, args)
            except Exception as error:
                self.mistakes.note(plan.name, error)
        result = func(*args, **kwargs)
        try:
            with unseen():
                self.after(func, plan, args, kwargs, result, before)
        except Exception as error:  # our own mistake must not become the user's
            self.mistakes.note(plan.name, error)
        return result

    def before(self, plan: Plan, args: Any) -> Tensor | None:
        """A copy of what a function is about to overwrite, if it may be asked for and cannot be worked out later."""
        if not args or is_recoverable(plan, args) or not torch.is_grad_enabled() and plan.numerics.updates:
            return None
        target = numbers_of(args[0])
        if target is None or not torch.is_grad_enabled() and is_finite(target):
            return None
        if not is_sparse(args[0]):
            return target.detach().clone()
        copy: Tensor = args[0].detach().clone()
        provenance = self.findings.provenances.of(args[0])
        if provenance is not None:
            self.findings.provenances.keep(copy, provenance)  # the call may move the tensor's numbers in memory
        return copy

    def after(self, func: Any, plan: Plan, args: Any, kwargs: Any, result: Any, before: Tensor | None) -> None:
        """Check what a function returned. A single finite tensor, the usual case, takes the shortest way."""
        recording = torch.is_grad_enabled()
        try:
            if recording:  # within, because Ctrl-C may come between any two lines
                set_recording(False)
            if self.findings.unconsumed:
                self.findings.consume((args, kwargs))
            if plan.in_place:
                self._spread_secondhand(args)
            if type(result) is Tensor:
                place: Place | None = None
                node = node_of(result)
                if node is not None:
                    place = self.places.here()
                    note_call(node, plan.name, place)
                    if plan.in_place and result._base is not None and result._base.grad_fn is not None:
                        note_call(result._base.grad_fn, plan.name, place)  # the base of a view has a new node, too
                if self._is_worth_keeping(plan, result):
                    place = place or self.places.here()
                    casts = casts_on(result.device.type)
                    call = Call(func, plan.name, place, args, kwargs, casts, is_recorded=recording)
                    self.findings.history.note(call, result, node)
                here = numbers_of(result)
                bad = None if here is None else bad_in(here)
                if here is None or bad is None:
                    if plan.in_place and here is not None:
                        self._forget_overwritten(here)
                elif plan.in_place:
                    self._check(func, plan, args, kwargs, result, before)
                else:
                    self._attribute(func, plan, args, kwargs, [Result(0, result, here, bad)], before, place)
            elif result is not None or plan.in_place:
                self._check(func, plan, args, kwargs, result, before)
        finally:
            if recording:
                set_recording(True)

    def _is_worth_keeping(self, plan: Plan, result: Tensor) -> bool:
        """Whether a call may have to run again. In backward, a tensor that is kept would be copied by PyTorch."""
        computes = not plan.in_place and plan.numerics.makes == "numbers" and result.is_floating_point()
        return computes and not self.findings.births.in_backward and not is_wrapped(result)

    @not_compiled
    def applied(self, kind: type, args: Any, result: Any, inside: list[Birth]) -> None:
        """Check what the user's `autograd.Function` returned. Births inside of it count as its own."""
        if not self.scope.is_here() or not self.is_on() or is_captured():
            return
        with self.mistakes.noted(kind.__name__), unseen(), torch.no_grad():
            self.findings.consume(args)
            place = self.places.here()
            if not kind.__module__.startswith("torch."):
                for birth in inside:
                    birth.operator, birth.place = kind.__name__, place
            for tensor in tensors_in(result):
                node = node_of(tensor)
                if node is not None:
                    note_call(node, kind.__name__, place)
                    here = bad_numbers_of(tensor)
                    if here is not None:
                        self._applied(Call(kind, kind.__name__, place, args), tensor, here)

    def _applied(self, call: Call, tensor: Tensor, here: Tensor) -> None:
        """A result of an `autograd.Function` is not finite. One of `torch.distributed` makes no numbers."""
        bad = not_finite(here)
        provenance = self.findings.provenances.of(tensor)
        if provenance is None and call.func.__module__.startswith("torch.distributed."):
            known = self.findings.provenances.of_each(call.tensors())
            from_elsewhere = Provenance({come_in(tensor, here, call): ()})
            provenance = joined(known, call.name) if known else from_elsewhere
        elif provenance is None:
            provenance = Provenance({describe("made", call, tensor, bad, ""): (call.name,)})
        self.findings.keep_result(tensor, provenance)
        self.findings.carry(tensor, [(birth, bad) for birth in provenance.births])

    def _spread_secondhand(self, args: Any) -> None:
        """A tensor that is changed with the help of a secondhand one becomes secondhand too: a parameter, mostly."""
        secondhand = self.findings.secondhand
        provenances = secondhand.of_each(tensors_in(args)) if secondhand else []
        if provenances:
            for tensor in tensors_in(args[0]):
                secondhand.keep(tensor, provenances[0])

    def _forget_overwritten(self, here: Tensor) -> None:
        """A tensor that was overwritten as a whole, and is finite now, has no provenance any more."""
        known = self.findings.provenances or self.findings.uninitialized
        if known and here.untyped_storage().nbytes() == here.nbytes:
            self.findings.provenances.forget(here)
            self.findings.uninitialized.forget(here)

    def _check(self, func: Any, plan: Plan, args: Any, kwargs: Any, result: Any, before: Tensor | None) -> None:
        """Check the results of a function one by one."""
        place: Place | None = None
        results: list[Result] = []
        for at, tensor in enumerate(tensors_in(args[0] if plan.in_place and args else result)):
            node = node_of(tensor)
            if node is not None and not plan.in_place:
                place = place or self.places.here()
                note_call(node, plan.name, place)
            here = numbers_of(tensor)
            bad = None if here is None else bad_in(here)
            if here is not None and bad is not None:
                results.append(Result(at, tensor, here, bad))
        if results:
            self._attribute(func, plan, args, kwargs, results, before, place)

    def _attribute(
        self,
        func: Any,
        plan: Plan,
        args: Any,
        kwargs: Any,
        bad: list[Result],
        before: Tensor | None,
        place: Place | None,
    ) -> None:
        """Find out where the results that are not finite come from."""
        place = place or self.places.here()
        if is_recoverable(plan, args):
            before = recovered(func, args, kwargs)
        earlier = args if before is None else tuple(before if each is args[0] else each for each in args)
        call = Call(func, plan.name, place, earlier, kwargs)
        if any(map(is_shared, call.tensors())):
            call = call.on_this_process({result.at: result.here for result in bad})
        self.attribution.attribute(call, args, bad, before)
