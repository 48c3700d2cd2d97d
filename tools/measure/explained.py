"""In how many failing programs `explain` names the line at fault, compared with the tools that people use today.

The programs are those of `first_look`, and so are the answers of `explain`: for the half that was held back, they are
the first ones.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from helpers import show

from ..project import Project
from .corpora import Program, programs, variables
from .first_look import FILE, summed
from .other_tools import TOOLS, Told, versions
from .records import keep, made_with, prose, read

COLUMNS = {
    "work": "right line, programs used to improve <code>explain</code> (of {})",
    "held": "right line, held back (of {})",
    "healthy": "false alarm on a healthy program (of {})",
}
"""The parts of the programs, and what a tool's number in each part counts."""


def explained(project: Project) -> None:
    """Run every program under every tool, and write `results/measured/explained.json`.

    A tool that is not installed keeps its recorded row.
    """
    every = programs(project.root / FILE)
    rows = {row["tool"]: row for row in read(project, "explained").get("rows", [])}
    for tool, version in versions().items():  # not in a separate process, where torchlens refuses to run
        row = rows[tool] = {"tool": tool, "version": version, **dict.fromkeys(COLUMNS, 0)}
        for program in every:
            said = told(tool, program)
            row[column(program)] += is_at_fault(program, said) if program.lines else said.anything
    rows["explain"] = of_explain(read(project, "first_look"))
    counts = Counter(map(column, every))
    ordered = [rows[each] for each in NAMES if each in rows]
    keep(project, "explained", {**made_with(), "programs": {each: counts[each] for each in COLUMNS}, "rows": ordered})


def column(program: Program) -> str:
    """The column of the table in which a program counts."""
    return program.part if program.lines else "healthy"


def told(tool: str, program: Program) -> Told:
    """What a tool says of a program: nothing, if the tool or the program raises."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        return TOOLS[tool](variables(Path(folder), program.source)["program"])
    return Told(False)


def is_at_fault(program: Program, said: Told) -> bool:
    """Whether a tool names a line at fault."""
    return said.line is not None and program.has_at_fault(program.source.splitlines()[said.line - 1])


def of_explain(first_look: dict[str, Any]) -> dict[str, Any]:
    """The row of `explain`, from the record of the first look."""
    work, held = summed(first_look["work"]), summed(first_look["first"])
    alarms = work["false alarms"] + held["false alarms"]
    return {"tool": "explain", "version": "", "work": work["right line"], "held": held["right line"], "healthy": alarms}


NAMES = {
    "explain": "<code>explain</code>",
    "anomaly mode": "anomaly mode",
    "forward hooks": "module hooks",
    "loss and parameters": "loss check",
    "DebugMode": "<code>DebugMode</code>",
    "DebugUnderflowOverflow": "<code>DebugUnderflowOverflow</code>",
    "torchlens": "torchlens",
}
"""The tools in the order of the table, and their names in it."""


def shown(content: dict[str, Any]) -> str:
    """A table of the tools that name a line. Tools with the same numbers share a row."""
    names: dict[tuple[int, ...], list[str]] = {}
    for row in content["rows"]:
        version = row["version"].removeprefix(f"{row['tool']} ")
        name = NAMES[row["tool"]] + (f" ({version})" if version and not version.startswith("torch ") else "")
        names.setdefault(tuple(row[each] for each in COLUMNS), []).append(name)
    body = [[", ".join(alike), *map(str, counts)] for counts, alike in names.items() if any(counts[:2])]
    head = [text.format(content["programs"][each]) for each, text in COLUMNS.items()]
    caption = f"In how many programs each tool names the line at fault (torch {content['torch']})"
    return prose(show.table(caption, ["tool", *head], body, stack=True))
