"""The report that the user reads, and each origin in it, as text, as HTML and as JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from textwrap import dedent
from typing import Any, Literal

from ..births.diagnosis import RESULT, WRITTEN
from ..births.provenance import Kind
from ..program.code import printable
from . import notebook
from .notebook import escape

MEANS: dict[str, str] = {
    "contaminated": "the loss ignores this element, so the right gradient exists",
    "undefined": "the loss uses this element, and the {} there is infinite or does not exist",
    "overflow": "the loss uses this element, and the number is too large for its dtype",
    "bad input": "the loss uses this element, and it was not finite when it came in",
}
"""The meaning of each kind, in half a sentence."""

_HAS = {
    RESULT: "a result has this element",
    WRITTEN: "your code wrote this element into a tensor that needs a gradient",
}

MOST_PRINTED = 20
"""The largest number of origins that are printed."""


@dataclass
class Measured:
    """The result of code that ran in place of the failed call, on the numbers of this call.

    Attributes:
        value: the first element of the result that was not finite before. None if only the code's comment has it.
        gradient: the gradient at this element. None if all gradients were only compared with exact arithmetic.
        is_exact: True if these are the numbers of exact arithmetic. If False, they are a choice.
        choice: the choice, as a sentence; empty if there was nothing to choose.
    """

    value: float | None
    gradient: float | None
    is_exact: bool
    choice: str


@dataclass
class Remedy:
    """A fix, or advice.

    Attributes:
        code: the code to paste. Advice has lines of code and comments.
        replaces: the line of your code that it replaces; None if you have to put it into a part of a line.
        tried: the result of running it; None if it was not tried.
    """

    code: str
    replaces: int | None
    tried: Measured | None


@dataclass
class Origin:
    """The place where a NaN or an infinity that reached the loss or a gradient first appeared.

    Attributes:
        phase: "forward" if the value was not finite before backward began, "backward" if a derivative produced it.
        operator: the public name of the forward function, such as "exp" or "linear". For an `autograd.Function`, the
            name of its class. Python operators and in-place functions have the name of the plain function: `x * y` and
            `x.mul_(y)` are "mul", and `x[0] = y` is "setitem".
        filename, line, source: the line of your code that called the function, even if the failure happened in
            backward.
        module: the path of the module that called the function, such as "encoder.layers.2.norm". If an optimizer called
            it, the optimizer's name, such as "Adam.step". Otherwise empty.
        entries: the indices of the first elements that are not finite, at most five, in row-major order.
        count: the number of all elements that are not finite.
        shape, dtype, device: those of the tensor that holds the elements. In forward, this tensor is the function's
            result, or the argument that was already not finite. In backward, it is the gradient that the derivative
            passed on.
        operands: the computation that produced the NaN or infinity, so that you can check it by hand: "0 × inf",
            "exp(100) > 3.4e38", "0 / 0".
        kind: "contaminated" if the loss ignored the element, so that the gradient that you want exists. "undefined" if
            the loss uses the element, and its value or derivative does not exist or is infinite. "overflow" if the
            number exists, but this number, or an intermediate one, does not fit the dtype. "bad input" if the number
            came in with data, a target or a parameter.
        reached: the names of the tensors that the NaN or infinity reached: the loss, parameters, inputs.
        path: the functions between the origin and the tensors in `reached`.
        fixed: whether `ignoring` gave finite gradients on the same graph. None if `ignoring` was not tried.
        remedy: the fix: code to paste, with a sentence as a comment.
        replaces: the line of your code that the remedy replaces. Such a remedy was tried: it ran on the numbers of this
            call, and gave the right value and gradient, or the number that it claims to choose. None for advice.
        until: the last line that the remedy replaces, if it replaces several lines; else None.
        remedies: the same for programs, the best remedy first: `code`, `replaces`, and `tried`, which has the `value`
            and the `gradient`, `is_exact`, and the `choice`.
        exact: the value in exact arithmetic, and the intermediate number that does not fit its dtype, if only such a
            number was lost. Empty if the exact value is not finite either, or if it could not be found.
        chapter: the address of the book's section about this kind of origin.
        times: how often this origin was found with the same line, operator, phase and kind. In forward, each call of
            the line counts.
        rank: the rank of the process, if there are several processes.
        is_sure: whether `explain` could determine if the loss uses the element or ignores it. If not, a note gives the
            reason.
        again: the outcome of the training step when it ran again with the remedy. Empty if it did not run again.
        tie: how PyTorch treats the element, if the element is at a tie, such as the 0 of `relu`. The kind follows from
            this convention.
    """

    phase: Literal["forward", "backward"]
    operator: str
    filename: str
    line: int
    source: str
    module: str
    entries: list[tuple[int, ...]]
    count: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    operands: str
    kind: Kind
    reached: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    fixed: bool | None = None
    remedy: str = ""
    replaces: int | None = None
    until: int | None = None
    remedies: list[Remedy] = field(default_factory=list)
    exact: str = ""
    chapter: str = ""
    times: int = 1
    rank: int | None = None
    is_sure: bool = True
    again: str = ""
    tie: str = ""

    def __str__(self) -> str:
        lines = [
            f"{self.kind}: {self.operands or self.operator}",
            f"  {place(self.filename, self.line)}",
            f"    {self.source}" if self.source else "",
            f"  {self.means}",
            *(f"    {line}" for line in self.to_do.splitlines()),
            f"  {self.again}",
            f"  {self.chapter}" if self.chapter else "",
            f"  born in {self.phase}, by {self.operator}{f' in {self.module}' if self.module else ''}: {self.where}",
            f"  rank {self.rank}" if self.rank is not None else "",
            f"  reached {', '.join(_some(self.reached))}" + (f" through {self.way}" if self.path else ""),
        ]
        return "\n".join(printable(line) for line in lines if line.strip())

    @property
    def where(self) -> str:
        """The elements that are not finite, and the tensor that holds them, as text."""
        shown = ", ".join(str(list(entry)) for entry in self.entries[:3])
        more = ", …" if self.count > 3 else ""
        times = f"; {self.times} times" if self.times > 1 else ""
        kind = f"{self.dtype} of shape {list(self.shape)} on {self.device}"
        if not self.shape:
            return f"a {self.dtype} number on {self.device}{times}"
        return f"{self.count} of {math.prod(self.shape)} elements: {shown}{more} in {kind}{times}"

    @property
    def way(self) -> str:
        """The path as text. If it is long, its middle is left out."""
        return " → ".join(_some(self.path, 9))

    @property
    def to_do(self) -> str:
        """The remedy. If it replaces other lines than the origin's, their numbers are above it."""
        if self.until is not None:
            return f"# in place of lines {self.replaces} to {self.until}:\n{self.remedy}"
        is_elsewhere = self.replaces not in (None, self.line) and "  # in place of " not in self.remedy
        return f"# in place of line {self.replaces}:\n{self.remedy}" if is_elsewhere else self.remedy

    @property
    def means(self) -> str:
        """The meaning of the kind, in half a sentence."""
        text = MEANS[self.kind].format("value" if self.phase == "forward" else "derivative")
        if self.exact:
            text = f"the loss uses this element, {self.exact}"
        has = _HAS.get(next(iter(self.reached), ""))
        if self.module.endswith(".step"):
            has = "the optimizer wrote this element into a parameter"
        text = text.replace("the loss uses this element", has) if has else text
        if self.tie:
            text = f"{text.partition(', so')[0]}, {self.tie}" if self.kind == "contaminated" else f"{text}; {self.tie}"
        if self.kind == "contaminated" and self.fixed is not None:
            gave = "it gave" if self.fixed else "alone it did not give"
            text += f"; ignoring.backward was tried on this graph, and {gave} finite gradients"
        if self.is_sure:
            return text
        return text.replace("the loss uses this element, and", "if the loss uses this element,")

    def _card(self) -> str:
        module = f" in {notebook.word(self.module)}" if self.module else ""
        rank = f", rank {self.rank}" if self.rank is not None else ""
        steps = self.path if len(self.path) <= 8 else [*self.path[:4], "…", *self.path[-4:]]
        more = f" and {len(self.reached) - 4} more" if len(self.reached) > 4 else ""
        rows = {
            "where": escape(place(self.filename, self.line)) + notebook.code(self.source),
            "it means": escape(_capitalized(self.means) + "."),
            "to do": notebook.code(self.to_do) + escape(self.again and f"{self.again} ") + notebook.link(self.chapter),
            "born in": f"{self.phase}, by {notebook.word(self.operator)}{module}{rank}<br>{escape(self.where)}",
            "reached": notebook.path(steps, ", ".join(self.reached[:4]) + more),
        }
        return notebook.card(self.kind, self.operands or self.operator, rows)


@dataclass
class Report:
    """What happened in a block of code. A notebook shows it as HTML; elsewhere `_repr_html_()` returns that HTML.

    Attributes:
        origins: every origin, in order of time. Empty if the loss and all gradients are finite.
        passes: the number of backward passes that were watched.
        notes: what `explain` could not check, or was not sure about.
        cause: what led to the origins over the earlier steps, such as a divergence, with the numbers, what to do, and
            the book's section about it. Empty if the earlier steps do not show a cause.
    """

    origins: list[Origin] = field(default_factory=list)
    passes: int = 0
    notes: list[str] = field(default_factory=list)
    cause: str = ""

    came_from_another_process = False  # a gradient that is not finite: this process only received it

    @property
    def ok(self) -> bool:
        """True if the loss and all gradients are finite, as far as this process computed them."""
        return not self.origins

    @property
    def begins_with_overflow(self) -> bool:
        """Whether the first origin is a number that is too large for its dtype."""
        first = None if self.ok else self.origins[0]
        return first is not None and first.kind == "overflow" and (not first.exact or " ends at " in first.exact)

    def note(self, text: str) -> None:
        """Add a note about something that could not be checked. The same note appears only once."""
        if (text := printable(text)) not in self.notes:
            self.notes.append(text)

    def __iter__(self) -> Iterator[Origin]:
        return iter(self.origins)

    def __len__(self) -> int:
        return len(self.origins)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        notes = [f"note: {note}" for note in [*self._left_out, *self.notes]]
        origins = map(str, self.origins[:MOST_PRINTED])
        return "\n\n".join([*filter(None, [self.cause]), self._head, *origins, *notes])

    @property
    def _left_out(self) -> list[str]:
        """A note on the origins that are not printed."""
        more = len(self.origins) - MOST_PRINTED
        return [f"{more} more origins are in the list `origins` of this report"] if more > 0 else []

    @property
    def _head(self) -> str:
        if not self.ok:
            return f"{len(self.origins)} origins, in order of time" if len(self.origins) > 1 else "one origin"
        passes = {0: "no backward pass was run", 1: "one backward pass was watched"}.get(
            self.passes, f"{self.passes} backward passes were watched"
        )
        if self.came_from_another_process:
            return f"a gradient is not finite, and it came from another process ({passes})"
        return f"nothing that is not finite reached the loss or a gradient ({passes})"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        notes = [notebook.sentence(f"Note: {note}.") for note in [*self._left_out, *self.notes]]
        if self.ok:
            mark = "" if self.came_from_another_process else "✓ "
            return notebook.cards(f"{mark}{_capitalized(self._head)}.", notes)
        head = [notebook.sentence(f"{self._head}:")] if len(self.origins) > 1 else []
        remedy = [line for line in self.cause.splitlines() if line.startswith("    ")]
        *facts, page = [line.strip() for line in self.cause.splitlines() if line not in remedy] or [""]
        cause = [
            *(notebook.sentence(_capitalized(f"{fact}.")) for fact in facts),
            notebook.code(dedent("\n".join(remedy))),
            notebook.link(page),
        ]
        return notebook.cards("", [*cause, *head, *(origin._card() for origin in self.origins[:MOST_PRINTED]), *notes])

    def to_dict(self) -> dict[str, Any]:
        """The whole report as a dict of numbers, strings, lists and dicts.

        Keys are the names of the attributes and `ok`. `origins` has a dict for each `Origin`, with its attributes, and
        `remedies` in it has a dict for each remedy.

        >>> import torch
        >>> from zero_or_nan import explain
        >>> with explain() as report:
        ...     torch.zeros(1, requires_grad=True).sqrt().sum().backward()
        >>> [remedy] = report.to_dict()["origins"][0]["remedies"]
        >>> sorted(remedy), sorted(remedy["tried"])
        (['code', 'replaces', 'tried'], ['choice', 'gradient', 'is_exact', 'value'])
        """
        told: dict[str, Any] = json.loads(self.to_json())
        return told

    def to_json(self) -> str:
        """The same content as `to_dict`, as JSON."""
        return json.dumps({"ok": self.ok, **asdict(self)}, indent=2)


class NotFiniteError(FloatingPointError):
    """A NaN or an infinity reached the loss or a gradient.

    Attributes:
        report: the `Report`, which says where the NaN or infinity first appeared.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def _some(names: list[str], most: int = 8) -> list[str]:
    if len(names) <= most:
        return names
    half = most // 2
    return [*names[:half], f"… {len(names) - 2 * half} more …", *names[-half:]]


def place(filename: str, line: int) -> str:
    """The place of a line, as a reader of a notebook knows it: a cell by its number, a file by its relative path.

    >>> place("<ipython-input-7-0e1f2a>", 3)
    'Cell In[7], line 3'
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(filename)
    older = re.match(r"<ipython-input-(\d+)-", filename)
    if named is None and older is not None:
        named = "Cell", f"In[{older[1]}]"
    if named is not None:
        return f"{' '.join(named)}, line {line}"
    with contextlib.suppress(OSError):  # the working directory is gone
        filename = filename.removeprefix(os.getcwd() + os.sep)
    return f"{filename}:{line}"
