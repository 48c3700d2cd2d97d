"""The description of each step of a backward pass: its formula, what it saved, and where NaN appears or is ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..entries import Entries, Kind, Outcome
from ..nodes import node
from .arithmetic import Arithmetic, arithmetic, moved
from .graph import FigureStep, Sent


@dataclass(frozen=True, eq=False)
class Told:
    """The description of one step.

    Attributes:
        title: the function, `exp`, with the reader's name for its result, `y = exp`; for a leaf `x.grad`.
        formulas: for each slot, how the node computes or moves the cotangent, if it is known.
        official: PyTorch's own formulas, a line for each input. Empty if PyTorch has none.
        tensors: the saved tensors.
        numbers: the other saved arguments that the formula may use.
        born: for each slot, the elements that become NaN although no NaN arrives for them, with their arithmetic.
        said: for each method, what happens in this step to NaN and to ignored elements; may be empty.
    """

    title: str
    formulas: Mapping[int, str]
    official: Sequence[str]
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, float]
    born: Mapping[int, Mapping[int, str]]
    said: Mapping[str, str]

    @property
    def formula(self) -> str:
        """The formula, if it is the same for all inputs; otherwise empty."""
        each = list(dict.fromkeys(self.formulas.values()))
        return each[0] if len(each) == 1 else ""


def tell(steps: Sequence[FigureStep]) -> list[Told]:
    """The description of each step, in the same order."""
    with torch.device("cpu"):  # because what was recorded is there, also if the page has another default device
        return [_told(step) for step in steps]


_QUIET = ("alpha", "beta", "dim", "keepdim", "step", "accumulate", "start", "end", "reduction")
"""Arguments that change no element's arithmetic, or that the formula already contains."""


def _told(step: FigureStep) -> Told:
    how = [(sent, arithmetic(step, sent)) for sent in step.sends]
    sent_to = {sent.slot for sent in step.sends}
    official = enumerate(node(step.node).formulas.items())
    saved = {name: value for name, value in step.saved.items() if "_sym_" not in name}
    formulas = ((sent.slot, made.formula if made else moved(step, sent.slot)) for sent, made in how)
    births = {sent.slot: made.births() for sent, made in how if made is not None}
    return Told(
        title=_title(step),
        formulas={slot: text for slot, text in formulas if text},
        official=[f"{name}: {formula}" for slot, (name, formula) in official if slot in sent_to],
        tensors={name: _first(value) for name, value in saved.items() if _first(value) is not None},
        numbers={name: value for name, value in saved.items() if type(value) in (int, float) and name not in _QUIET},
        born=births,
        said={"vanilla": _vanilla(step, how, births), "ignoring": _ignoring(step, how, births)},
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


def _vanilla(step: FigureStep, how: How, births: Births) -> str:
    found = []
    for sent, made in how:
        summed = " in a sum" if made is not None and made.terms is not None else ""
        labels = _labels(sent.value["vanilla"])
        found += [(text + summed, labels[at]) for at, text in births.get(sent.slot, {}).items()]
    if found:
        return f"NaN is born: {_placed(found)}."
    arrives = any(_has_nan(value["vanilla"]) for value in step.arrives.values())
    passed = any(_has_nan(sent.value["vanilla"]) for sent in step.sends)
    if step.leaf:
        return _counted(step.arrives[0]["vanilla"])
    if arrives:
        return "NaN arrives, and is passed on." if passed else "NaN arrives, and is not passed on."
    return "NaN is born here." if passed else ""


def _ignoring(step: FigureStep, how: How, births: Births) -> str:
    arrives = [value["ignoring"] for value in step.arrives.values()]
    if step.leaf:
        return ("Ignored elements are written as 0. " if any(map(_masked, arrives)) else "") + _counted(arrives[0])
    told: dict[str, list[tuple[str, str]]] = {"Ignored: ": [], "Left out of the sum: ": [], "": []}
    counts = []
    for sent, made in how:
        value = sent.value["ignoring"]
        if not isinstance(value, Entries):
            continue
        if masked := _masked(value):
            counts.append(f"{masked} of {len(value)} elements")
        for at in births.get(sent.slot, ()):
            kind, label = value.kinds()[at], value.labels()[at]
            if kind is Kind.NAN:
                told[""].append(("Not ignored, so NaN stays", label))
            elif made is not None and isinstance(arrives[0], Entries) and (text := made.ignored(at, arrives[0].mask)):
                if kind is Kind.MASKED:
                    told["Ignored: "].append((f"{text} = --", label))
                else:
                    told["Left out of the sum: "].append((text, label))
    sentences = [f"{word}{_placed(found)}." for word, found in told.items() if found]
    if counts and not sentences and not any(map(_masked, arrives)):
        return f"From here on the loss ignores {', and '.join(counts)} (--)."
    return " ".join(sentences)


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
