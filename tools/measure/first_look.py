"""Whether the remedies that `explain` prints work: each is written into a program from a public report.

The programs are in `tests/zero_or_nan/explain/first_look.md`, in two halves. The record keeps the answers to the
second half from before anybody had read one of them.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zero_or_nan import explain
from zero_or_nan.explain import Origin, Report

from ..project import Project
from .corpora import Program, answers, default_dtype_kept, programs, variables, written
from .records import keep, made_with, prose, read

FILE = Path("tests/zero_or_nan/explain/first_look.md")
SECONDS = 120.0
MOST_ORIGINS = 5
"""How often a remedy is written into a program, if each time another origin is left."""

ANSWERS = ("works", "works by a choice", "advice", "wrong", "not enough", "nothing")
"""What becomes of a program: the remedy, pasted, gives the right numbers; or finite ones, whose value a person has to
choose; there is no line to paste; the line gives wrong numbers; or numbers that are not finite; nothing is found."""


@dataclass(frozen=True)
class Answer:
    """What `explain` said of a program. A healthy program has an empty remedy.

    `told` has the kind, the phase, the operator and the line of each origin, and the last line of its remedy.
    """

    name: str
    half: str
    is_line_right: bool
    is_kind_right: bool
    remedy: str
    told: list[str]


def first_look(project: Project, *names: str) -> None:
    """Run all programs, and write the answers to `results/measured/first_look.json`; of named programs, print them."""
    held = read(project, "first_look").get("first", [])
    told = "{0.name}: {0.remedy}".format
    if parts := answers(programs(project.root / FILE), names, held, answer, SECONDS, _lost, told):
        work, first = parts["work"], parts["held"]
        keep(project, "first_look", {**made_with(), "work": work, "first": first})
        print(summed(work), summed(first), sep="\n")


def _lost(program: Program, why: str) -> Answer:
    return Answer(program.name, program.part, False, False, f"nothing: {why}", [])


def answer(program: Program) -> Answer:
    """Explain a program, paste what is printed, and run it again."""
    quiet = contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, quiet, default_dtype_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names, _, report = _explained(Path(folder), program.source)
        told = [_in_short(origin) for origin in report]
        if "healthy" in program.kinds:
            return Answer(program.name, program.part, report.ok, report.ok, "", told)
        if report.ok:
            return Answer(program.name, program.part, False, False, "nothing", told)
        first = report.origins[0]
        remedy = _pasted(Path(folder), program.source, first, names["right"]())
        is_line_right, is_kind_right = program.has_at_fault(first.source), first.kind in program.kinds
        return Answer(program.name, program.part, is_line_right, is_kind_right, remedy, told)


def _in_short(origin: Origin) -> str:
    *_, last = origin.remedy.splitlines()
    return f"{origin.kind} {origin.phase} {origin.operator}, line {origin.line}: {last}"


def _explained(folder: Path, source: str) -> tuple[dict[str, Any], dict[str, Tensor], Report]:
    """The variables of a program, the numbers that it gives, and the report on it."""
    names = variables(folder, source)
    with explain() as report:
        numbers = names["program"]()
    return names, {key: torch.as_tensor(value) for key, value in numbers.items()}, report


def _pasted(folder: Path, source: str, origin: Origin, right: dict[str, Any] | None) -> str:
    """What becomes of a program with the remedy of its first origin, and then with that of the next."""
    for at in range(MOST_ORIGINS):
        changed = written(source, origin)
        if changed is None:
            return "advice" if at == 0 else "not enough"
        source = changed
        try:
            _, numbers, report = _explained(folder, source)
        except Exception as error:
            return f"wrong: {type(error).__name__}"
        if all(bool(number.isfinite().all()) for number in numbers.values()):
            if right is None:
                return "works by a choice"
            return "works" if all(_agree(numbers[key], right[key]) for key in right) else "wrong"
        if report.ok:
            return "not enough"
        origin = report.origins[0]
    return "not enough"


def _agree(number: Tensor, right: Any) -> bool:
    """Whether numbers agree as well as their dtype allows."""
    wanted = torch.as_tensor(right).double().reshape(number.shape)
    near = {torch.float16: 3e-2, torch.bfloat16: 1e-1}.get(number.dtype, 2e-3)
    scale = float(wanted.abs().max().clamp_min(1e-6))
    return bool(torch.allclose(number.double(), wanted, rtol=near, atol=near * scale))


def summed(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many programs fail, are healthy, and have each answer."""
    failing = [row for row in rows if row["remedy"]]
    counts = Counter(row["remedy"].partition(":")[0] for row in failing)
    alarms = sum(not row["is_line_right"] for row in rows if not row["remedy"])
    right = {f"right {name}": sum(row[f"is_{name}_right"] for row in failing) for name in ("line", "kind")}
    return {"failing": len(failing), **right, **{word: counts[word] for word in ANSWERS}, "false alarms": alarms}


def shown(content: dict[str, Any]) -> str:
    """What became of the programs that were held back, in sentences."""
    held = summed(content["first"])
    words = [held[word] for word in ("failing", "right kind", *ANSWERS)]
    return prose(
        "<p>Of the {} programs held back, the first report named the right kind in {}. With the remedy pasted in, {} "
        "gave the right numbers. In {} more, the numbers were finite, but you have to decide whether they are right. "
        "For {}, there was only <em>advice</em>, a few lines of comment. In {}, the remedy gave wrong numbers, in {} "
        "the numbers were still not finite, and in {} nothing was found.</p>".format(*words)
    )
