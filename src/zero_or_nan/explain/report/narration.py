"""Writes diagnoses into a report, in the user's names. What happens on one line, by one function, is one origin."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..births.diagnosis import Diagnosis, Verdict
from ..births.provenance import Birth, Kind
from .names import Later, Names
from .remedies import remedy
from .report import Origin, Report

T = TypeVar("T")

NOT_TOLD_APART = (
    "explain could not find out whether the loss uses an element or ignores it: this needs a second backward pass, "
    "which failed, ended at a compiled region, or was not tried because a custom autograd.Function may allow only one "
    "pass"
)

BEHIND = "the origin in {} of line {} is behind another: it shows once the contaminated origin is fixed"

_MOST_LOOKS = 20
"""The number of passes in which names are looked up for one origin. A NaN in the parameters reaches all, each time."""


class _Named(NamedTuple):
    """What an origin names, kept without keeping anything of the user's alive.

    Attributes:
        birth: its birth, without the module.
        module, outer: the module that called the function, and the outermost module around it when it was called.
        has_others: as in the diagnosis.
    """

    birth: Birth
    module: weakref.ref[nn.Module] | None
    outer: weakref.ref[nn.Module] | None
    has_others: bool


@dataclass
class _Narrated:
    """An origin that is in the report.

    Attributes:
        named: what it names.
        last: the number of its last birth.
        reached: what was reached, with the name that was found for it at first.
        looks: the number of passes in which names were looked up for it again.
    """

    origin: Origin
    named: _Named
    last: int
    reached: list[tuple[weakref.ref[Tensor] | None, str]] = field(default_factory=list)
    looks: int = 0

    def reach(self, targets: Iterable[Tensor | str], names: Names) -> None:
        """Note what was reached."""
        for target in targets:
            known = None if isinstance(target, str) else weakref.ref(target)
            self.reached.append((known, names.of_target(target)))
        self.origin.reached = list(dict.fromkeys(name for _, name in self.reached))

    def name(self, names: Names) -> None:
        """Write down all that depends on names, except for what was reached."""
        origin, (birth, module, outer, has_others) = self.origin, self.named
        origin.module = f"{birth.optimizer}.step" if birth.optimizer else names.of_module(_of(module), _of(outer))
        origin.operands = _operands(birth, origin.kind, names)
        situation = _source(birth, names), origin.dtype, origin.fixed, birth.operands, birth.phase
        origin.remedy, origin.chapter = remedy(origin.kind, *situation, has_others=has_others, of_large=birth.of_large)

    def name_again(self, names: Names) -> None:
        """Write down all names again."""
        found = [(name, _of(known)) for known, name in self.reached]
        self.reached.clear()
        self.reach([name if target is None else target for name, target in found], names)
        self.name(names)


def _weak(thing: T | None) -> weakref.ref[T] | None:
    return None if thing is None else weakref.ref(thing)


def _of(known: weakref.ref[T] | None) -> T | None:
    return None if known is None else known()


class Narration:
    """The narration of one watch.

    Attributes:
        verdicts: those of the births that are in the report.
    """

    def __init__(self, report: Report, around: Mapping[nn.Module, Sequence[nn.Module]]) -> None:
        self.report = report
        self.verdicts: WeakKeyDictionary[Birth, Verdict] = WeakKeyDictionary()
        self._around = around
        self._narrated: dict[tuple[Any, ...], _Narrated] = {}
        self._later = Later()

    def add(self, diagnoses: Iterable[Diagnosis], names: Names) -> None:
        """Add what the report does not have yet."""
        for diagnosis in diagnoses:
            birth, verdict, targets = diagnosis[:3]
            if not verdict.is_sure:
                self.report.note(NOT_TOLD_APART)
            if diagnosis.is_implied:
                continue
            self.verdicts[birth] = verdict
            key = birth.phase, birth.operator, birth.place.filename, birth.place.line, verdict.kind
            known = self._narrated.get(key)
            if known is None:
                self._narrated[key] = known = self._new(diagnosis)
                known.reach(targets, names)
                known.name(names)
                if diagnosis.is_hidden:
                    self.report.note(BEHIND.format(known.origin.operator, known.origin.line))
                self.report.add(known.origin, self._name_again)
                continue
            known.looks += 1
            if known.looks <= _MOST_LOOKS:
                known.reach(targets, names)
            if known.last == birth.number - 1 and birth.half is not None and birth.half.number == known.last:
                known.last = birth.number
                if known.origin.times == 1:
                    known.origin.entries = sorted([*known.origin.entries, *birth.where])[:5]
                    known.origin.count += birth.count
            if birth.number > known.last:  # it may reach a later pass, too; the statistics of a norm have a copy of it
                known.origin.times += 1
                known.last = birth.number
        self._later.add(names)

    def _name_again(self) -> None:
        """Look the names up again, now that somebody reads them."""
        names = self._later.names()
        if names is not None:
            for narrated in self._narrated.values():
                narrated.name_again(names)

    def note_elsewhere(self) -> None:
        """Note that a gradient is not finite, though no operator in this process made it so."""
        rank = _rank()
        if rank is not None:
            self.report.note_other_ranks(rank)

    def _new(self, diagnosis: Diagnosis) -> _Narrated:
        """An origin, still without what depends on names."""
        birth, verdict = diagnosis.birth, diagnosis.verdict
        place, module = birth.place, birth.place.module
        outer = next(iter(self._around.get(module, ())), None) if module is not None else None
        origin = Origin(
            phase=birth.phase,
            operator=birth.operator,
            filename=place.filename,
            line=place.line,
            source=place.source,
            module="",
            entries=birth.where,
            count=birth.count,
            shape=birth.shape,
            dtype=str(birth.dtype).removeprefix("torch."),
            device=str(birth.device),
            operands="",
            kind=verdict.kind,
            path=list(diagnosis.path),
            fixed=verdict.fixed,
            rank=_rank(),
            is_sure=verdict.is_sure,
            tie=diagnosis.tie,
        )
        alone = replace(birth, place=place._replace(module=None), half=None, made_of=())
        named = _Named(alone, _weak(module), _weak(outer), diagnosis.has_others)
        return _Narrated(origin, named, birth.number)


def _source(birth: Birth, names: Names) -> str:
    """What an origin comes from: a tensor that held it, or else the operator."""
    if birth.held:
        return "zero_grad"
    if birth.uninitialized:
        return "uninitialized memory"
    if birth.optimizer:
        return "step"
    if birth.nature == "given" and birth.kept_in is not None:
        return "kept in a buffer"
    came_in = _came_in(birth, names)
    return (came_in is not None and names.role_of(came_in)) or birth.operator


def _came_in(birth: Birth, names: Names) -> Tensor | None:
    """The tensor that a birth came in with; of a view that has no name, the tensor that it is a view of."""
    tensors = [known() for known in (birth.tensor, birth.base) if known is not None]
    there = [tensor for tensor in tensors if tensor is not None]
    return next((tensor for tensor in there if names.of_tensor(tensor)), there[0] if there else None)


def _operands(birth: Birth, kind: Kind, names: Names) -> str:
    """The computation that gave the number, with the name of the tensor that it came in with."""
    operands = birth.operands
    came_in = _came_in(birth, names)
    name = names.of_tensor(came_in) if came_in is not None else ""
    if birth.uninitialized:
        operands = f"{operands} in {name or 'memory'}, not initialized since {birth.uninitialized}"
    elif came_in is not None and name:
        role = names.role_of(came_in)
        operands = f"{operands} in {name}, {role}" if role else f"{operands} in {name}"
    kept_in = birth.kept_in() if birth.kept_in is not None else None
    if kept_in is not None:
        operands = f"{operands}, kept since in {names.of_tensor(kept_in) or 'running statistics'}"
    if birth.in_backward and kind == "contaminated":
        operands = f"{operands}; in backward {birth.in_backward}" if operands else birth.in_backward
    return operands


def _rank() -> int | None:
    """The number of this process among several; None if there is only one."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None
