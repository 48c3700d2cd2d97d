"""The description of each step of a backward pass: its formula, what it saved, and where NaN appears or is ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..entries import Entries, Kind, Outcome
from ..nodes import node
from .arithmetic import Arithmetic, arithmetic
from .graph import FigureStep, Sent


@dataclass(frozen=True, eq=False)
class Told:
    """The description of one step.

    Attributes:
        title: the function, `exp`, with the reader's name for its result, `y = exp`; for a leaf `x.grad`.
        formulas: for each slot, how the node computes the result from the cotangent, if a rule gives the same bits.
        official: PyTorch's own formulas, a line for each input. Empty if PyTorch has none.
        tensors: the saved tensors.
        numbers: the other saved arguments that the formula may use.
        born: for each slot, the elements that become NaN although no NaN arrives for them, with their arithmetic.
        spared: the same for the ignoring pass: elements that would become NaN if they were not ignored.
        meets: for each operand, the elements that give these NaN, if the arithmetic is elementwise.
        said: for each method, what happens in this step to NaN and to ignored elements; may be empty.
    """

    title: str
    formulas: Mapping[int, str]
    official: Sequence[str]
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, float]
    born: Mapping[int, Mapping[int, str]]
    spared: Mapping[int, Mapping[int, str]]
    meets: Mapping[str, Sequence[int]]
    said: Mapping[str, str]

    @property
    def formula(self) -> str:
        """The formula, if it is the same for all inputs; otherwise empty."""
        each = list(dict.fromkeys(self.formulas.values()))
        return each[0] if len(each) == 1 else ""


def tell(steps: Sequence[FigureStep]) -> list[Told]:
    """The description of each step, in the same order."""
    with torch.device("cpu"):  # because what was recorded is there, also if the page has another default device
        return [_told(number, steps) for number in range(len(steps))]


_QUIET = ("alpha", "beta", "dim", "keepdim", "step", "accumulate", "start", "end", "reduction")
"""Arguments that change no element's arithmetic, or that the formula already contains."""


def _told(number: int, steps: Sequence[FigureStep]) -> Told:
    step = steps[number]
    how = [(sent, arithmetic(step, sent)) for sent in step.sends]
    official = [
        f"{name}: {formula}"
        for slot, (name, formula) in enumerate(node(step.node).formulas.items())
        if any(sent.slot == slot for sent in step.sends)
    ]
    saved = {name: value for name, value in step.saved.items() if "_sym_" not in name}
    tensors = {name: _first(value) for name, value in saved.items() if _first(value) is not None}
    numbers = {
        name: value
        for name, value in saved.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in _QUIET
    }
    births = {sent.slot: dict(made.births()) for sent, made in how if made is not None}
    spared = _spared(step, how, births)
    return Told(
        title=_title(step),
        formulas={sent.slot: made.formula for sent, made in how if made is not None},
        official=official,
        tensors=tensors,
        numbers=numbers,
        born={slot: found for slot, found in births.items() if found},
        spared=spared,
        meets=_meets(how, births),
        said={"vanilla": _vanilla(number, steps, how, births), "ignoring": _ignoring(step, spared, births)},
    )


def _title(step: FigureStep) -> str:
    if step.leaf:
        return f"{step.name or 'leaf'}.grad"
    return f"{step.name} = {step.function}" if step.name else step.function


def _first(value: Any) -> Any:
    """The tensor, or the first of several tensors."""
    several = value if isinstance(value, tuple) else (value,)
    return next((each for each in several if isinstance(each, Tensor)), None)


How = Sequence[tuple[Sent, Arithmetic | None]]
Births = Mapping[int, Mapping[int, str]]


def _meets(how: How, births: Births) -> Mapping[str, Sequence[int]]:
    meets: dict[str, list[int]] = {}
    for sent, made in how:
        if made is not None and made.entrywise:
            for name, operand in made.operands.items():
                same = isinstance(operand, Tensor) and operand.shape == made.value.shape
                meets.setdefault(name, []).extend(births[sent.slot] if same else ())
    return meets


def _vanilla(number: int, steps: Sequence[FigureStep], how: How, births: Births) -> str:
    step = steps[number]
    found = []
    for sent, made in how:
        summed = " in a sum" if made is not None and made.terms is not None else ""
        labels = _labels(sent.value["vanilla"])
        found += [(text + summed, labels[at]) for at, text in births.get(sent.slot, {}).items()]
    if found:
        return f"NaN is born: {_placed(found)}."
    if added := _added(number, steps):
        return f"NaN is born where cotangents are added: {_placed(added)}."
    arrives = any(_has_nan(value["vanilla"]) for value in step.arrives.values())
    passed = any(_has_nan(sent.value["vanilla"]) for sent in step.sends)
    if step.leaf:
        return _counted(step.arrives[0]["vanilla"])
    if arrives:
        return "NaN arrives, and is passed on." if passed else "NaN arrives, and is not passed on."
    return "NaN is born here." if passed else ""


def _spared(step: FigureStep, how: How, births: Births) -> dict[int, dict[int, str]]:
    """For each slot and element, the first product that would be NaN and is ignored: `-- × inf`."""
    spared: dict[int, dict[int, str]] = {}
    (here, *_) = (value["ignoring"] for value in step.arrives.values())
    for sent, made in how:
        value = sent.value["ignoring"]
        if made is not None and isinstance(value, Entries) and isinstance(here, Entries):
            found = {at: made.ignored(at, here.mask) for at in births[sent.slot] if value.kinds()[at] is not Kind.NAN}
            spared[sent.slot] = {
                at: f"{text} = --" if value.kinds()[at] is Kind.MASKED else text for at, text in found.items() if text
            }
    return {slot: texts for slot, texts in spared.items() if texts}


def _ignoring(step: FigureStep, spared: Births, births: Births) -> str:
    arrives = [value["ignoring"] for value in step.arrives.values()]
    if step.leaf:
        return ("Ignored elements are written as 0. " if any(map(_masked, arrives)) else "") + _counted(arrives[0])
    told: dict[str, list[tuple[str, str]]] = {"Ignored: ": [], "Left out of the sum: ": [], "": []}
    for sent in step.sends:
        value = sent.value["ignoring"]
        labels = _labels(value)
        for at, text in spared.get(sent.slot, {}).items():
            told["Ignored: " if text.endswith("= --") else "Left out of the sum: "].append((text, labels[at]))
        for at in births.get(sent.slot, {}):
            if isinstance(value, Entries) and value.kinds()[at] is Kind.NAN:
                told[""].append(("Not ignored, so NaN stays", labels[at]))
    sentences = [f"{word}{_placed(found)}." for word, found in told.items() if found]
    if not sentences and not any(map(_masked, arrives)):
        counts = [
            f"{_masked(value)} of {len(value)} elements"
            for value in (sent.value["ignoring"] for sent in step.sends)
            if isinstance(value, Entries) and _masked(value)
        ]
        sentences = [f"From here on the loss ignores {', and '.join(counts)} (--)."] if counts else []
    return " ".join(sentences)


def _added(number: int, steps: Sequence[FigureStep]) -> list[tuple[str, str]]:
    """The sums of cotangents in this step that are NaN although no summand is, each with its index."""
    found = []
    for output, value in steps[number].arrives.items():
        total = value["vanilla"]
        parts = [
            sent.value["vanilla"]
            for step in steps
            for sent in step.sends
            if (sent.to, sent.output) == (number, output) and isinstance(sent.value["vanilla"], Entries)
        ]
        if len(parts) < 2 or not isinstance(total, Entries):
            continue
        rows = list(zip(*(short(part) for part in parts if isinstance(part, Entries)), strict=True))
        for at, texts in enumerate(rows):
            if total.kinds()[at] is Kind.NAN and "NaN" not in texts:
                found.append((f"{' + '.join(texts)} = NaN", total.labels()[at]))
    return found


def short(value: Entries) -> list[str]:
    """The text of every element, with about three digits."""
    return [min(texts, key=len) for texts in zip(*(value.texts(digits) for digits in (3, 4, 5)), strict=True)]


def _labels(value: Outcome) -> list[str]:
    return value.labels() if isinstance(value, Entries) else []


def _placed(found: Sequence[tuple[str, str]]) -> str:
    """What happens, each with the indices at which it happens."""
    told = []
    for text in dict.fromkeys(text for text, _ in found):
        places = list(dict.fromkeys(place for other, place in found if other == text and place))
        shown = places if len(places) < 4 else [", ".join(places[:2]), f"{len(places) - 2} more elements"]
        told.append(f"{text} at {' and '.join(shown)}" if places else text)
    return "; ".join(told)


def _has_nan(value: Outcome) -> bool:
    return isinstance(value, Entries) and Kind.NAN in value.kinds()


def _masked(value: Outcome) -> int:
    return value.kinds().count(Kind.MASKED) if isinstance(value, Entries) else 0


def _counted(value: Outcome) -> str:
    """How many elements of a gradient are not finite."""
    if not isinstance(value, Entries):
        return "No NaN."
    nan, infinite = (value.kinds().count(kind) for kind in (Kind.NAN, Kind.INF))
    found = [f"{name} in {count}" for name, count in (("NaN", nan), ("inf", infinite)) if count]
    return f"{', '.join(found)} of {len(value)} elements." if found else "No NaN."
