"""What the user reads: each finding, with the input that shows it, and a test to paste."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..report.report import Origin, place
from .edges import Edge
from .kinds import Kind
from .running import Loss, Numbers

MOST_PRINTED = 400
"""The number of elements up to which a test has the inputs as text."""


@dataclass
class Finding:
    """A line of the loss that gives a NaN or an infinity, and an input that shows it.

    Attributes:
        file, line, source: the line that failed.
        function: the public name of the function that failed, such as "log".
        kind: what `explain` says of it: "undefined", "overflow", "contaminated" or "bad input".
        distance: how far the input is from the example, in words.
        inputs: the inputs that show it, to call the loss with: `loss_fn(*finding.inputs)`.
        parameters: by name, the values that the parameters have there, if they differ from those of the example.
        loss, gradients: what the loss gives there, and its gradients by the names of inputs and parameters.
        remedy: what to write instead, tried on these numbers, or advice.
        test: a test to paste, which fails until the loss is fixed; empty if the inputs are too large to print.
        origin: everything that `explain` says of it.
    """

    file: str
    line: int
    source: str
    function: str
    kind: str
    distance: str
    inputs: tuple[Any, ...]
    parameters: dict[str, Tensor]
    loss: Tensor
    gradients: dict[str, Tensor]
    remedy: str
    test: str
    origin: Origin = field(repr=False)

    def __str__(self) -> str:
        bad = [name for name, gradient in self.gradients.items() if not bool(gradient.isfinite().all())]
        reached = " and ".join(filter(None, ["the loss" * (not bool(self.loss.isfinite())), _of_gradients(bad)]))
        test = ["  a test that fails until it is fixed:", *textwrap.indent(self.test, "    ").splitlines()]
        lines = [
            f"{self.kind}: {self.origin.operands or self.function}",
            f"  {place(self.file, self.line)}",
            f"    {self.source}",
            f"  if {self.distance}: {reached} would not be finite",
            f"  {self.origin.means}",
            *(f"    {line}" for line in self.remedy.splitlines()),
            *(test if self.test else []),
        ]
        return "\n".join(lines)


def _of_gradients(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the gradient of {', '.join(names[:3])}{more}" if names else ""


@dataclass
class ProbeReport:
    """What a search has found.

    Attributes:
        findings: the lines that can fail, each with the nearest input that was found.
        searched: the other calls that have an edge. The search did not reach it, which proves nothing.
        runs: how often the loss was run.
        seconds: how long the search took.
        notes: what limits the search.
    """

    findings: list[Finding] = field(default_factory=list)
    searched: list[Edge] = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        count = len(self.findings)
        head = f"{count} lines can fail" if count > 1 else "one line can fail" if count else "nothing was found"
        searched = [f"  {place(edge.filename, edge.line)}  {edge.function} in {edge.source}" for edge in self.searched]
        parts = [
            f"{head} ({self.runs} runs of the loss)",
            *map(str, self.findings),
            *(
                ["\n".join(["searched without success, which does not prove that they are safe:", *searched])]
                if searched
                else []
            ),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return str(self)


def distance(loss: Loss, found: Any, phrase: str, factors: dict[int, float], kinds: list[Kind]) -> str:
    """How far a case is from the example, in words."""
    said = []
    if found.factor != 1:
        said.append(f"all parameters are {found.factor:g} times as large")
    if not phrase or factors:
        for at, (before, after) in enumerate(zip(loss.example.tensors, found.tensors, strict=True)):
            if before.shape == after.shape and not torch.equal(before, after):
                said.append(_changed(loss.names[at], before, after, factors.get(at), kinds[at]))
    return " and ".join(filter(None, [phrase if not factors else "", *said])) or "the inputs are those of the example"


def _changed(name: str, before: Tensor, after: Tensor, factor: float | None, kind: Kind) -> str:
    """How one input has changed."""
    if factor is not None:
        if torch.equal(after, before * factor):
            return f"{name} is {factor:g} times as large"
        if torch.equal(after, before * -factor):
            return f"{name} is {factor:g} times as large, with the other sign"
        if torch.equal(after, before / factor):
            return f"{name} is {factor:g} times as small"
        if torch.equal(after, before + factor):
            return f"{name} is larger by {factor:g}"
        if torch.equal(after, before - factor):
            return f"{name} is smaller by {factor:g}"
        return f"{name} has the probabilities of logits that are {factor:g} times as large"
    changed = before != after
    count, total = int(changed.sum()), changed.numel()
    values = after[changed].unique()
    value = f"{values[0].item():.6g}" if kind not in ("flags", "labels") else f"{values[0].item()}"
    rows = changed.reshape(len(changed), -1).any(-1).nonzero().flatten().tolist() if changed.dim() > 1 else []
    if len(values) == 1 and bool((after == values[0]).all()):
        return f"{name} is {value}" if total == 1 else f"all of {name} is {value}"
    if len(rows) == 1 and bool((after[rows[0]] == values[0]).all()) and len(values) == 1 and after[0].numel() > 1:
        return f"row {rows[0]} of {name} is {value} everywhere"
    if len(values) == 1:
        where = ", ".join(str(entry) for entry in changed.nonzero()[:1].tolist())
        return (
            f"the element {where} of {name} is {value}"
            if count == 1
            else f"{count} of {total} elements of {name} are {value}"
        )
    if len(rows) == 1:
        return f"row {rows[0]} of {name} is {_short(after[rows[0]])}"
    return f"{count} of {total} elements of {name} change"


def _short(row: Tensor) -> str:
    numbers = [f"{number:.3g}" for number in row.flatten()[:6].tolist()]
    return f"[{', '.join(numbers)}{', …' if row.numel() > 6 else ''}]"


def named_gradients(loss: Loss, numbers: Numbers) -> dict[str, Tensor]:
    """The gradients, by the names of inputs and parameters."""
    names = [name for at, name in enumerate(loss.names) if loss.wants(at)] + [*loss.parameters]
    return {name: each for name, each in zip(names, numbers.gradients, strict=True) if each is not None}
