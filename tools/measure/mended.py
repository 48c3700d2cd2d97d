"""How much `ignoring` mends, measured on PyTorch's own operator database: cases that this project did not choose.

How a sample is poisoned and judged stands in `zero_or_nan.selfcheck.poisoned`.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import repeat
from typing import Any

import torch

from zero_or_nan import ignoring
from zero_or_nan.selfcheck.poisoned import Gradients, Tally, database, judge, name_of, poisoned

from ..project import Project, write
from .apart import apart

SAMPLES = 40
"""Samples of each operator that are looked at; the database has hundreds for a few."""
SECONDS = 180
"""How long one operator may take."""


def operators() -> list[Any]:
    """Operators of the database that have a derivative in float32."""
    return [op for op in database() if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")]


def measure(op: Any, gradients: Gradients = ignoring.grad, samples: int = SAMPLES) -> Tally:
    """Tally the samples of one operator, with `gradients` in the place of `torch.autograd.grad`."""
    tally = Tally(name_of(op))
    try:
        for case in poisoned(op, samples):
            judge(case, gradients, tally)
    except Exception as error:  # a sample that this machine can't make
        tally.notes.append(f"{type(error).__name__}: {str(error)[:200]}")
    return tally


def mended(project: Project) -> None:
    """Measure all operators, print those that are not mended, and write `results/measured/mended.json`."""
    started = time.monotonic()
    tallies = measure_all(operators())
    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "samples_of_an_operator": SAMPLES,
        "rows": [asdict(tally) for tally in tallies],
    }
    suffix = "" if torch.__version__.startswith("2.13") else f"-torch-{torch.__version__.split('+')[0]}"
    path = project.results / "measured" / f"mended{suffix}.json"
    path.parent.mkdir(exist_ok=True)
    write(path, json.dumps(content, indent=1) + "\n")
    print(f"written: {path.relative_to(project.root)}, after {time.monotonic() - started:.0f} s")


def measure_all(chosen: list[Any], samples: int = SAMPLES) -> list[Tally]:
    """Each operator in a process of its own: a poisoned sample can crash a library below PyTorch."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tallies = []
    with ThreadPoolExecutor(2) as pool:
        for tally in pool.map(_in_a_process, chosen, repeat(samples)):
            tallies.append(tally)
            if tally.notes:
                print(f"\r{_line(tally)}\n    " + "\n    ".join(tally.notes[:: max(1, len(tally.notes) // 3)][:4]))
            if sys.stdout.isatty():
                print(f"\r{len(tallies)} of {len(chosen)} operators", end="", flush=True)
    total = Tally("\rall operators")
    for count in ("samples", "contaminated", "mended", "broken", "other_bits"):
        setattr(total, count, sum(getattr(tally, count) for tally in tallies))
    print(_line(total))
    return tallies


def _line(tally: Tally) -> str:
    return (
        f"{tally.operator}: {tally.samples} samples, {tally.contaminated} contaminated, {tally.mended} mended, "
        f"{tally.broken} broken, {tally.other_bits} with other bits"
    )


def _in_a_process(op: Any, samples: int) -> Tally:
    found: Tally | str = apart(lambda: measure(op, samples=samples), SECONDS)
    return Tally(name_of(op), notes=[found]) if isinstance(found, str) else found


if __name__ == "__main__":  # some operators by name, for whoever adds a rule
    measure_all([op for op in operators() if op.name in sys.argv[1:] or name_of(op) in sys.argv[1:]])
