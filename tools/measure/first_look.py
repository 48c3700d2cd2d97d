"""Whether the remedies that `explain` prints work: each is written into a program that `explain` had never seen.

The programs are in `tests/zero_or_nan/explain/first_look.md`, in two halves. The record keeps the answers to the
second half from before anybody had read one of them.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import tempfile
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from helpers import show
from zero_or_nan import explain
from zero_or_nan.explain import Origin, Report

from ..project import Project, named
from .apart import all_apart
from .records import keep, made_with, prose, read

PROGRAMS = Path("tests/zero_or_nan/explain/first_look.md")
SECONDS = 120.0
MOST_ORIGINS = 5
"""How often a remedy is written into a program, if each time another origin is left."""

ANSWERS = {
    "works": "the remedy, pasted, gives the right numbers",
    "works by a choice": "the remedy, pasted, gives finite numbers, where somebody has to choose",
    "advice": "there is advice, but no line to paste",
    "wrong": "the remedy, pasted, gives wrong numbers",
    "not enough": "the numbers are still not finite",
    "nothing": "no origin is found",
}


@dataclass(frozen=True)
class Program:
    """A program, and what is known of it."""

    name: str
    half: str
    kinds: tuple[str, ...]
    lines: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Answer:
    """What `explain` said of a program. A healthy program has an empty remedy."""

    name: str
    half: str
    is_line_right: bool
    is_kind_right: bool
    remedy: str


def programs(root: Path) -> list[Program]:
    """All programs, in the order of the file."""
    found = []
    for half, text in re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", (root / PROGRAMS).read_text(encoding="utf-8")):
        for name, facts, source in re.findall(r"(?ms)^### (\w+)\n(.*?)^```python\n(.*?)^```$", text):
            kinds = re.findall(r"(?m)^- kind: (.*)$", facts)[0].split(", or ")
            found.append(Program(name, half, tuple(kinds), tuple(re.findall(r"(?m)^- line: `(.*)`$", facts)), source))
    return found


def first_look(project: Project, *names: str) -> None:
    """Run all programs, and write the answers to `results/measured/first_look.json`; of named programs, print them.

    The recorded answers to the half *held* stay as they were when it was first run.
    """
    every = {program.name: program for program in programs(project.root)}
    chosen = [every[name] for name in named(names, every, "program")]
    answers = all_apart(chosen or [*every.values()], answer, SECONDS, _lost, lambda each: f"{each.name}: {each.remedy}")
    if chosen:
        return
    now = [asdict(each) for each in answers]
    held = read(project, "first_look").get("first") or [row for row in now if row["half"] == "held"]
    keep(project, "first_look", {**made_with(), "work": [r for r in now if r["half"] == "work"], "first": held})
    print(summed(now), summed(held), sep="\n")


def _lost(program: Program, why: str) -> Answer:
    return Answer(program.name, program.half, False, False, f"nothing: {why}")


def answer(program: Program) -> Answer:
    """Explain a program, paste what is printed, and run it again."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        names, _, report = _explained(Path(folder), program.source)
        if "healthy" in program.kinds:
            return Answer(program.name, program.half, report.ok, report.ok, "")
        if report.ok:
            return Answer(program.name, program.half, False, False, "nothing")
        first = report.origins[0]
        remedy = _pasted(Path(folder), program.source, first, names["right"]())
        is_line_right = plain(first.source) in map(plain, program.lines)
        return Answer(program.name, program.half, is_line_right, first.kind in program.kinds, remedy)


def plain(line: str) -> str:
    """A line without its spaces, which a formatter may have changed in the program."""
    return re.sub(r"\s", "", line)


def variables(folder: Path, source: str) -> dict[str, Any]:
    """The variables of a program. It runs from a file, so that its lines can be read."""
    path = folder / "program.py"
    path.write_text(source, encoding="utf-8")
    linecache.checkcache()
    names: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), names)
    torch.manual_seed(0)
    return names


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


def written(source: str, origin: Origin) -> str | None:
    """A program with the remedy of an origin in it; None if the remedy has no line to paste."""
    lines = source.splitlines()
    if origin.kind == "contaminated" and "ignoring.backward" in origin.remedy:
        calls = re.sub(r"(?m)^(\s*)(.+)\.backward\(\)", r"\1ignoring.backward(\2)", source)
        return None if calls == source else f"from zero_or_nan import ignoring\n{calls}"
    if origin.replaces is None:
        return None
    line = lines[origin.replaces - 1]
    indent = line[: len(line) - len(line.lstrip())]
    lines[origin.replaces - 1 : origin.replaces] = [indent + each for each in origin.remedy.splitlines()]
    return "\n".join(lines)


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
    """A table of both halves."""
    halves = [summed(content["work"]), summed(content["first"])]
    texts = {"failing": "programs that fail", "right line": "the line is right", "right kind": "the kind is right"}
    texts |= ANSWERS | {"false alarms": "false alarms on healthy programs"}
    body = [[text, *(str(half[word]) for half in halves)] for word, text in texts.items()]
    caption = f"What <code>explain</code> says of programs that it had not seen (torch {content['torch']})"
    return prose(show.table(caption, ["answer", "used for work", "held back"], body, stack=True))
