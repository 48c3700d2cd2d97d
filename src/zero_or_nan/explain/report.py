"""What a watch has to tell: the report, and each origin in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .notebook import as_html, place

Kind = Literal["contaminated", "undefined", "overflow", "bad input"]

MEANS: dict[str, str] = {
    "contaminated": "the loss ignores this element: the gradient that you want exists",
    "undefined": "the loss uses this element, and the value or the derivative does not exist there, or it is infinite",
    "overflow": "the loss uses this element, and the number is too large for its dtype",
    "bad input": "the loss uses this element, and it was not finite when it came in",
}
"""What each kind says, in half a sentence."""


@dataclass
class Origin:
    """Where a NaN or an infinity was born that reached the loss or a gradient.

    Attributes:
        phase: "forward" when a value was not finite before backward began, "backward" when a derivative made it.
        operator: the public name of the forward function: "exp", "linear"; of an `autograd.Function` its class. A sign
            and a function in place have the plain name: `x * y` and `x.mul_(y)` are "mul", `x[0] = y` is "setitem".
        filename, line, source: the line of the user's code that called it, also for backward.
        module: the path of the module around it: "encoder.layers.2.norm"; empty outside of one.
        entries: the indices of the first elements, five at most, in row-major order; `count` says how many there were,
            in a tensor of `shape`, `dtype` and `device`. In forward that is the function's result, or the argument that
            came in with data; in backward it is the gradient that the derivative passed on.
        operands: what it was made of, to be checked by hand: "0 × inf", "exp(100) > 3.4e38", "0 / 0".
        kind: "contaminated" when the loss ignored the element, and the gradient that you want exists; "undefined" when
            the value or derivative does not exist, or is infinite, where the loss uses it; "overflow" when it is only
            too large for the dtype; "bad input" when it came in with data, a target or a parameter.
        reached: the names of what it reached: the loss, parameters, inputs.
        path: the functions on the way there.
        mended: whether `ignoring` gave finite gradients on this very graph; None where that was not tried.
        remedy: what to do: code to paste, with a sentence as a comment.
        chapter: the address of the section about it, in this library's book.
        times: how often it was found with the same line, operator, phase and kind: in forward once for each call.
        rank: of which process, where there are several.
        is_sure: whether it was found out that the loss uses the element, or ignores it; if not, a note says why.
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
    mended: bool | None = None
    remedy: str = ""
    chapter: str = ""
    times: int = 1
    rank: int | None = None
    is_sure: bool = True

    def __str__(self) -> str:
        lines = [
            f"{self.kind}: {self.operands or self.operator}",
            f"  {place(self.filename, self.line)}",
            f"    {self.source}" if self.source else "",
            f"  born in {self.phase}, by {self.operator}" + (f" in {self.module}" if self.module else ""),
            f"  {self.where}",
            f"  reached {', '.join(_some(self.reached))}" + (f" through {self.way}" if self.path else ""),
            f"  rank {self.rank}" if self.rank is not None else "",
            f"  {self.means}",
            *(f"    {line}" for line in self.remedy.splitlines()),
            f"  {self.chapter}" if self.chapter else "",
        ]
        return "\n".join(line for line in lines if line)

    @property
    def where(self) -> str:
        """Which elements, of what."""
        shown = ", ".join(str(list(entry)) for entry in self.entries[:3])
        more = ", …" if self.count > 3 else ""
        total = 1
        for size in self.shape:
            total *= size
        times = f"; {self.times} times" if self.times > 1 else ""
        kind = f"{self.dtype} of shape {list(self.shape)} on {self.device}"
        if not self.shape:
            return f"a {self.dtype} number on {self.device}{times}"
        return f"{self.count} of {total} elements: {shown}{more} in {kind}{times}"

    @property
    def way(self) -> str:
        """The path, with its middle left out where it is long."""
        return " → ".join(_some(self.path, 9))

    @property
    def means(self) -> str:
        """What its kind says, in half a sentence."""
        text = MEANS[self.kind] + self.is_mended
        if self.is_sure:
            return text
        return text.replace("the loss uses this element, and", "if the loss uses this element,")

    @property
    def is_mended(self) -> str:
        """What `ignoring` made of it, where that was tried."""
        if self.kind != "contaminated" or self.mended is None:
            return ""
        if self.mended:
            return "; ignoring.backward gave finite gradients on this very graph"
        return "; ignoring.backward did not fix it on this very graph"


@dataclass
class Report:
    """What happened in a block of code. A notebook shows it as HTML; elsewhere `_repr_html_()` returns that HTML.

    Attributes:
        origins: in order of time; empty when nothing that is not finite reached the loss or a gradient.
        passes: how many backward passes were watched.
        notes: what could not be looked into.
    """

    origins: list[Origin] = field(default_factory=list)
    passes: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing that is not finite reached the loss or a gradient."""
        return not self.origins

    def note(self, text: str) -> None:
        """Say once what could not be looked into."""
        if text not in self.notes:
            self.notes.append(text)

    def __iter__(self) -> Iterator[Origin]:
        return iter(self.origins)

    def __len__(self) -> int:
        return len(self.origins)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        if self.ok:
            passes = {0: "no backward pass was run", 1: "one backward pass was watched"}.get(
                self.passes, f"{self.passes} backward passes were watched"
            )
            head = f"nothing that is not finite reached the loss or a gradient ({passes})"
        else:
            head = f"{len(self.origins)} origins, in order of time" if len(self.origins) > 1 else "one origin"
        return "\n\n".join([head, *map(str, self.origins), *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_dict(self) -> dict[str, Any]:
        """All of it in numbers, texts, lists and dicts, by the names of the attributes, with `ok`."""
        told: dict[str, Any] = json.loads(self.to_json())
        return told

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps({"ok": self.ok, **asdict(self)}, indent=2)


class NotFiniteError(FloatingPointError):
    """A NaN or an infinity reached the loss or a gradient.

    Attributes:
        report: where it was born.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def _some(names: list[str], most: int = 8) -> list[str]:
    if len(names) <= most:
        return names
    half = most // 2
    return [*names[:half], f"… {len(names) - 2 * half} more …", *names[-half:]]
