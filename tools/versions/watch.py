"""Runs every claim and the self-check on the installed PyTorch, and prints what differs from the record."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from ..project import Project
from ..steps.collect import checked, collect
from ..steps.execute import execute
from ..steps.ran import ChapterRun
from .differences import KINDS, Difference, of_claims, of_selfcheck

SELFCHECK = (sys.executable, "-m", "zero_or_nan.selfcheck", "--json")
PATIENCE = 1800
"""The most seconds that the self-check may take."""


def watch(project: Project) -> int:
    """Print the differences from the record as Markdown, by kind. Return 1 if there are any, otherwise 0."""
    runs = execute(project, project.chapters, lambda run: print(f"  {run.chapter.stem}", file=sys.stderr, flush=True))
    facts = collect(runs)
    selfcheck, differences = checked_itself()
    differences = [*of_claims(facts), *of_crashes(runs), *differences]
    asked = len(selfcheck.get("cases", [])) + len(selfcheck.get("operators", []))
    made_with = f"torch {version('torch')}, Python {platform.python_version()}"
    print(f"## {len(differences)} differences from the record on {made_with}\n")
    print(f"{len(checked(facts))} claims, and {asked} cases and operators were compared.")
    for kind, meaning in KINDS.items():
        if own := [each for each in differences if each.kind == kind]:
            print(f"\n### {kind.capitalize()}: {len(own)}\n\n{meaning}\n")
            for each in own:
                print(f"- {each.where}: {each.what}: recorded `{each.recorded}`, observed `{each.observed}`")
    return int(bool(differences))


def of_crashes(runs: Iterable[ChapterRun]) -> list[Difference]:
    """The first failing cell of each page, if it makes no claim. Later cells may fail only because of this cell."""
    found = []
    for run in runs:
        for first in run.troubles[:1]:
            what = f"code cell {first.cell} ({first.line})"
            # Without the exception's message, because it may contain an address or version that changes every day.
            found.append(Difference("could not be run", run.chapter.stem, what, "runs", first.what.partition(":")[0]))
    return found


def checked_itself() -> tuple[dict[str, Any], list[Difference]]:
    """The result of the library's self-check, and its differences from the record."""
    try:
        done = subprocess.run(SELFCHECK, capture_output=True, text=True, timeout=PATIENCE)
        said = dict(json.loads(done.stdout))
        return said, of_selfcheck(said)
    except subprocess.TimeoutExpired:
        why = f"does not end: still running after {PATIENCE} s"
    except (ValueError, TypeError, KeyError):  # the self-check ended before it could print its result
        print(done.stderr, file=sys.stderr)
        why = f"exits {done.returncode} and gives no result"
    return {}, [Difference("could not be run", "self-check", "python -m zero_or_nan.selfcheck", "runs", why)]
