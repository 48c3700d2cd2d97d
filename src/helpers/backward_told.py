"""What is told of each step of a backward pass: its formula, what it saved, and where NaN is born or ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .arithmetic import Arithmetic, arithmetic
from .backward_graph import Sent, Step
from .derivatives import formulas
from .entries import Entries, Kind, Outcome


@dataclass(frozen=True, eq=False)
class Told:
    """One step, as it is told.

    Attributes:
        title: the function, `exp`, with the reader's name for its result, `y = exp`; of a leaf `x.grad`.
        formula: what the node does to the cotangent, where that was checked for all that it passes on.
        official: PyTorch's own words for it, a line for each input, or none.
        tensors: what it saved and can be shown entry by entry; `numbers`: other arguments that the formula may use.
        born: by slot, the entries that are NaN though no NaN arrived for them.
        said: by way, what happens here to NaN and to what is ignored; may be the empty text.
    """

    title: str
    formula: str
    official: Sequence[str]
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, float]
    born: Mapping[int, Sequence[int]]
    said: Mapping[str, str]


def tell(steps: Sequence[Step]) -> list[Told]:
    """What is told of each step, in their order."""
    return [_told(number, steps) for number in range(len(steps))]


_QUIET = ("alpha", "beta", "dim", "keepdim", "step", "accumulate", "start", "end", "reduction")
"""Arguments of functions that change no entry's arithmetic, or that the formula tells already."""


def _told(number: int, steps: Sequence[Step]) -> Told:
    step = steps[number]
    how = [(sent, arithmetic(step, sent)) for sent in step.sends]
    written = list(dict.fromkeys(made.formula for _, made in how if made is not None))
    known = len(how) > 0 and all(made is not None for _, made in how)
    official = [
        f"{name}: {formula}"
        for slot, (name, formula) in enumerate(formulas(step.node).items())
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
    return Told(
        title=_title(step),
        formula=" and ".join(written) if known else "",
        official=official,
        tensors=tensors,
        numbers=numbers,
        born={slot: list(found) for slot, found in births.items() if found},
        said={"vanilla": _vanilla(number, steps, how, births), "ignoring": _ignoring(step, how, births)},
    )


def _title(step: Step) -> str:
    if step.leaf:
        return f"{step.name or 'leaf'}.grad"
    return f"{step.name} = {step.function}" if step.name else step.function


def _first(value: Any) -> Any:
    """The tensor, of several the first."""
    several = value if isinstance(value, tuple) else (value,)
    return next((each for each in several if isinstance(each, Tensor)), None)


How = Sequence[tuple[Sent, Arithmetic | None]]
Births = Mapping[int, Mapping[int, str]]


def _vanilla(number: int, steps: Sequence[Step], how: How, births: Births) -> str:
    step = steps[number]
    told = []
    for sent, made in how:
        found = births.get(sent.slot, {})
        summed = "" if made is None or made.terms is None else ", a term of the sum"
        for text in dict.fromkeys(found.values()):
            places = [_label(sent.value["vanilla"], at) for at, other in found.items() if other == text]
            told.append(f"{text}{summed}{_at(places)}")
    told = list(dict.fromkeys(told))
    if told:
        return f"NaN is born: {'; '.join(told)}."
    if added := _added(number, steps):
        return f"NaN is born where cotangents are added: {added}."
    arrives = [value["vanilla"] for value in step.arrives.values()]
    passed = [sent.value["vanilla"] for sent in step.sends]
    if step.leaf:
        return _counted(arrives[0])
    if any(map(_has_nan, arrives)):
        return "NaN arrives, and is passed on." if any(map(_has_nan, passed)) else "NaN arrives, and is not passed on."
    if any(map(_has_nan, passed)):
        return "NaN is born here."
    return ""


def _ignoring(step: Step, how: How, births: Births) -> str:
    arrives = [value["ignoring"] for value in step.arrives.values()]
    if step.leaf:
        ignored = "Ignored entries are written as 0. " if any(map(_masked, arrives)) else ""
        return ignored + _counted(arrives[0])
    told = []
    for sent, made in how:
        value = sent.value["ignoring"]
        if made is None or not isinstance(value, Entries) or not isinstance(arrives[0], Entries):
            continue
        for at in births.get(sent.slot, {}):
            kind = value.kinds()[at]
            text = made.ignored(at, arrives[0].mask)
            if kind is Kind.NAN:
                told.append(f"the loss uses {_label(value, at) or 'this entry'}, and its NaN stays")
            elif kind is Kind.MASKED and text:
                told.append(f"{text} = --: ignored{_at([_label(value, at)])}")
            elif text:
                told.append(f"{text} is left out of the sum{_at([_label(value, at)])}")
    if told:
        return _sentence("; ".join(dict.fromkeys(told)))
    if not any(map(_masked, arrives)):
        counts = [
            f"{_masked(sent.value['ignoring'])} of {len(sent.value['ignoring'])} entries"  # type: ignore[arg-type]
            for sent in step.sends
            if _masked(sent.value["ignoring"])
        ]
        if counts:
            return f"From here on the loss ignores {' and '.join(counts)} (--)."
    return ""


def _added(number: int, steps: Sequence[Step]) -> str:
    """The first sum of cotangents here that is NaN though none of its parts is."""
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
        rows = list(zip(*(part.texts(3) for part in parts if isinstance(part, Entries)), strict=True))
        for at, texts in enumerate(rows):
            if total.kinds()[at] is Kind.NAN and "NaN" not in texts:
                return f"{' + '.join(texts)} = NaN{_at([_label(total, at)])}"
    return ""


def _label(value: Outcome, at: int) -> str:
    return value.labels()[at] if isinstance(value, Entries) else ""


def _at(places: Sequence[str]) -> str:
    places = [place for place in places if place]
    if len(places) > 3:
        return f", at {', '.join(places[:2])} and {len(places) - 2} more entries"
    return f", at {' and '.join(places)}" if places else ""


def _has_nan(value: Outcome) -> bool:
    return isinstance(value, Entries) and Kind.NAN in value.kinds()


def _masked(value: Outcome) -> int:
    return value.kinds().count(Kind.MASKED) if isinstance(value, Entries) else 0


def _counted(value: Outcome) -> str:
    count = value.kinds().count(Kind.NAN) if isinstance(value, Entries) else 0
    return f"NaN in {count} of {len(value)} entries." if count else "No NaN."  # type: ignore[arg-type]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
