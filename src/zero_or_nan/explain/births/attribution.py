"""Where the NaN and infinities in the results of one call come from: the call itself, its operands, or an infinity
that was to leave an element out."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...functions.numerics import numerics_of
from ...ignoring.inside import any_of, has_wrapper, inside_wrapper, is_region, is_sparse, unwrapped
from ..program.code import Place, buffers_of, is_loading, is_transforming, overwritten_by
from ..program.tensors import (
    bad_in,
    bad_numbers_of,
    is_finite,
    node_of,
    not_finite,
    numbers_of,
    tensors_in,
    unreadable_layout,
)
from .call import (
    Call,
    Change,
    apart,
    came_too,
    come_in,
    come_out,
    describe,
    finite_ones,
    newborn,
    of_infinities,
    was_there,
)
from .findings import COMPILED, Findings, note_call, note_passed
from .provenance import LEAVES_OUT, NANS, OTHERS, Birth, Provenance, all_births, joined, without

_TRANSFORM = "torch.func"
"""The name of a transform in a report."""


class Result(NamedTuple):
    """A result of a call that is not finite: its position, the tensor, its numbers, and which of them are not."""

    at: int
    tensor: Tensor
    here: Tensor
    bad: Tensor


class Operands(NamedTuple):
    """The operands of a call that are not finite.

    Attributes:
        values: their numbers.
        came: where they are not finite.
        provenances: those of the operands, and of what a function in place overwrites.
        entering: those of operands that have no node: the graph gets to know their births at this call.
    """

    values: list[Tensor]
    came: list[Tensor]
    provenances: list[Provenance]
    entering: list[Provenance]

    def without(self, births: Sequence[Birth]) -> Operands:
        """The operands as if some births were none."""
        provenances, entering = (
            [without(each, births) for each in found] for found in (self.provenances, self.entering)
        )
        return self._replace(provenances=provenances, entering=entering)

    @property
    def kinds(self) -> int:
        """The kinds of all births, added up."""
        kinds = 0
        for provenance in self.provenances:
            kinds |= provenance.kinds
        return kinds


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


class Attribution:
    """Attributes results to births, and writes what it finds into the findings and onto the nodes of the graph.

    Args:
        findings: those of the watch.
        made_in_region: gives the provenance of what came out of a compiled region, if it is known.
    """

    def __init__(self, findings: Findings, made_in_region: Callable[[Tensor], Provenance | None]) -> None:
        self.findings, self.made_in_region = findings, made_in_region

    def attribute(self, call: Call, args: Any, bad: list[Result], before: Tensor | None) -> None:
        """Find out what the results of a call come from.

        Args:
            call: the call, with the arguments as they were before it.
            args: the arguments as they are now.
            bad: the results that are not finite.
            before: a copy of what the call has overwritten, if it could be made.
        """
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
        """The birth of a tensor that is not finite, and that no function in the block has made."""
        births, node = self.findings.births, node_of(tensor)
        if is_transforming():
            return self._out_of_transform(tensor, here, call.place)
        place = self.findings.place_of_region(node)
        if not is_region(node) or place is None:
            birth = come_in(tensor, here, call)
            uninitialized = self.findings.uninitialized.of(tensor)
            if uninitialized is not None:
                (empty,) = uninitialized.births
                birth.uninitialized = f"{empty.operator} in line {empty.place.line}"
            return births.known(birth)
        compiled = call._replace(name=COMPILED, place=place)
        birth = describe("made", compiled, tensor, not_finite(here), "inside of a compiled region")
        note_call(node, COMPILED, place)
        birth = births.known(birth)
        note_passed(node, [Provenance({birth: ()})])
        return birth

    def came_out(self, results: Any, place: Place) -> None:
        """Look at the gradients that a pass hands to a transform of `torch.func`.

        The outermost transform returns its gradients. Those of another one may be left out by the next.
        """
        for result in filter(has_wrapper, tensors_in(results)):
            tensor, is_returned = unwrapped(result), not has_wrapper(inside_wrapper(result))
            here = bad_numbers_of(tensor)
            if here is not None:
                keep = self.findings.keep_result if is_returned else self.findings.provenances.keep
                keep(tensor, Provenance({self._out_of_transform(tensor, here, place): ()}))

    def _out_of_transform(self, tensor: Tensor, here: Tensor, place: Place) -> Birth:
        call = Call(None, _TRANSFORM, place)
        return self.findings.births.known(come_out(tensor, here, not_finite(here), call, _TRANSFORM))

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
        if node_of(tensor) is not None or self.findings.uninitialized.of(tensor) is None:
            return False
        if self.findings.provenances.of(tensor) is not None:
            return False
        return torch.equal(was_there(call, here, bad, at), bad)

    def _was_there(self, call: Call, bad: list[Result]) -> None:
        """Find what was already not finite when a function in place first overwrote it."""
        for at, tensor, here, bad_here in bad:
            if self.findings.provenances.of(tensor) is None:
                came = was_there(call, here, bad_here, at)
                if any_of(came):
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
            birth = self.findings.births.known(come_out(result.tensor, result.here, result.bad, call, source))
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
            rest = self._not_born(call, result, born, provenances)
            provenances = provenances if any_of(rest) else []
            earlier = [*entering, *provenances] if provenances else []  # beside a birth here, this node carries it too
        births = [birth for birth, _ in carried]
        if node_of(result.tensor) is not None:
            carried += [(birth, rest) for birth in all_births(earlier)]
            self._write(call, result.tensor, carried, provenances)
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
                self.findings.history.note_birth(birth, self.findings.history.of(result.tensor))
                found.append((self.findings.births.known(birth), part))
        return found

    def _not_born(self, call: Call, result: Result, born: Tensor, provenances: Sequence[Provenance]) -> Tensor:
        """The elements of a result that come with the operands, also if the call makes them, too."""
        rest = result.bad & ~born
        if provenances and not numerics_of(call.name).ignores_infinity:
            rest |= came_too(call, born, result.at)
        return rest

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
        are_meant = all(_is_meant(birth, call.name) for birth in fillers)
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

    def _write(
        self, call: Call, tensor: Tensor, carried: list[tuple[Birth, Tensor]], provenances: Sequence[Provenance]
    ) -> None:
        """Write onto the node of a result what backward will ask for."""
        if carried:
            self.findings.carry(tensor, carried)
            base = tensor._base
            if call.plan.in_place and base is not None and base.grad_fn is not None:  # its node is new too
                note_call(base.grad_fn, call.name, call.place)
                self.findings.carry(base, [(birth, not_finite(base)) for birth, _ in carried])
        if provenances:
            note_passed(tensor.grad_fn, provenances)

    def _keep_buffers(self, buffers: Sequence[Tensor], provenance: Provenance | None) -> None:
        """Give the running statistics that a call has updated births of their own.

        The loss of this pass may ignore what the statistics bring into the loss of a later pass.
        """
        for tensor in buffers:
            here = numbers_of(tensor)
            if here is not None and self.findings.provenances.of(tensor) is None and not is_finite(here):
                paths = provenance.paths if provenance is not None else {}
                kept_in = weakref.ref(tensor)
                copies = Provenance({replace(birth, kept_in=kept_in): path for birth, path in paths.items()})
                self.findings.provenances.keep(tensor, copies)

    def _secondhand(self, call: Call) -> list[Provenance]:
        return self.findings.secondhand.of_each(call.tensors()) if self.findings.secondhand else []


def _is_meant(birth: Birth, function: str) -> bool:
    """Whether an infinity leaves an element out of a function."""
    return birth.nature == "meant" or (birth.infinite == -math.inf and numerics_of(function).ignores_infinity)


def _unreadable(call: Call) -> str:
    """What a call read that cannot be read here; empty if there is nothing."""
    layout = next(filter(None, map(unreadable_layout, call.tensors())), "")
    if call.needs_others:
        return "tensors on other processes"
    return layout and f"a tensor of layout {layout}"
