"""Watches the forward pass: checks the result of each public function of PyTorch that the user's code calls.

One sum shows whether a result is finite. If it is not, its NaN and infinities come from the call itself, from the
operands, or from an infinity that has to leave out an element.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ignoring.inside import (
    any_of,
    is_captured,
    is_region,
    is_sparse,
    not_compiled,
    set_recording,
)
from ..births.call import (
    UNREADABLE,
    Call,
    Change,
    apart,
    came_too,
    come_from,
    come_in,
    describe,
    finite_ones,
    newborn,
    of_infinities,
    recovered,
    was_there,
)
from ..births.findings import COMPILED, Findings, Mistakes, Scope, note_call, note_passed
from ..births.provenance import LEAVES_OUT, NANS, OTHERS, Birth, Provenance, all_births, joined, without
from ..program.code import (
    Place,
    Places,
    Plan,
    buffers_of,
    is_loading,
    is_recoverable,
    overwritten_by,
    plan_of,
)
from ..program.rerun import RandomState
from ..program.tensors import (
    bad_in,
    bad_numbers_of,
    bad_of,
    is_finite,
    is_shared,
    node_of,
    not_finite,
    numbers_of,
    tensors_in,
    unreadable_layout,
    unseen,
)
from .regions import Regions
from .shadow import OnStack, Sandbox

TRANSFORM = "torch.func"
"""The name of a transform in a report."""


class Result(NamedTuple):
    """A result of a call that is not finite: its position, the tensor, its numbers, and where they are not finite."""

    at: int
    tensor: Tensor
    here: Tensor
    bad: Tensor


class Operands(NamedTuple):
    """The operands of a call that are not finite.

    Attributes:
        values: their numbers.
        came: where they are not finite.
        provenances: those of the operands, and of the tensor that an in-place function overwrites.
        entering: the provenances of operands without a node. Their births enter the graph at this call.
    """

    values: list[Tensor]
    came: list[Tensor]
    provenances: list[Provenance]
    entering: list[Provenance]

    def without(self, births: Sequence[Birth]) -> Operands:
        """The operands as if some births had not happened."""
        kept = ([without(each, births) for each in found] for found in (self.provenances, self.entering))
        return Operands(self.values, self.came, *kept)

    @property
    def kinds(self) -> int:
        """The kinds of all births, added up."""
        return functools.reduce(operator.or_, (each.kinds for each in self.provenances), 0)


class _Split(NamedTuple):
    """A result, split by where its elements come from.

    Attributes:
        born: the elements that the call made; None if it made none.
        operands: the operands that the other elements come from.
        made_of: the infinities that the code wrote down, and that the call turned into the elements.
        change: puts finite numbers in place of NaN and infinities that the elements were not made of.
    """

    born: Tensor | None
    operands: Operands
    made_of: tuple[Birth, ...] = ()
    change: Change = finite_ones


class Forward(OnStack):
    """While entered, watches the functions that this thread calls.

    Attributes:
        is_aside: whether a compiled region runs, which can't be watched from inside.
        in_transform: whether a transform of `torch.func` runs, whose tensors can't be read.
    """

    def __init__(
        self, scope: Scope, findings: Findings, places: Places, regions: Regions, sandbox: Sandbox, mistakes: Mistakes
    ) -> None:
        super().__init__()
        self.scope, self.findings, self.places, self.mistakes = scope, findings, places, mistakes
        self.sandbox, self.made_in_region = sandbox, regions.made
        regions.watched = self.alone
        self.is_aside = self.in_transform = False

    def begin_compiled(self) -> None:
        """Leave while the compiler works or its code runs, because the compiler must see only the user's code."""
        if self.is_on_top():
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
        is_hidden = self.findings.in_compiled or self.in_transform or is_captured()
        if not plan.is_checked or self.scope.is_over or is_hidden:
            if func is Tensor.register_hook or func is Tensor.retain_grad:
                try:
                    args, kwargs = self.sandbox.prepared(func, args, kwargs)
                except Exception as error:
                    self.mistakes.note("a hook", error)
            result = func(*args, **kwargs)
            if plan.numerics.makes == "no graph" and not (self.scope.is_over or is_hidden):
                with self.mistakes.noted(plan.name), unseen():
                    recording = torch.is_grad_enabled()
                    call = Call(func, plan.name, self.places.here(), args, kwargs, is_recorded=recording)
                    self._note_results(call, result)
            return result
        before = None
        if plan.in_place:
            try:
                with unseen():
                    before = self.before(plan, args)
            except Exception as error:
                self.mistakes.note(plan.name, error)
        drawn = RandomState.now() if plan.numerics.draws == "places" else None
        result = func(*args, **kwargs)
        try:
            with unseen():
                self.after(func, plan, args, kwargs, result, before, drawn)
        except Exception as error:  # our own mistake must not become the user's
            self.mistakes.note(plan.name, error)
        return result

    def before(self, plan: Plan, args: Any) -> Tensor | None:
        """A copy of the tensor that a function will overwrite, if it may be needed and can't be recovered later."""
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

    def after(
        self,
        func: Any,
        plan: Plan,
        args: Any,
        kwargs: Any,
        result: Any,
        before: Tensor | None,
        drawn: RandomState | None,
    ) -> None:
        """Check the result of a function."""
        recording = torch.is_grad_enabled()
        try:
            if recording:  # within, because Ctrl-C may come between any two lines
                set_recording(False)
            if self.findings.unconsumed:
                self.findings.consume((args, kwargs))
            if plan.in_place:
                self._spread_secondhand(args)
            if result is not None or plan.in_place:
                call = Call(func, plan.name, self.places.here(), args, kwargs, is_recorded=recording, drawn=drawn)
                self._check(call, result, before)
        finally:
            if recording:
                set_recording(True)

    def _note_results(self, call: Call, result: Any) -> None:
        if not (self.findings.births.in_backward and call.is_recorded):  # a checkpoint runs it again
            self.findings.history.note_results(call, result)

    def _check(self, call: Call, result: Any, before: Tensor | None) -> None:
        """Check the results of a function one by one."""
        in_place, is_one = call.plan.in_place, type(result) is Tensor
        if not in_place:
            self._note_results(call, result)
        elif call.plan.numerics.replaces and call.is_recorded and not self.findings.births.in_backward:
            self.findings.history.note_write(call)
        found: list[Result] = []
        for at, tensor in enumerate(tensors_in(call.args[0] if in_place and call.args else result)):
            node = node_of(tensor)
            if node is not None and (is_one or not in_place):
                note_call(node, call.name, call.place)
                if in_place and tensor._base is not None and tensor._base.grad_fn is not None:
                    note_call(tensor._base.grad_fn, call.name, call.place)  # the base of a view has a new node, too
            here = numbers_of(tensor)
            bad = None if here is None else bad_in(here)
            if here is not None and bad is not None:
                found.append(Result(at, tensor, here, bad))
            elif here is not None and in_place and is_one:
                self._forget_overwritten(here)
        if found:
            self._attribute(call, found, before)

    @not_compiled
    def applied(self, kind: type, args: Any, result: Any, inside: list[Birth]) -> None:
        """Check the result of the user's `autograd.Function`. Births inside the function count as its own."""
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
                        bad = not_finite(here)
                        provenance = self._applied(Call(kind, kind.__name__, place, args), Result(0, tensor, here, bad))
                        self.findings.keep_result(tensor, provenance)
                        self.findings.carry(tensor, [(birth, bad) for birth in provenance.births])

    def _applied(self, call: Call, result: Result) -> Provenance:
        """Where a result of an `autograd.Function` comes from. One of `torch.distributed` makes no numbers."""
        provenances = self.findings.provenances
        if (known := provenances.of(result.tensor)) is not None:
            return known
        if not call.func.__module__.startswith("torch.distributed."):
            return Provenance({describe("made", call, result.tensor, result.bad, ""): (call.name,)})
        operands = provenances.of_each(call.tensors())
        from_elsewhere = Provenance({come_in(result.tensor, result.here, call): ()})
        return joined(operands, call.name) if operands else from_elsewhere

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

    def _attribute(self, call: Call, bad: list[Result], before: Tensor | None) -> None:
        """Find out where the results that are not finite come from. `before` is a copy of what the call overwrote."""
        args = call.args  # as they are now
        if is_recoverable(call.plan, args):
            before = recovered(call.func, args, call.kwargs)
        if before is not None:
            call = call._replace(args=tuple(before if each is args[0] else each for each in args))
        if any(map(is_shared, call.tensors())):
            call = call.on_this_process({result.at: result.here for result in bad})
        in_place = call.plan.in_place
        if in_place and call.name == "copy" and is_loading():
            self.findings.provenances.forget(args[0])  # it came in with the parameter or buffer, at its first use
            self.findings.uninitialized.forget(args[0])
            return
        if in_place and all(self._is_left_over(call, result) for result in bad):
            return  # the same: it is read at its first use
        buffers = buffers_of(call.func, call.args, call.kwargs)
        operands = self._operands(call, args, bad, before, buffers)
        provenance: Provenance | None = None
        for result in bad:
            provenance = self._of_result(call, result, operands)
            if provenance is not None:
                self.findings.keep_result(result.tensor, provenance)
        if buffers:
            self._keep_buffers(buffers, joined(operands.provenances) if operands.provenances else provenance)

    def came_in(self, tensor: Tensor, here: Tensor, call: Call) -> Birth:
        """The birth of a NaN or infinity in a tensor that no function in the block has made."""
        known, node = self.findings.births.known, node_of(tensor)
        place = self.findings.place_of_region(node)
        if not is_region(node) or place is None:
            birth = come_in(tensor, here, call)
            if (uninitialized := self.findings.uninitialized.of(tensor)) is not None:
                empty = uninitialized.first
                birth.uninitialized = f"{empty.operator} in line {empty.place.line}"
            return known(birth)
        compiled = call._replace(name=COMPILED, place=place)
        birth = known(describe("made", compiled, tensor, not_finite(here), "inside of a compiled region"))
        note_call(node, COMPILED, place)
        note_passed(node, [Provenance({birth: ()})])
        return birth

    def out_of_transform(self, tensors: Sequence[Tensor], place: Place) -> None:
        """Keep results of a transform of `torch.func` that are not finite, and about which nothing else is known."""
        for tensor in tensors:
            birth = self._out_of(TRANSFORM, tensor, tensor.detach(), Call(None, TRANSFORM, place))
            self.findings.keep_result(tensor, Provenance({birth: ()}))

    def _out_of(self, source: str, tensor: Tensor, here: Tensor, call: Call) -> Birth:
        """The birth of what a call took out of a source whose numbers cannot be read."""
        return self.findings.births.known(come_from(f"out of {source}{UNREADABLE}", tensor, here, call))

    def _operands(
        self, call: Call, args: Any, bad: list[Result], before: Tensor | None, buffers: Sequence[Tensor]
    ) -> Operands:
        provenances = self.findings.provenances
        overwrites = call.plan.in_place and before is None and bool(args)
        overwritten = overwritten_by(call.plan, args) if overwrites else []
        skipped = set(map(id, (*buffers, *tensors_in(call.kwargs.get("out")), *overwritten)))
        found = Operands([], [], [], [])
        for tensor in call.tensors():
            here = numbers_of(tensor)
            bad_here = None if here is None or id(tensor) in skipped else bad_in(here)
            if here is None or bad_here is None:
                continue
            original = args[0] if tensor is before and not is_sparse(tensor) else tensor
            provenance = provenances.of(original)
            if provenance is None:
                provenance = self.made_in_region(original) or Provenance({self.came_in(original, here, call): ()})
                provenances.keep(original, provenance)
            found.values.append(here)
            found.came.append(bad_here)
            found.provenances.append(provenance)
            if node_of(tensor) is None and tensor is not before:
                found.entering.append(provenance)
        if overwrites:
            if not found.values and not self._secondhand(call):
                self._was_there(call, bad)
            found.provenances.extend(provenances.of_each(overwritten))
        return found

    def _is_left_over(self, call: Call, result: Result) -> bool:
        """Whether uninitialized memory holds these numbers, and a call in place has written beside them."""
        at, tensor, here, bad = result
        is_known = node_of(tensor) is not None or self.findings.provenances.of(tensor) is not None
        if is_known or self.findings.uninitialized.of(tensor) is None:
            return False
        return torch.equal(was_there(call, here, bad, at), bad)

    def _was_there(self, call: Call, bad: list[Result]) -> None:
        """Find what was already not finite when a function in place first overwrote it."""
        for at, tensor, here, bad_here in bad:
            known = self.findings.provenances.of(tensor) is not None
            if not known and any_of(came := was_there(call, here, bad_here, at)):
                birth = self.findings.births.known(come_in(tensor, torch.where(came, here, 0), call))
                self.findings.provenances.keep(tensor, Provenance({birth: ()}))

    def _of_result(self, call: Call, result: Result, operands: Operands) -> Provenance | None:
        """The provenance of a result that is not finite, or None if the call only brought it in."""
        makes = call.plan.numerics.makes
        if not operands.provenances and makes in ("data", "memory"):
            if makes == "memory":
                birth = come_in(result.tensor, result.here, call)
                self.findings.uninitialized.keep(result.tensor, Provenance({birth: ()}))
            return None
        source = "" if operands.provenances else _unreadable(call)
        if source:
            birth = self._out_of(source, result.tensor, result.here, call)
            self.findings.carry(result.tensor, [(birth, result.bad)])
            return Provenance({birth: ()})
        is_mixed = operands.kinds & (NANS | OTHERS) == NANS | OTHERS
        if is_mixed and not any_of(result.here.isnan()):  # `nansum` leaves a NaN out
            operands = operands.without([birth for birth in all_births(operands.provenances) if birth.is_nan])
        split = self._split(call, result, operands)
        born, (*_, provenances, entering) = split.born, split.operands
        if born is not None and (secondhand := self._secondhand(call)):
            born, provenances = None, [*provenances, *secondhand]
        carried: list[tuple[Birth, Tensor]] = []
        rest, earlier = result.bad, entering  # the node of an earlier call carries what that call made
        if born is not None:
            carried = self._born(call, result, born, split)
            rest = result.bad & ~born
            if provenances and not call.plan.numerics.ignores_infinity:
                rest |= came_too(call, born, result.at)
            provenances = provenances if any_of(rest) else []
            earlier = [*entering, *provenances] if provenances else []  # beside a birth here, this node carries it too
        births = [birth for birth, _ in carried]
        if node_of(result.tensor) is not None:
            self._write(call, result.tensor, [*carried, *((birth, rest) for birth in all_births(earlier))])
            note_passed(result.tensor.grad_fn, provenances)
        return joined(provenances, call.name, births)

    def _born(self, call: Call, result: Result, born: Tensor, split: _Split) -> list[tuple[Birth, Tensor]]:
        """The births in a result, of NaN and of infinities, each with its elements."""
        found: list[tuple[Birth, Tensor]] = []
        nans = result.here.isnan()
        for part in (born & nans, born & ~nans):
            if any_of(part):
                birth = newborn(call, result.tensor, part, result.at, split.change)
                birth.made_of = split.made_of
                birth.half = found[0][0] if found else None
                self.findings.history.note_birth(birth, call, result.tensor)
                found.append((self.findings.births.known(birth), part))
        return found

    def _split(self, call: Call, result: Result, operands: Operands) -> _Split:
        """Split the elements of a result that are not finite."""
        at, _, here, bad = result
        if call.plan.in_place and operands.provenances and not operands.values:
            return _Split(None, operands)  # they were there before the call
        born = apart(call, here, bad, operands.came, at)
        known = all_births(operands.provenances) if operands.kinds & LEAVES_OUT else {}
        fillers = [birth for birth in known if birth.leaves_out]
        if not fillers:
            return _Split(born, operands)
        change = functools.partial(finite_ones, keep={birth.infinite for birth in fillers})
        ignores = call.plan.numerics.ignores_infinity
        are_meant = ignores or all(birth.nature == "meant" for birth in fillers)
        are_meant &= not (ignores and any(birth.infinite > 0 for birth in fillers))  # a mask with the wrong sign
        others = bad if born is None else bad & ~born
        made, harm = of_infinities(call, here, others, operands.values, at, change)
        are_undefined = any_of(made)
        made_of: tuple[Birth, ...] = ()
        if are_meant:
            born = made if born is None else born | made
            born = born if any_of(born) else None
            made_of = tuple(birth for birth in fillers if birth.nature == "meant" and are_undefined)
        elif are_undefined:
            for birth in fillers:
                birth.infinite = 0.0  # it has become NaN, so it leaves nothing out
        if (are_meant and are_undefined) or (len(fillers) < len(known) and not harm):
            operands = operands.without(fillers)
        return _Split(born, operands, made_of, change)

    def _write(self, call: Call, tensor: Tensor, carried: list[tuple[Birth, Tensor]]) -> None:
        """Write onto the node of a result which of its elements backward will ask for."""
        if carried:
            self.findings.carry(tensor, carried)
            base = tensor._base
            if call.plan.in_place and base is not None and base.grad_fn is not None:  # its node is new too
                note_call(base.grad_fn, call.name, call.place)
                self.findings.carry(base, [(birth, not_finite(base)) for birth, _ in carried])

    def _keep_buffers(self, buffers: Sequence[Tensor], provenance: Provenance | None) -> None:
        """Give the running statistics that a call has updated births of their own.

        The loss of this pass may ignore what the statistics bring into the loss of a later pass.
        """
        for tensor in buffers:
            if self.findings.provenances.of(tensor) is None and bad_of(tensor) is not None:
                paths = provenance.paths if provenance is not None else {}
                kept_in = weakref.ref(tensor)
                copies = Provenance({replace(birth, kept_in=kept_in): path for birth, path in paths.items()})
                self.findings.provenances.keep(tensor, copies)

    def _secondhand(self, call: Call) -> list[Provenance]:
        return self.findings.secondhand.of_each(call.tensors()) if self.findings.secondhand else []


def _unreadable(call: Call) -> str:
    """What a call read that cannot be read here; empty if there is nothing."""
    layout = next(filter(None, map(unreadable_layout, call.tensors())), "")
    if call.needs_others:
        return "tensors on other processes"
    return layout and f"a tensor of layout {layout}"
