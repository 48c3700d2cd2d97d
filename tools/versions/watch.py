"""Run every claim and the self-check on the PyTorch that is installed, and write down what differs."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from ..project import Project, write
from ..steps.collect import checked, collect
from ..steps.execute import execute
from ..steps.ran import Run
from .differences import KINDS, Difference, of_claims, of_selfcheck

SELFCHECK = (sys.executable, "-m", "zero_or_nan.selfcheck", "--json")
PATIENCE = 1800
"""Seconds that the self-check may take."""


def watch(project: Project) -> None:
    """Print what differs from the record, and write it to `_build/watched.json`.

    A difference is not a failure: this ends well whenever it could look.
    """
    runs = execute(project, project.chapters, lambda run: print(f"  {run.chapter.stem}", flush=True))
    facts = collect(runs)
    selfcheck, differences = checked_itself()
    differences = [*of_claims(facts), *of_crashes(runs), *differences]
    content = {
        "torch": version("torch"),
        "python": platform.python_version(),
        "claims": len(checked(facts)),
        "asked": len(selfcheck.get("cases", [])) + len(selfcheck.get("operators", [])),
        "differences": [asdict(each) for each in differences],
    }
    write(project.build / "watched.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(
        f"compared {content['claims']} claims, and {content['asked']} cases and operators, on torch {content['torch']}"
    )
    for kind in KINDS:
        for each in differences:
            if each.kind == kind:
                print(f"{kind}: {each.where}: {each.what}: recorded {each.recorded}, observed {each.observed}")


def of_crashes(runs: Iterable[Run]) -> list[Difference]:
    """The first cell of each page that failed, which no claim does; what comes after it may fail because of it."""
    found = []
    for run in runs:
        for first in run.troubles[:1]:
            what = f"code cell {first.cell} ({first.line})"
            # Without what an exception says: that can be another every day, by an address or a version.
            found.append(Difference("could not be run", run.chapter.stem, what, "runs", first.what.partition(":")[0]))
    return found


def checked_itself() -> tuple[dict[str, Any], list[Difference]]:
    """What the library's self-check says, and what in it differs."""
    try:
        done = subprocess.run(SELFCHECK, capture_output=True, text=True, timeout=PATIENCE)
        said = dict(json.loads(done.stdout))
        return said, of_selfcheck(said)
    except subprocess.TimeoutExpired:
        why = f"does not end: still running after {PATIENCE} s"
    except (ValueError, TypeError, KeyError):  # it ended before it could say anything
        print(done.stderr, file=sys.stderr)
        why = f"exits {done.returncode} and gives no result"
    return {}, [Difference("could not be run", "self-check", "python -m zero_or_nan.selfcheck", "runs", why)]
