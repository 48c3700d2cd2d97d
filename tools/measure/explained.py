"""How often `explain` finds the origin in programs with a known answer, compared with the tools that people use today.

The programs and the other tools are in `tests/zero_or_nan/explain/corpus`. The programs from public reports are counted
separately. For them, the answer of `explain` is also compared with the cause and the fix in the report. The record
keeps the first answer to each of them.
"""

from __future__ import annotations

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


def explained(project: Project, *names: str) -> None:
    """Run every program under every tool, and write the scores to `results/measured/explained.json`.

    If programs are named, run only them, under `explain` alone, and print the scores.
    """
    programs = _programs(project.root)
    every = {program.name: program for program in programs}
    if chosen := named(names, every, "program"):
        for name in chosen:
            print(f"{name}: {_explained(every[name])}")
        return
    reports = [program for program in programs if program.is_report]
    known = [program for program in programs if not program.is_report]
    baselines = importlib.import_module("corpus.baselines")
    recorded = read(project, "explained")

    now = {program.run.__name__: answers(program) for program in reports if program.expected}
    first = recorded.get("first", {})
    tools: dict[str, Callable[[Any], Any]] = {name: baselines.BASELINES[name] for name in baselines.versions()}
    told = {"explain": [_explained(program) for program in programs]}
    for name, tool in tools.items():  # one after another, because some tools change PyTorch while they run
        print(f"{name}: {len(programs)} programs", flush=True)
        told[name] = [_told(tool, program) for program in programs]
    by_program = {
        program.name: {name: column[at] for name, column in told.items()} for at, program in enumerate(programs)
    }
    rows = _rows(known, by_program, [*baselines.BASELINES], recorded.get("rows", []))
    report_rows = _rows(reports, by_program, [*baselines.BASELINES], recorded.get("reports", []))
    before = recorded.get("versions", {})
    content: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tools": ["explain", *(name for name in baselines.BASELINES if name in tools or name in before)],
        "versions": {**before, **baselines.versions()},
        "rows": rows,
        "reports": report_rows,
        "first": {name: first.get(name, now[name]) for name in now},
        "now": now,
    }
    keep(project, "explained", content)
    for row in [*rows, *({**row, "kind": f"reports, {row['kind']}"} for row in report_rows)]:
        print(f"{row['kind']}: {row['programs']} programs", {name: row.get(name) for name in content["tools"]})
    for when in ("first", "now"):
        print(f"reports, {when}:", summed(content[when]))


def _programs(root: Path) -> list[Any]:
    """The programs that run on this machine."""
    sys.path.insert(0, str(root / "tests" / "zero_or_nan" / "explain"))
    return [program for program in importlib.import_module("corpus").PROGRAMS if program.runs_here]


def _rows(
    programs: list[Any],
    told: dict[str, dict[str, tuple[bool, bool, bool]]],
    tools: list[str],
    recorded: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """A row for each kind, with a column for each tool. A tool that is not installed keeps its recorded column.

    A column counts the programs with any answer, with the right line, and with the complete answer and no other.
    """
    rows: dict[str, dict[str, Any]] = {}
    for program in programs:
        row = rows.setdefault(_group(program), {"programs": 0})
        row["programs"] += 1
        for name, found in told[program.name].items():
            score = row.setdefault(name, {"said": 0, "line": 0, "all": 0})
            score.update({each: score[each] + counted for each, counted in zip(score, found, strict=True)})
    for row in recorded:
        for name in tools:
            if row["kind"] in rows and name in row:
                rows[row["kind"]].setdefault(name, row[name])
    return [{"kind": kind, **rows[kind]} for kind in (*KINDS, "several origins", "clean") if kind in rows]


def _group(program: Any) -> str:
    if not program.expected:
        return "clean"
    return str(program.expected[0].kind) if len(program.expected) == 1 else "several origins"


def _report(program: Any) -> Report | None:
    """The report of `explain` on a program; None if the program or `explain` raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with explain() as report:
                program.run()
        except Exception:
            return None
    return report


def _explained(program: Any) -> tuple[bool, bool, bool]:
    report = _report(program)
    if report is None:  # a crash counts as a failure
        return False, False, False
    found = [(origin.kind, origin.phase, origin.operator, origin.line) for origin in report]
    return not report.ok, any(origin.line in program.lines for origin in report), found == _wanted(program)


def _wanted(program: Any) -> list[tuple[str, str, str, int]]:
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
    report = _report(program)
    found = [(origin.kind, origin.phase, origin.operator, origin.line) for origin in report or ()]
    text = module.advice(report) if report is not None else ""
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


def _told(tool: Callable[[Any], Any], program: Any) -> tuple[bool, bool, bool]:
    """The score of a tool that reports no kind. For a clean program, its answer is complete if it reports nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            told = tool(program)
        except Exception:
            return False, False, False
    return told.anything, told.line in program.lines, not program.expected and not told.anything


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
