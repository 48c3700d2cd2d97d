"""Programs from public reports, in documents: each has its facts, its code, and the part that it belongs to.

The part *held* was run once, before anybody had read one of its programs, and a record keeps these answers.
"""

from __future__ import annotations

import contextlib
import linecache
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zero_or_nan.explain import Origin

from ..project import named
from .apart import all_apart


@dataclass(frozen=True)
class Program:
    """A program, and what is known of it. A healthy program has no line at fault."""

    name: str
    part: str
    kinds: tuple[str, ...]
    lines: tuple[str, ...]
    source: str

    def has_at_fault(self, line: str) -> bool:
        """Whether this is a line at fault. A formatter may have changed its spaces in the code."""
        plain, *lines = (re.sub(r"\s", "", each) for each in (line, *self.lines))
        return plain in lines


def programs(path: Path) -> list[Program]:
    """All programs, in the order of the document."""
    found = []
    for part, text in re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", path.read_text(encoding="utf-8")):
        for name, facts, source in re.findall(r"(?ms)^### (\w+)\n(.*?)^```python\n(.*?)^```$", text):
            kinds = [kind for kinds in re.findall(r"(?m)^- kind: (.*)$", facts) for kind in kinds.split(", or ")]
            lines = re.findall(r"(?m)^- line: `(.*)`$", facts)
            found.append(Program(name, part, tuple(kinds), tuple(lines), source))
    return found


def answers(
    every: list[Program],
    names: Iterable[str],
    held: list[dict[str, Any]],
    answer: Callable[[Program], Any],
    seconds: float,
    lost: Callable[[Program, str], Any],
    told: Callable[[Any], str],
) -> dict[str, list[dict[str, Any]]]:
    """The answers to all programs, by part. If programs are named, only these run, and the result is empty.

    Args:
        every: all programs.
        names: those to run; empty for all.
        held: the recorded answers to programs of the part *held*, which stay as they are. Only the others run.
        answer: runs a program. The answer is a dataclass.
        seconds, lost, told: as of `all_apart`.
    """
    by_name = {program.name: program for program in every}
    chosen = [by_name[name] for name in named(names, by_name, "program")]
    recorded = {row["name"] for row in held}
    run = chosen or [program for program in every if program.part != "held" or program.name not in recorded]
    found = all_apart(run, answer, seconds, lost, told)
    if chosen:
        return {}
    parts: dict[str, list[dict[str, Any]]] = {}
    for program, each in zip(run, found, strict=True):
        parts.setdefault(program.part, []).append(asdict(each))
    return {**parts, "held": [*held, *parts.get("held", [])]}


@contextlib.contextmanager
def default_dtype_kept() -> Iterator[None]:
    """After the block, the default dtype is as before: a remedy may change it."""
    before = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def variables(folder: Path, source: str) -> dict[str, Any]:
    """The variables of a program. It runs from a file, so that its lines can be read."""
    path = folder / "program.py"
    path.write_text(source, encoding="utf-8")
    linecache.checkcache()
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    exec(compile(source, str(path), "exec"), names)
    torch.manual_seed(0)
    return names


def written(source: str, origin: Origin) -> str | None:
    """A program with the remedy of an origin in it; None if the remedy has no line to paste."""
    lines = source.splitlines()
    if origin.replaces is None:
        return None
    line = lines[origin.replaces - 1]
    indent = line[: len(line) - len(line.lstrip())]
    lines[origin.replaces - 1 : origin.until or origin.replaces] = [
        indent + each for each in origin.remedy.splitlines()
    ]
    return "\n".join(lines)
