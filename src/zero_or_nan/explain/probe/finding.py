"""The results that the user reads: each finding, with an input that shows it, and a test to paste.

A test has about ten lines, and fails until the loss is fixed. Each test runs once, to check that it does fail.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..program.tensors import tensors_in
from ..report.report import Origin, place
from .candidates import Change, Kind
from .loss import Case, Loss, Numbers
from .rounded import HALF

MOST_ELEMENTS = 400
"""The largest number of elements for which a test contains the inputs as text."""

_MOST_ROWS = 8

_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype)


class Edge(NamedTuple):
    """A call of a function that has an edge."""

    filename: str
    line: int
    function: str
    source: str


@dataclass
class Finding:
    """A line of the loss that produces a NaN or an infinity, and an input that shows it.

    Attributes:
        file, line, source: the line that failed.
        function: the public name of the function that failed, such as "log".
        kind: the kind that `explain` reports: "undefined", "overflow", "contaminated" or "bad input". Or "rounded" if
            all numbers are finite, but the loss is off by more than half of its value in float64.
        distance: how far the input is from the example, in words.
        inputs: the inputs that show it. Call the loss with them: `loss_fn(*finding.inputs)`.
        parameters: by name, the values of the parameters for this input, if they differ from those of the example.
        loss, gradients: the loss for this input, and its gradients by the names of inputs and parameters.
        remedy: the code to write instead, tried on these numbers, or advice.
        test: a test to paste, which fails until the loss is fixed; empty if the inputs are too large to print, or if
            the loss is a function whose parameters would have to change.
        origin: the `Origin` that `explain` reports; None if all numbers are finite.
        exact: what is off if all numbers are finite, in a sentence with both numbers.
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
    test: str
    remedy: str = ""
    origin: Origin | None = field(default=None, repr=False)
    exact: str = ""

    @property
    def bad_gradients(self) -> list[str]:
        """The names of the inputs and parameters whose gradients are not finite."""
        return [name for name, gradient in self.gradients.items() if not bool(gradient.isfinite().all())]

    def to_dict(self) -> dict[str, Any]:
        """The finding as a dict, without tensors: `test` has the inputs as code. `loss` is a string, such as "nan"."""
        kept = ("file", "line", "source", "function", "kind", "distance", "remedy", "test", "exact")
        told = {name: getattr(self, name) for name in kept}
        return {
            **told,
            "loss": str(self.loss.item()),
            "bad_gradients": self.bad_gradients,
            "origin": asdict(self.origin) if self.origin else None,
        }

    def __str__(self) -> str:
        bad = self.bad_gradients
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        reached = ["the loss"] * (not bool(self.loss.isfinite()))
        reached += [f"the gradient of {', '.join(bad[:3])}{more}"] * bool(bad)
        says = self.exact or f"{' and '.join(reached)} would not be finite"
        lines = [
            f"{self.kind}: {self.origin.operands if self.origin and self.origin.operands else self.function}",
            f"  {place(self.file, self.line)}",
            f"    {self.source}",
            f"  if {self.distance}: {says}",
            *([f"  {self.origin.means}"] if self.origin else []),
            *(f"    {line}" for line in self.remedy.splitlines()),
        ]
        if self.test:
            lines.append("  a test that fails until it is fixed:")
            lines += textwrap.indent(self.test, "    ").splitlines()
        return "\n".join(lines)


@dataclass
class ProbeReport:
    """The results of a search.

    Attributes:
        findings: the lines that can fail, each with the nearest input that was found.
        searched: the other calls that have an edge. The search did not reach their edges, which proves nothing.
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
        """True if the search found nothing."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict of numbers, strings, lists and dicts. Keys are the names of the attributes and `ok`.

        `findings` has a dict for each finding, with the names of its attributes, and `bad_gradients`: the names of the
        gradients that are not finite. Tensors are left out. `searched` has the `filename`, `line`, `function` and
        `source` of each call.
        """
        told: dict[str, Any] = json.loads(self.to_json())
        return told

    def to_json(self) -> str:
        """The same content as `to_dict`, as JSON."""
        findings = [finding.to_dict() for finding in self.findings]
        searched = [edge._asdict() for edge in self.searched]
        return json.dumps({"ok": self.ok, **vars(self), "findings": findings, "searched": searched}, indent=2)

    def __str__(self) -> str:
        count = len(self.findings)
        head = f"{count} lines can fail" if count > 1 else "one line can fail" if count else "nothing was found"
        parts = [f"{head} ({self.runs} runs of the loss)", *map(str, self.findings)]
        if self.searched:
            lines = (f"  {place(edge.filename, edge.line)}  {edge.function} in {edge.source}" for edge in self.searched)
            title = "no failure was found here, which does not prove that these are safe:"
            parts.append("\n".join([title, *lines]))
        return "\n\n".join([*parts, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return str(self)


# How far an input is from the example.


def distance(loss: Loss, found: Case, changes: Sequence[Change], kinds: Sequence[Kind]) -> str:
    """How far a case is from the example, in words."""
    said = [f"all parameters are {found.factor:g} times as large"] if found.factor != 1 else []
    phrases = {each.at: _phrase(each, loss.example.tensors[each.at], found.tensors[each.at]) for each in changes}
    for at, (before, after) in enumerate(zip(loss.example.tensors, found.tensors, strict=True)):
        if not torch.equal(before, after):
            said.append(phrases.get(at) or _changed(loss.names[at], before, after, kinds[at]))
    return " and ".join(said) or "the inputs are those of the example"


def _phrase(change: Change, before: Tensor, after: Tensor) -> str:
    """What is special about a value. Empty if its numbers show it, or if only a part of the change was needed."""
    whole, phrase = change.make(change.factor), change.phrase.replace("{:g}", f"{change.factor:g}")
    if after.equal(whole):
        return phrase
    if after.dim() < 2 or not any(words in phrase for words in ("is equal to", "is the opposite of")):
        return ""
    rows = (before != after).flatten(1).any(1).nonzero().flatten().tolist()
    return f"{phrase} in row {rows[0]}" if len(rows) == 1 and after[rows[0]].equal(whole[rows[0]]) else ""


def _changed(name: str, before: Tensor, after: Tensor, kind: Kind) -> str:
    """Which elements of an input have changed."""
    changed = before != after
    count, total = int(changed.sum()), changed.numel()
    values = after[changed].unique()
    rows = changed.flatten(1).any(1).nonzero().flatten().tolist() if changed.dim() > 1 else []
    if len(values) == 1:
        value = str(values[0].item()) if kind in ("flags", "labels") else f"{values[0].item():.6g}"
        is_value = after == values[0]
        if bool(is_value.all()):
            return f"{name} is {value}" if total == 1 else f"all of {name} is {value}"
        if len(rows) == 1 and after[0].numel() > 1 and bool(is_value[rows[0]].all()):
            return f"row {rows[0]} of {name} is {value} everywhere"
        if count == 1:
            return f"the element {changed.nonzero()[0].tolist()} of {name} is {value}"
        return f"{count} of {total} elements of {name} are {value}"
    if len(rows) == 1:
        numbers = [f"{number:.3g}" for number in after[rows[0]].flatten().tolist()]
        return f"row {rows[0]} of {name} is [{', '.join(numbers[:6])}{', …' if len(numbers) > 6 else ''}]"
    return f"{'all' if count == total else f'{count} of {total}'} elements of {name} change"


# The test.


def test_of(loss: Loss, case: Case, kinds: Sequence[Kind], is_finite: bool = False) -> str:
    """A test that fails on a case; empty if the inputs can't be written as text.

    If all numbers are finite, the test compares them with those in float64.
    """
    if sum(tensor.numel() for tensor in case.tensors) > MOST_ELEMENTS:
        return ""
    pairs = zip(case.tensors, kinds, strict=True)
    tensors = (_of_digits(tensor, 3) if kind in ("numbers", "positives") else tensor for tensor, kind in pairs)
    rounded = case._replace(tensors=tuple(tensors))
    for written in (*_of_one_row(loss, rounded), rounded, case):
        with contextlib.suppress(ValueError):
            text, name = _text(loss, written, loss.numbers(written, torch.float64) if is_finite else None)
            if loss.is_failed_by(text, name, written.factor):
                return text
    return ""


def _of_one_row(loss: Loss, case: Case) -> Iterator[Case]:
    """The case with one row of each input, if one row of the example does not fail for another reason."""
    is_strided = all(tensor.layout is torch.strided for tensor in case.tensors)
    rows = {len(tensor) for tensor in case.tensors if tensor.dim() and is_strided}
    for row in range(min(_MOST_ROWS, *rows) if len(rows) == 1 and rows != {1} else 0):
        before = loss.numbers(loss.example.of_row(row))
        if before is not None and before.is_finite and loss.fails(case.of_row(row)):
            yield case.of_row(row)


def _of_digits(tensor: Tensor, digits: int) -> Tensor:
    numbers = [float(f"{number:.{digits}g}") for number in tensor.flatten().tolist()]
    return torch.tensor(numbers, dtype=tensor.dtype, device=tensor.device).reshape(tensor.shape)


def _text(loss: Loss, case: Case, exact: Numbers | None) -> tuple[str, str]:
    """The test, and the name that it calls the loss by."""
    name, imports = _name_of(loss.function)
    is_module = isinstance(loss.function, nn.Module)
    names = iter(loss.names)
    lines, called, wanted = [], [], []
    for at, thing in enumerate(loss.inputs_of(case)):
        here = [next(names) for _ in tensors_in(thing)]
        code = _expression(thing)
        if isinstance(thing, Tensor):
            variable = here[0] if here[0].isidentifier() and here[0] != name else f"input_{at}"
            lines.append(f"{variable} = {code}")
            wanted += [variable] * thing.requires_grad
            code = variable
        called.append(code)
    if case.factor != 1:
        if not is_module:
            raise ValueError("the test can't name the parameters")
        lines += [f"for parameter in {name}.parameters():", f"    parameter.data *= {case.factor:g}"]
    if loss.is_random:
        lines.append(f"torch.manual_seed({loss.seed})")
    lines.append(f"loss = {name}({', '.join(called)}){loss.path}")
    lines.append("assert loss.isfinite()" if exact is None else _close("loss", exact.loss))
    if wanted or loss.parameters:
        lines.append("loss.backward()")
    right = exact.gradients if exact is not None else {}
    lines += [
        _close(f"{variable}.grad", right[variable]) if variable in right else f"assert {variable}.grad.isfinite().all()"
        for variable in wanted
    ]
    if is_module and loss.parameters:
        lines.append(f"for parameter in {name}.parameters():")
        lines.append("    assert parameter.grad is None or parameter.grad.isfinite().all()")
    title = f"def test_{name.rpartition('.')[2].strip('_')}_is_{'finite' if exact is None else 'right'}():"
    return "\n".join(["import torch", *imports, "", "", title, *(f"    {line}" for line in lines), ""]), name


def _close(code: str, exact: Tensor) -> str:
    """A line that fails if a tensor is off by more than half of the largest number that it should have."""
    largest = float(exact.abs().max())
    right = _tensor(_of_digits(exact, 6))
    return f"torch.testing.assert_close({code}.double(), {right}, rtol=0, atol={HALF * largest:.3g})"


def _name_of(function: Callable[..., Any]) -> tuple[str, list[str]]:
    """A name for a loss, and the line that imports it, if it is in a module that can be imported."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", None) or ""
    is_global = name.isidentifier() and getattr(sys.modules.get(module), name, None) is function
    imports = [f"from {module} import {name}"] if is_global and module != "__main__" else []
    return name if name.isidentifier() else "loss_fn", imports


def _expression(thing: Any) -> str:
    """An input as code."""
    if isinstance(thing, Tensor):
        return _tensor(thing)
    if type(thing) in (tuple, list):
        parts = ", ".join(map(_expression, thing))
        return f"[{parts}]" if isinstance(thing, list) else f"({parts},)"
    if type(thing) is dict:
        return f"{{{', '.join(f'{key!r}: {_expression(value)}' for key, value in thing.items())}}}"
    if type(thing) not in _PLAIN:
        raise ValueError(f"no code for {type(thing).__name__}")
    return repr(thing)


def _tensor(tensor: Tensor) -> str:
    values = tensor.detach()
    options = [] if values.dtype in (torch.float32, torch.int64, torch.bool) else [f"dtype={values.dtype}"]
    is_default = values.device.type == torch.empty(0).device.type == "cpu"  # where the test runs later
    options += [] if is_default else [f"device={str(values.device)!r}"]
    options += ["requires_grad=True"] * tensor.requires_grad
    if values.numel() > 8 and bool((values == values.flatten()[0]).all()):
        start = f"torch.full({tuple(values.shape)}, {_numbers(values.flatten()[0])}"
    else:
        start = f"torch.tensor({_numbers(values)}"
    return f"{', '.join([start, *options])})"


def _numbers(values: Tensor) -> str:
    """Numbers as code, with as many digits as their dtype needs."""
    if values.dim():
        return f"[{', '.join(map(_numbers, values))}]"
    number = values.item()
    if not values.is_floating_point():
        return repr(number)
    if math.isinf(number):
        return f'float("{number}")'
    shorter = (float(f"{number:.{digits}g}") for digits in range(1, 17))
    return repr(next((each for each in shorter if values.new_tensor(each).item() == number), number))
