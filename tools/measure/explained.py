"""How often `explain` names the origin, on programs whose answer is known, beside what people use today.

The programs, and the other tools, stand in `tests/zero_or_nan/explain/corpus`.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from zero_or_nan import explain

from ..project import Project, write

KINDS = ("contaminated", "undefined", "overflow", "bad input")


def explained(project: Project) -> None:
    """Run every program under every tool, and write how they did to `results/measured/explained.json`."""
    folder = str(project.root / "tests" / "zero_or_nan" / "explain")
    sys.path.insert(0, folder)
    programs = [program for program in importlib.import_module("corpus").PROGRAMS if program.runs_here]
    baselines = importlib.import_module("corpus.baselines").BASELINES
    rows: dict[str, dict[str, Any]] = {}
    for at, program in enumerate(programs, 1):
        if sys.stdout.isatty():
            print(f"\r{at} of {len(programs)} programs", end="", flush=True)
        row = rows.setdefault(_group(program), {"programs": 0, "explain": _score(), **{n: _score() for n in baselines}})
        row["programs"] += 1
        _count(row["explain"], _explained(program), program)
        for name, tool in baselines.items():
            _count(row[name], _told(tool, program), program)
    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tools": ["explain", *baselines],
        "rows": [{"kind": kind, **rows[kind]} for kind in (*KINDS, "several origins", "clean") if kind in rows],
    }
    path = project.results / "measured" / "explained.json"
    write(path, json.dumps(content, indent=1) + "\n")
    print(f"\rwritten: {path.relative_to(project.root)}")
    for row in content["rows"]:
        print(f"{row['kind']}: {row['programs']} programs", {name: row[name] for name in content["tools"]})


def _group(program: Any) -> str:
    if not program.expected:
        return "clean"
    return str(program.expected[0].kind) if len(program.expected) == 1 else "several origins"


def _score() -> dict[str, int]:
    """How many programs a tool said anything about, named the right line of, and told all of and nothing else."""
    return {"said": 0, "line": 0, "all": 0}


def _count(score: dict[str, int], told: tuple[bool, bool, bool], program: Any) -> None:
    said, line, everything = told
    score["said"] += said
    score["line"] += line
    score["all"] += everything


def _explained(program: Any) -> tuple[bool, bool, bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with explain() as report:
                program.run()
        except Exception:  # what crashes has failed
            return False, False, False
    found = [(origin.kind, origin.phase, origin.operator, origin.line) for origin in report]
    pairs = zip(program.expected, program.lines, strict=True)
    wanted = [(want.kind, want.phase, want.operator, line) for want, line in pairs]
    return not report.ok, any(origin.line in program.lines for origin in report), found == wanted


def _told(tool: Callable[[Any], Any], program: Any) -> tuple[bool, bool, bool]:
    """No other tool tells a kind: of a clean program all is told when nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            told = tool(program)
        except Exception:
            return False, False, False
    return told.anything, told.line in program.lines, not program.expected and not told.anything
