"""How often `explain` finds the origin in programs with a known answer, compared with the tools that people use today.

The programs and the other tools are in `tests/zero_or_nan/explain/corpus`. The programs from public reports are counted
separately. For them, the answer of `explain` is also compared with the cause and the fix in the report. The record
keeps the first answer to each of them.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers import show
from zero_or_nan import explain
from zero_or_nan.explain import Report

from ..project import Project, named
from .records import keep, prose, read

KINDS = ("contaminated", "undefined", "overflow", "bad input")

Score = tuple[bool, bool, bool]
"""Whether a tool says anything of a program, names a right line, and gives the complete answer and no other."""

Origin = tuple[str, str, str, int]
"""The kind, the phase, the operator and the line."""


def explained(project: Project, *names: str) -> None:
    """Run every program under every tool, and write the scores to `results/measured/explained.json`.

    If programs are named, run only them, under `explain` alone, and print the scores.
    """
    every = {program.name: program for program in _programs(project.root)}
    if chosen := named(names, every, "program"):
        for name in chosen:
            print(f"{name}: {_explained(every[name])}")
        return
    baselines = importlib.import_module("corpus.baselines")
    installed = baselines.versions()
    scores = {"explain": {name: _explained(program) for name, program in every.items()}}
    for tool in installed:  # one after another, because some tools change PyTorch while they run
        print(f"{tool}: {len(every)} programs", flush=True)
        scores[tool] = {name: _told(baselines.BASELINES[tool], program) for name, program in every.items()}
    recorded = read(project, "explained")
    reports = [program for program in every.values() if program.is_report]
    known = [program for program in every.values() if not program.is_report]
    now = {program.run.__name__: answers(program) for program in reports if program.expected}
    versions = {**recorded.get("versions", {}), **installed}
    content: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tools": ["explain", *(tool for tool in baselines.BASELINES if tool in versions)],
        "versions": versions,
        "rows": _rows(known, scores, recorded.get("rows", [])),
        "reports": _rows(reports, scores, recorded.get("reports", [])),
        "first": {name: recorded.get("first", {}).get(name, now[name]) for name in now},
        "now": now,
    }
    keep(project, "explained", content)
    for rows in ("rows", "reports"):
        for row in content[rows]:
            print(rows, row["kind"], row["programs"], {tool: row.get(tool) for tool in content["tools"]})
    for when in ("first", "now"):
        print(f"reports, {when}:", summed(content[when]))


def _programs(root: Path) -> list[Any]:
    """The programs that run on this machine."""
    sys.path.insert(0, str(root / "tests" / "zero_or_nan" / "explain"))
    return [program for program in importlib.import_module("corpus").PROGRAMS if program.runs_here]


def _rows(programs: list[Any], scores: dict[str, dict[str, Score]], recorded: list[dict[str, Any]]) -> list[Any]:
    """A row for each kind, with a column for each tool. A tool that is not installed keeps its recorded column.

    A column counts the programs with any answer, with the right line, and with the complete answer and no other.
    """
    rows: dict[str, dict[str, Any]] = {}
    for program in programs:
        row = rows.setdefault(_group(program), {"programs": 0})
        row["programs"] += 1
        for tool, of in scores.items():
            counts = row.setdefault(tool, {"said": 0, "line": 0, "all": 0})
            counts.update({each: counts[each] + more for each, more in zip(counts, of[program.name], strict=True)})
    before = {row["kind"]: row for row in recorded}
    kinds = [kind for kind in (*KINDS, "several origins", "clean") if kind in rows]
    return [{**before.get(kind, {"kind": kind}), **rows[kind]} for kind in kinds]


def _group(program: Any) -> str:
    if not program.expected:
        return "clean"
    return str(program.expected[0].kind) if len(program.expected) == 1 else "several origins"


def _run(tool: Callable[[Any], Any], program: Any) -> Any:
    """What a tool says of a program; None if the tool or the program raised, which counts as a failure."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        return tool(program)


def _report(program: Any) -> Report:
    with explain() as report:
        program.run()
    return report


def _told(tool: Callable[[Any], Any], program: Any) -> Score:
    """The score of a tool that reports no kind. For a clean program, its answer is complete if it reports nothing."""
    told = _run(tool, program)
    if told is None:
        return False, False, False
    return told.anything, told.line in program.lines, not program.expected and not told.anything


def _explained(program: Any) -> Score:
    report = _run(_report, program)
    if report is None:
        return False, False, False
    return not report.ok, any(origin.line in program.lines for origin in report), _found(report) == _wanted(program)


def _found(report: Report) -> list[Origin]:
    return [(origin.kind, origin.phase, origin.operator, origin.line) for origin in report]


def _wanted(program: Any) -> list[Origin]:
    pairs = zip(program.expected, program.lines, strict=True)
    return [(want.kind, want.phase, want.operator, line) for want, line in pairs]


def answers(program: Any) -> str:
    """The answers of `explain` to the questions about a program from a public report: "+kind +line -all …".

    These are the questions:

    - kind, line: are the kind and the line of the first origin right?
    - all: is every origin reported, and no other?
    - cause: is the right cause named? Asked if there is a cause to name, or if `explain` wrongly named one.
    - remedy: does the remedy agree with the fix in the report?
    """
    module = importlib.import_module("corpus.answers")
    report = _run(_report, program)
    found, text = ([], "") if report is None else (_found(report), module.advice(report))
    wanted = _wanted(program)
    right = {
        "kind": bool(found) and found[0][0] == wanted[0][0],
        "line": bool(found) and found[0][3] == wanted[0][3],
        "all": found == wanted,
        "cause": module.names_the_cause(program, text),
        "remedy": module.agrees(program, text),
    }
    if right["cause"] and not program.has_cause_to_name:
        del right["cause"]
    return " ".join(f"{'+' if is_right else '-'}{name}" for name, is_right in right.items())


def summed(rows: dict[str, str]) -> dict[str, str]:
    """For each question: for how many programs the answer is right, of the programs to which the question applies."""
    words = Counter(word for row in rows.values() for word in row.split())
    return {name: f"{words['+' + name]} of {words['+' + name] + words['-' + name]}" for name in _ANSWERS}


# On the page.


_TOOLS = {
    "explain": "<code>explain</code>",
    "anomaly mode": "anomaly mode",
    "forward hooks": "module hooks",
    "loss and parameters": "loss check",
    "DebugMode": "<code>DebugMode</code>",
    "DebugUnderflowOverflow": "<code>DebugUnderflowOverflow</code>",
    "torchlens": "torchlens",
}


def shown(content: dict[str, Any]) -> str:
    """Three tables about `explain`.

    Two count the programs in which each tool names the right line, and the false alarms. The third compares the first
    answers of `explain` to public reports with its answers now.
    """
    wrong = [row for row in content["rows"] if row["kind"] != "clean"]
    total, told = sum(row["programs"] for row in wrong), sum(row["explain"]["all"] for row in wrong)
    caption = (
        f"In how many of {total} programs with a known origin each tool names the right line "
        f"(torch {html.escape(content['torch'])}). In {told} of them, <code>explain</code> also gives the right phase, "
        "operator and kind, and names no other origin"
    )
    parts = [_lines_named(caption, content["rows"], content)]
    if reports := content.get("reports"):
        count = sum(row["programs"] for row in reports if row["kind"] != "clean")
        caption = f"The same for {count} programs from public reports, which were written before explain saw them"
        parts.append(_lines_named(caption, reports, content))
        parts.append(_answers(content))
    return prose(*parts)


def _lines_named(caption: str, rows: list[dict[str, Any]], content: dict[str, Any]) -> str:
    wrong = [row for row in rows if row["kind"] != "clean"]
    clean = [row for row in rows if row["kind"] == "clean"]
    counts = [row["programs"] for row in wrong]
    body = [["programs", *map(str, counts), str(sum(counts)), str(sum(row["programs"] for row in clean))]]
    for tool in content["tools"]:
        lines = [row[tool]["line"] if tool in row else None for row in wrong]
        version = content.get("versions", {}).get(tool, "")
        own = (
            "" if version.startswith("torch ") or not version else f" ({html.escape(version.removeprefix(f'{tool} '))})"
        )
        alarms = sum(row[tool]["said"] for row in clean if tool in row)
        cells = ["–" if line is None else str(line) for line in lines]
        body.append([_TOOLS[tool] + own, *cells, str(sum(line or 0 for line in lines)), str(alarms)])
    head = ["tool", *(row["kind"] for row in wrong), "all kinds", "false alarms on clean programs"]
    return show.table(caption, head, body, stack=True)


_ANSWERS = {
    "kind": "the kind of the first origin",
    "line": "the line of the first origin",
    "all": "each origin, and no other",
    "cause": "the cause that the report found, if it is one to be named",
    "remedy": "a remedy that agrees with the fix of the report",
}


def _answers(content: dict[str, Any]) -> str:
    """For each question, how many answers were right at first, and are right now, of the programs it applies to."""
    first, now = summed(content["first"]), summed(content["now"])
    body = [[text, first[name], now[name]] for name, text in _ANSWERS.items()]
    return show.table(
        "What <code>explain</code> gets right in the programs from public reports",
        ["answer", "when it first saw the program", "now"],
        body,
    )
