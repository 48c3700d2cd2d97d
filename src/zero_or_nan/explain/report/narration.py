"""Writes diagnoses into a report, with the user's names. All births in one line by one function are one origin.

Names of modules, parameters and inputs are looked up only if there is something to report.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os.path
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...functions.numerics import is_pointwise
from ..births.diagnosis import Diagnosis, Verdict
from ..births.findings import History
from ..births.provenance import Birth, Kind
from ..program.code import Place, Places, is_module, of_variables
from ..program.rerun import extra
from ..program.tensors import address, in_several_processes
from .advice import NOTHING_TRIED, Advice, advice_at_gap, advice_on, tried_on
from .again import Program
from .by_ignoring import BY_TRANSFORM, in_line
from .left_out import data_left_out
from .remedies import DIVERGENCE, MOVE, OUTSIDE, REMEDIES, address_of, remedy
from .report import Measured, Origin, Remedy, Report
from .rows import without_rows
from .targets import compares, without_gaps

NOT_TOLD_APART = (
    "explain could not find out whether the loss uses an element or ignores it: this needs a second backward pass, "
    "which failed, ended at a compiled region, or was not tried because a custom autograd.Function may allow only one "
    "pass"
)

BEHIND = "the origin in {} of line {} is behind another: it shows once the contaminated origin is fixed"

NOT_IN_TRANSFORMS = "a function transform (torch.func) was not looked into"

_MOST_TRIALS = 20
"""The largest number of origins for which rewrites are tried."""

_MOST_CHARACTERS = 100
"""The largest length of a line of code that is shown beside the line that it replaces."""

_MOST_LOOKS = 20
"""In how many passes names are looked up for one origin. A NaN in the parameters reaches everything in each pass."""


@dataclass
class _Narrated:
    """An origin that is in the report.

    Attributes:
        birth: its birth, without what would keep something of the user's alive.
        has_others, begun, in_transform: as in the diagnosis.
        last: the number of its last birth.
        kind: its kind before exact arithmetic was asked.
        advice: what running the call again has shown.
        order: of the derivative for which the advice was tried: 2 for the gradient of a gradient.
        looks: the number of passes in which names were looked up for it again.
    """

    origin: Origin
    birth: Birth
    has_others: bool
    begun: Place | None
    in_transform: bool
    last: int
    kind: Kind
    advice: Advice = NOTHING_TRIED
    order: int = 1
    looks: int = 0

    @property
    def is_overflow(self) -> bool:
        """Whether a number was too large, whether the loss uses it or ignores it."""
        return "overflow" in (self.origin.kind, self.birth.kind_if_used)

    def reach(self, names: Iterable[str]) -> None:
        """Note what was reached."""
        self.origin.reached = list(dict.fromkeys([*self.origin.reached, *names]))

    def advise(self, situation: str, tensor: str = "") -> None:
        """Write down what to do, with the name of the tensor that the number came in with."""
        origin, birth, advice = self.origin, self.birth, self.advice
        known = situation, origin.dtype, origin.fixed, birth.operands, birth.phase, self.has_others, birth.of_large
        line, at = self._pass()
        code, origin.chapter = remedy(self.kind, *known, advice.refused, tensor, advice.fits, line)
        origin.remedy, origin.replaces = (advice.remedy, advice.replaces) if advice.remedy else (code, at)
        origin.until = advice.until
        is_mistake = code == REMEDIES["undefined", OUTSIDE].code and not advice.exact
        if advice.tried and is_mistake:  # what cuts the number off hides it
            choices = "".join(f"\n#   {line}" for line in advice.remedy.splitlines())
            origin.remedy, origin.replaces = f"{code}. If it is meant:{choices}", None
        measured = None if advice.replaces is None else Measured(None, None, True, "")
        origin.remedies = [
            Remedy(each.line, each.replaces, Measured(each.value, each.gradient, not each.choice, each.choice))
            for each in advice.tried
        ] or [Remedy(origin.remedy, advice.replaces, measured)]
        if advice.remedy and origin.kind == "contaminated" and origin.fixed and not advice.is_only:
            origin.remedy += "\n# or, with your code as it is:" + "".join(f"\n#   {line}" for line in code.splitlines())

    def _pass(self) -> tuple[str, int | None]:
        """The user's line that begins the pass, with `ignoring` in place of PyTorch's function, and its number.

        It is empty if `ignoring` does not help, or the line is not known. The number is that of a line in this file.
        """
        place = self.begun
        if place is None or self.kind != "contaminated" or not self.origin.fixed:
            return "", None
        line, at = in_line(place.source), place.line
        if line is None:
            return BY_TRANSFORM if self.in_transform else "", None
        is_here = place.filename == self.origin.filename
        where = f"line {at}" if is_here else f"line {at} of {os.path.basename(place.filename)}"
        told = f"{line}  # in place of {place.source}"
        return told if len(told) <= _MOST_CHARACTERS else f"{line}  # in place of {where}", at if is_here else None


class Narration:
    """The narration of one watch.

    Attributes:
        verdicts: the verdicts of the births in the report.
    """

    def __init__(self, report: Report, places: Places, history: History) -> None:
        self.report, self._places, self._history = report, places, history
        self.verdicts: WeakKeyDictionary[Birth, Verdict] = WeakKeyDictionary()
        self._narrated: dict[tuple[Any, ...], _Narrated] = {}
        self._known: tuple[tuple[int, int | None], Program] | None = None
        self._end: _Narrated | None = None  # where a divergence ended

    def add(self, diagnoses: Iterable[Diagnosis], names: Names) -> None:
        """Add the diagnoses that the report does not have yet."""
        for diagnosis in diagnoses:
            birth, verdict, targets = diagnosis[:3]
            if not verdict.is_sure:
                self.report.note(NOT_TOLD_APART)
            if diagnosis.is_implied:
                continue
            self.verdicts[birth] = verdict
            key = birth.phase, birth.operator, birth.place.filename, birth.place.line, verdict.kind
            known = self._narrated.get(key)
            if self._end is not None and self._end is not known and birth.kind_if_used == "overflow":
                self._end.reach(map(names.of_target, targets))  # what diverges grows too large in more than one line
                continue
            if known is None:
                self._narrated[key] = known = self._new(diagnosis, names)
                known.reach(map(names.of_target, targets))
                if birth.operator == "torch.func":
                    self.report.note(NOT_IN_TRANSFORMS)
                if diagnosis.is_hidden:
                    self.report.note(BEHIND.format(known.origin.operator, known.origin.line))
                self.report.origins.append(known.origin)
                continue
            order = self._history.order_of(birth)
            if order > known.order and any(each.choice for each in known.advice.tried):
                # A slope that was chosen may be right, and the slope of this slope wrong.
                known.order, known.advice = order, self._tried(diagnosis)
                known.advise(known.advice.situation or birth.operator)
            known.looks += 1
            if known.looks <= _MOST_LOOKS:
                known.reach(map(names.of_target, targets))
            if known.last == birth.number - 1 and birth.half is not None and birth.half.number == known.last:
                known.last = birth.number
                if known.origin.times == 1:
                    known.origin.entries = sorted([*known.origin.entries, *birth.where])[:5]
                    known.origin.count += birth.count
            if birth.number > known.last:  # it may reach a later pass, too; the statistics of a norm have a copy of it
                known.origin.times += 1
                known.last = birth.number
        self._known = None  # it has tensors

    def _tried(self, diagnosis: Diagnosis) -> Advice:
        """What the call in which a number was born has shown."""
        birth, chains = diagnosis.birth, self._history.chains(diagnosis.birth)
        is_derivative = bool(chains) and birth.phase == "backward" and chains[-1].call.name != birth.operator
        asked = {address(target) for target in diagnosis.targets if isinstance(target, Tensor)}
        asked |= self._history.hooked()
        of_pass = is_derivative, asked, diagnosis.is_recorded
        return tried_on(chains, lambda chains: advice_on(chains, self._program(), *of_pass))

    def _of_data(self, birth: Birth, names: Names) -> Advice:
        """What to write about data that came in with a birth: another number, or lines that leave out the rows."""
        is_bad, program = functools.partial(self._history.holds, birth), self._program()
        with extra():
            line = data_left_out(birth.place, birth.operator, is_bad, program)
            return Advice(*line) if line else without_rows(is_bad, names.frame, program, birth.place.filename)

    def _program(self) -> Program:
        """The known calls. What was computed from them is kept until there are others."""
        known = self._history.count, self._history.loss
        if self._known is None or self._known[0] != known:
            self._known = known, Program(self._history.calls(), self._history.loss, self._places.callers)
        return self._known[1]

    def name_cause(self, cause: str) -> None:
        """Write into the report what led to the origins. The cause is empty if the earlier steps show nothing.

        All numbers that a divergence made too large become one origin, because their lines are not wrong.
        """
        situation = MOVE if cause.startswith("perhaps") else DIVERGENCE
        self.report.cause = cause and f"{cause}\n  {address_of(REMEDIES['overflow', situation].section)}"
        ended = {key: each for key, each in self._narrated.items() if cause and each.is_overflow}
        self._end = first = next((each for each in ended.values() if each.origin.kind == "overflow"), None)
        if first is None:
            return
        for key, each in ended.items():
            if each is not first:
                self.report.origins.remove(self._narrated.pop(key).origin)
                first.reach(each.origin.reached)
        if situation == DIVERGENCE or first.advice.replaces is None:
            first.kind, first.advice = "overflow", Advice(situation=situation)
            first.advise(situation)

    def note_elsewhere(self) -> None:
        """Note that a gradient is not finite, although no operator in this process made it so."""
        rank = _rank()
        if rank is not None:
            self.report.came_from_another_process = True
            self.report.note(f"a gradient is not finite, and nothing of rank {rank} made it so: see the other ranks")

    def _new(self, diagnosis: Diagnosis, names: Names) -> _Narrated:
        """An origin, still without what it reached."""
        birth, verdict = diagnosis.birth, diagnosis.verdict
        place, module = birth.place, birth.place.module
        outer = next(iter(self._places.around.get(module, ())), None) if module is not None else None
        path = names.of_module(module, outer)
        name, role = _came_in(birth, names)
        origin = Origin(
            phase=birth.phase,
            operator=birth.operator,
            filename=place.filename,
            line=place.line,
            source=place.source,
            module=f"{birth.optimizer}.step" if birth.optimizer else path,
            entries=birth.where,
            count=birth.count,
            shape=birth.shape,
            dtype=str(birth.dtype).removeprefix("torch."),
            device=str(birth.device),
            operands=_operands(birth, verdict.kind, name, role, names),
            kind=verdict.kind,
            path=list(diagnosis.path),
            fixed=verdict.fixed,
            rank=_rank(),
            is_sure=verdict.is_sure,
            tie=diagnosis.tie,
        )
        order = self._history.order_of(birth)
        if len(self._narrated) >= _MOST_TRIALS or birth.optimizer:
            advice = NOTHING_TRIED
        elif verdict.kind in ("bad input", "contaminated"):
            advise = functools.partial(without_gaps, program=self._program(), is_dropped=verdict.kind == "contaminated")
            advice = tried_on(self._history.comparison(birth, compares), advise)
            is_data = verdict.kind == "bad input" and _source(birth, role) == birth.operator
            if advice is NOTHING_TRIED and is_data:  # a weight, or the error of a measurement
                advice = tried_on(self._history.comparison(birth, is_pointwise), advise)
            if not advice.remedy and is_data:
                found = self._of_data(birth, names)
                advice = found._replace(situation=advice.situation) if found.remedy else advice
            if not advice.remedy and verdict.kind == "contaminated" and verdict.fixed:
                at_gap = functools.partial(advice_at_gap, program=self._program())
                advice = tried_on(self._history.chains(birth), at_gap)
        else:
            advice = self._tried(diagnosis)
        origin.exact = advice.exact
        if advice.exact:
            origin.kind = "overflow"
        alone = replace(birth, place=place._replace(module=None), half=None, made_of=())
        of_pass = diagnosis.has_others, diagnosis.begun, diagnosis.in_transform
        narrated = _Narrated(origin, alone, *of_pass, birth.number, verdict.kind, advice, order)
        narrated.advise(advice.situation or _source(birth, role), name)
        if verdict.is_zero:
            origin.remedy += "\n# this gradient is 0 everywhere: what it reaches does not learn from this loss"
        return narrated


def _came_in(birth: Birth, names: Names) -> tuple[str, str]:
    """The name of the tensor that a birth came in with, and what this tensor is to a module.

    A view that has no name is called by the tensor that it is a view of.
    """
    known = [each() for each in (birth.tensor, birth.base) if each is not None]
    tensors = [tensor for tensor in known if tensor is not None]
    tensor = next((each for each in tensors if names.of_tensor(each)), tensors[0] if tensors else None)
    return ("", "") if tensor is None else (names.of_tensor(tensor), names.role_of(tensor))


def _source(birth: Birth, role: str) -> str:
    """What an origin comes from: a tensor that held it, or else the operator."""
    if birth.held:
        return "zero_grad"
    if birth.uninitialized:
        return "uninitialized memory"
    if birth.optimizer:
        return "step"
    if birth.nature == "given" and birth.kept_in is not None:
        return "kept in a buffer"
    if birth.nature == "meant":
        return "a number in the code"
    return role or birth.operator


def _operands(birth: Birth, kind: Kind, name: str, role: str, names: Names) -> str:
    """The computation that gave the number, with the name of the tensor that it came in with."""
    operands = birth.operands
    if birth.uninitialized:
        operands = f"{operands} in {name or 'memory'}, not initialized since {birth.uninitialized}"
    elif name:
        operands = f"{operands} in {name}, {role}" if role else f"{operands} in {name}"
    kept_in = birth.kept_in() if birth.kept_in is not None else None
    if kept_in is not None:
        operands = f"{operands}, kept since in {names.of_tensor(kept_in) or 'running statistics'}"
    if birth.in_backward and kind == "contaminated":
        operands = f"{operands}; in backward {birth.in_backward}" if operands else birth.in_backward
    return operands


def _rank() -> int | None:
    """The number of this process among several; None if there is only one."""
    return torch.distributed.get_rank() if in_several_processes() else None


# The user's names of modules, parameters and inputs.

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")
"""Names that DistributedDataParallel, the compiler and FSDP put in front of the user's names."""


def all_modules() -> list[nn.Module]:
    """All modules that exist now.

    A list of all objects must not outlive the call that makes it. It would hold tensors that otherwise only C++ holds,
    and PyTorch before 2.10 warns in the thread that releases such a tensor.
    """
    kinds = set(map(type, itertools.chain.from_iterable(map(gc.get_objects, (None,)))))
    of_modules = {kind for kind in kinds if issubclass(kind, nn.Module)}
    return [thing for thing in gc.get_referrers(*of_modules) if type(thing) in of_modules]


class Names:
    """Looks up the user's names for tensors and modules.

    Modules that were called in the block, or that are variables, are found at once. A walk over all objects, which
    takes as long as many passes of a small model, finds the others. The walk happens at most once, and only for a
    tensor that is in none of the modules found so far. A name begins at the outermost module that was found.

    Args:
        frame: the user's frame, whose variables give names to tensors.
        called: modules that were called in the block.
    """

    def __init__(self, frame: FrameType | None = None, called: Iterable[nn.Module] = ()) -> None:
        self.frame = frame
        self._called = list(called)
        self._variables: dict[int, str] = {}
        self._inside: dict[int, list[tuple[nn.Module, str]]] = {}
        self._holds: dict[int, list[tuple[nn.Module, str]]] = {}
        self._buffers: set[int] = set()
        self._looked = self._looked_everywhere = False

    def _look(self) -> None:
        """Find the modules that were called, and those that are variables."""
        if self._looked:
            return
        self._looked = True
        found: list[nn.Module] = []
        seen: set[int] = set()
        left = [*self._called]
        frame = self.frame
        while frame is not None:
            left += of_variables(frame, lambda values: [each for _, each in values if is_module(each)])
            frame = frame.f_back
        left.reverse()
        while left:
            module = left.pop()
            if id(module) not in seen:
                seen.add(id(module))
                found.append(module)
                left += [child for child in module.__dict__.get("_modules", {}).values() if child is not None][::-1]
        self._add(found)

    def _look_everywhere(self) -> None:
        """Find all modules."""
        if not self._looked_everywhere:
            self._looked = self._looked_everywhere = True
            for known in (self._inside, self._holds, self._buffers):
                known.clear()
            self._add(all_modules())

    def _add(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            for name, child in module.__dict__.get("_modules", {}).items():
                if child is not None:
                    self._inside.setdefault(id(child), []).append((module, name))
            buffers = module.__dict__.get("_buffers", {})
            self._buffers.update(map(id, buffers.values()))
            for name, tensor in (*module.__dict__.get("_parameters", {}).items(), *buffers.items()):
                if tensor is not None:
                    self._holds.setdefault(id(tensor), []).append((module, name))

    def of_module(self, module: nn.Module | None, outer: nn.Module | None = None) -> str:
        """The path of a module from the outermost module that holds it; empty if no module does.

        Args:
            module: the module.
            outer: the outermost module whose call led to the module's call. It holds the module, unless it is gone.
        """
        if module is None:
            return ""
        self._look()
        parts: list[str] = []
        seen = set()
        if outer is not None and outer is not module:
            parts = [name for name, inner in outer.named_modules() if inner is module][:1]
            module = outer
        while id(module) in self._inside and id(module) not in seen:
            seen.add(id(module))
            module, name = self._inside[id(module)][0]
            parts.append(name)
        names = [name for part in reversed(parts) for name in part.split(".")]
        return ".".join(name for name in names if name not in WRAPPERS)

    def of_target(self, target: Tensor | str) -> str:
        """A name for something that a NaN reached."""
        return target if isinstance(target, str) else self.of_tensor(target) or "a tensor"

    def role_of(self, tensor: Tensor) -> str:
        """The role of a tensor in a module: "a parameter" or "a buffer"; empty if it has none."""
        self._find_holder(tensor)
        if id(tensor) in self._buffers:
            return "a buffer"
        return "a parameter" if id(tensor) in self._holds or isinstance(tensor, nn.Parameter) else ""

    def of_tensor(self, tensor: Tensor) -> str:
        """The name of a tensor as a parameter, a buffer or a variable; empty if it has none."""
        self._find_holder(tensor)
        if id(tensor) in self._holds:
            module, name = self._holds[id(tensor)][0]
            path = self.of_module(module)
            return f"{path}.{name}" if path else name
        return self._variable(tensor)

    def _find_holder(self, tensor: Tensor) -> None:
        """Find the modules that hold a tensor. What is a variable, and no parameter, is taken to be in no other."""
        self._look()
        if id(tensor) not in self._holds and (isinstance(tensor, nn.Parameter) or not self._variable(tensor)):
            self._look_everywhere()

    def _variable(self, tensor: Tensor) -> str:
        if id(tensor) not in self._variables:
            frame, found = self.frame, list[str]()
            while frame is not None and not found:
                found = of_variables(frame, lambda values: [name for name, value in values if value is tensor])
                frame = frame.f_back
            self._variables[id(tensor)] = found[0] if found else ""
        return self._variables[id(tensor)]
