"""Runs every remedy on every row of `helpers.recipes`, and judges each program by a reference gradient."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.masked import as_masked_tensor, masked_tensor

from zero_or_nan import ignoring

from .compare import ROUNDED
from .entries import Absent, Entries, Outcome, outcome
from .recipes import REWRITES, Situation
from .reference import reference
from .verdict import judge

COLUMNS = (
    "vanilla",
    "select first",
    "double where",
    "substitute",
    "multiply",
    "nan_to_num",
    "epsilon",
    "hook on result",
    "hook",
    "module hook",
    "scrub",
    "clip",
    "clip or stop",
    "masked",
    "ignoring",
)
"""The methods, in the order of the table: plain PyTorch, changes of the forward code, changes of the gradient."""

WORDS = {
    "right": "✓",
    "wrong number": "≠",
    "NaN or inf": "✗",
    "error": "!",
    "undefined": "∅",
    "chosen": "◆",
    "no place": "·",
}
"""The words for a result, with their marks.

- *right*: every element is the reference's, up to `ROUNDED` ulps, and 0 or masked if the loss ignores the element.
- *wrong number*: every element is finite, and at least one of them is not the gradient. Nothing warns about it.
- *NaN or inf*: at least one element is not finite, although its gradient exists.
- *error*: the program raised.
- *undefined*: the gradient of an element does not exist. It is left NaN, infinite or masked, and the rest is right.
- *chosen*: the gradient of an element does not exist, and the result has a finite number there. The rest is right.
- *no place*: the remedy can't be written for this computation.
"""

STEP = 1e-6
"""How far an element moves when the slope of a loss is measured, in float64."""

_BEFORE = {"hook": "x.register_hook(torch.nan_to_num)\n"}
_AFTER_Y = {"nan_to_num": "y = y.nan_to_num()\n", "hook on result": "y.register_hook(torch.nan_to_num)\n"}
_BACKWARD = {
    "scrub": "loss.backward()\nx.grad.nan_to_num_(nan=0, posinf=1e5, neginf=-1e5)\n",
    "clip": "loss.backward()\ntorch.nn.utils.clip_grad_norm_([x], max_norm=100)\n",
    "clip or stop": "loss.backward()\ntorch.nn.utils.clip_grad_norm_([x], max_norm=100, error_if_nonfinite=True)\n",
    "ignoring": "ignoring.backward(loss)\n",
}
_MODULE_HOOK = """\
def scrubbed(module, grad_input, grad_output):
    return tuple(g if g is None else g.nan_to_num() for g in grad_input)
model.register_full_backward_hook(scrubbed)
"""


def program(situation: Situation, remedy: str) -> str | None:
    """The lines of a remedy, from the forward code to the gradient; None if the remedy can't be written here."""
    if remedy in REWRITES:
        code = situation.rewritten(remedy)
        return None if code is None else f"{code}\nloss.backward()\n"
    if remedy == "module hook":
        return _module(situation, _MODULE_HOOK)
    lines = situation.plain.splitlines(keepends=True)
    made = next(number for number, line in enumerate(lines) if line.startswith("y ="))
    lines.insert(made + 1, _AFTER_Y.get(remedy, ""))
    return f"{_BEFORE.get(remedy, '')}{''.join(lines)}\n{_BACKWARD.get(remedy, 'loss.backward()' + chr(10))}"


def _module(situation: Situation, hook: str) -> str:
    """The plain code as a module. The leaf is the module's input, or its parameter."""
    body = "".join(f"        {line}\n" for line in situation.plain.replace("loss = ", "return ").splitlines())
    parameter = "x = model.x = torch.nn.Parameter(x)\n" if situation.data else ""
    return (
        f"class Model(torch.nn.Module):\n    def forward(self, {situation.data or 'x'}):\n{body}"
        f"model = Model()\n{parameter}{hook}loss = model({situation.data or 'x'})\nloss.backward()\n"
    )


@dataclass(frozen=True)
class Cell:
    """A remedy on a row, with its results.

    Attributes:
        word: one of `WORDS`.
        gradient: the content of `x.grad`, or the exception.
        lines: how many lines of the plain program are changed or added.
        code: the program.
    """

    word: str
    gradient: Outcome
    lines: int = 0
    code: str = ""


@dataclass(frozen=True)
class Row:
    """A situation with its reference gradient, and a cell for each of `COLUMNS`."""

    situation: Situation
    reference: Entries
    cells: dict[str, Cell]

    @property
    def marks(self) -> str:
        """The marks of all columns as one text, which a page states as a claim.

        >>> from helpers.recipes import IGNORED
        >>> compare(IGNORED[:1])[0].marks
        '✗✓✓✓✗✗·✗✓✓✓✗!✓✓'
        """
        return "".join(WORDS[cell.word] for cell in self.cells.values())


def compare(situations: Iterable[Situation]) -> list[Row]:
    """Run every remedy on every situation."""
    return [_row(situation) for situation in situations]


def _row(situation: Situation) -> Row:
    names = namespace(situation)
    used = torch.as_tensor(eval(situation.used, names)) if situation.used else None
    wide = {name: value.double() if _is_float(value) else value for name, value in names.items()}
    wanted = reference(lambda x: eval(situation.terms, {**wide, "x": x}).sum(), names["x"], used)
    if not situation.ignores:
        # PyTorch gives a number by convention at some points without a slope, such as the 0 of `atan2` at the origin.
        for at, number in enumerate(wanted.data.flatten().tolist()):
            if not all(_slope_is(number, situation, wide, at, step) for step in (-STEP, STEP)):
                wanted.data.view(-1)[at] = math.nan
    return Row(situation, wanted, {remedy: _cell(situation, wanted, remedy) for remedy in COLUMNS})


def _slope_is(number: float, situation: Situation, names: dict[str, Any], element: int, step: float) -> bool:
    """Whether a number is the difference quotient of the loss, in float64, when one element moves by `step`.

    Terms of the loss that do not move count as 0, also if they are NaN or infinite.
    """
    before = names["x"].detach()
    after = before.clone()
    after.view(-1)[element] += step
    old, new = (eval(situation.terms, {**names, "x": x}) for x in (before, after))
    moved = torch.where((old == new) | (old.isnan() & new.isnan()), 0, new - old).sum().item()
    return abs(moved / step - number) <= 1e-3 * max(1.0, abs(number))


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def namespace(situation: Situation) -> dict[str, Any]:
    """The names that the code of a situation can use: its leaf, its data, and PyTorch."""
    names: dict[str, Any] = {
        "torch": torch,
        "F": F,
        "inf": math.inf,
        "nan": math.nan,
        "ignoring": ignoring,
        "masked_tensor": masked_tensor,
        "as_masked_tensor": as_masked_tensor,
        "x": torch.tensor(situation.x, requires_grad=True),
    }
    exec(situation.given, names)
    return names


def _cell(situation: Situation, wanted: Entries, remedy: str) -> Cell:
    code = program(situation, remedy)
    if code is None:
        return Cell("no place", Absent())
    lines = changed(plain_of(situation, remedy), code)
    names = namespace(situation)
    # torch.masked warns that it is a prototype, and module hooks warn about inputs.
    with warnings.catch_warnings(action="ignore"):
        try:
            exec(code, names)
        except Exception as error:
            return Cell("error", outcome(error), lines, code)
        gradient = outcome(names["x"].grad)
    return Cell(_word(wanted, gradient), gradient, lines, code)


def plain_of(situation: Situation, remedy: str) -> str:
    """The plain program that a remedy changes. For a hook on a module, this is the program with the module."""
    code = _module(situation, "") if remedy == "module hook" else program(situation, "vanilla")
    assert code is not None
    return code


def changed(before: str, after: str) -> int:
    """How many lines of a program change: the number of new lines or of removed lines, whichever is larger.

    >>> changed("y = x.log()", "y = (x + 1e-8).log()")
    1
    """
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    return max((old - new).total(), (new - old).total())


def _word(wanted: Entries, gradient: Outcome) -> str:
    if not isinstance(gradient, Entries):
        return "error"
    shown, number, exists = gradient.mask, gradient.data.isfinite(), wanted.data.isfinite()
    words = zip(judge(wanted, gradient, ROUNDED), exists.flatten().tolist(), strict=True)
    if any(word != "right" for word, defined in words if defined):
        return "wrong number" if (number | ~shown).all() else "NaN or inf"
    if exists.all():
        return "right"
    return "chosen" if (number & shown & ~exists).any() else "undefined"
