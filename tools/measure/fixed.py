"""How much `ignoring` fixes, measured on PyTorch's own operator database: cases that this project did not choose.

`zero_or_nan.selfcheck.poisoned` describes how a sample is poisoned and judged. Each operator runs in a separate
process. If this process dies or does not end, each sample gets its own process, so that one crash costs only one
sample.
"""

from __future__ import annotations

import platform
import random
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import repeat
from typing import Any

import torch

from zero_or_nan import ignoring
from zero_or_nan.selfcheck.poisoned import COUNTS, Gradients, PoisonedSample, Tally, database, judge, name_of, poisoned

from ..project import Project, write_record
from .apart import apart
from .causes import CAUSES, UNEXPLAINED, cause_of

SAMPLES = 40
"""How many samples of each operator are measured. The database has hundreds of samples for a few operators."""
SECONDS = 600
"""The most seconds that one operator may take."""
SECONDS_ALONE = 30
"""The most seconds that one poisoned sample may take."""


def operators() -> list[Any]:
    """Operators of the database that have a derivative in float32."""
    return [op for op in database() if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")]


def measure(op: Any, gradients: Gradients = ignoring.grad, samples: int = SAMPLES, alone: bool = False) -> Tally:
    """Tally the samples of one operator, with `gradients` in place of `torch.autograd.grad`.

    `alone`: run each poisoned sample in a separate process.
    """
    random.seed(0)
    torch.manual_seed(0)
    tally = Tally(name_of(op))
    end = time.monotonic() + SECONDS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for case in poisoned(op, samples, tally):
                if time.monotonic() > end:
                    tally.lose(case.name, f"no end in {SECONDS} s")
                    break
                if alone:
                    tally.add(_judged_alone(case, gradients))
                else:
                    judge(case, gradients, tally)
        except Exception as error:
            tally.lose("a sample that can't be made", f"{type(error).__name__}: {str(error)[:200]}")
    return tally


def _judged_alone(case: PoisonedSample, gradients: Gradients) -> Tally:
    """The tally of one sample. If plain PyTorch dies of the sample, our gradient is still computed, and may not die."""

    def judged(crash: str = "") -> Tally:
        tally = Tally("")
        judge(case, gradients, tally, crash)
        return tally

    found: Tally | str = apart(judged, SECONDS_ALONE)
    if not isinstance(found, str):
        return found
    crash = found
    ours: Tally | str = apart(lambda: judged(crash), SECONDS_ALONE)
    if not isinstance(ours, str):
        return ours
    lost = Tally("", crashed=1)
    lost.lose(case.name, crash)
    return lost


def fixed(project: Project) -> None:
    """Measure all operators, print those that are not fixed, and write `results/measured/fixed.json`."""
    started = time.monotonic()
    tallies = measure_all(operators())
    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "samples_of_an_operator": SAMPLES,
        "causes": {cause.name: cause.sentence for cause in CAUSES},
        **totals_and_rows(tallies),
    }
    suffix = "" if torch.__version__.startswith("2.13") else f"-torch-{torch.__version__.split('+')[0]}"
    path = project.results / "measured" / f"fixed{suffix}.json"
    path.parent.mkdir(exist_ok=True)
    write_record(path, content)
    print(f"written: {path.relative_to(project.root)}, after {time.monotonic() - started:.0f} s")


def totals_and_rows(tallies: list[Tally]) -> dict[str, Any]:
    """What is recorded of all operators: their number, their sums, and a row for each operator with a finding.

    No sample contaminates the other operators, and `ignoring` gives plain PyTorch's gradients for them.
    """
    told = [tally for tally in tallies if tally.contaminated or tally.broken or tally.other_bits]
    return {
        "operators": len(tallies),
        "totals": {count: sum(getattr(tally, count) for tally in tallies) for count in COUNTS},
        "rows": [row(tally) for tally in told],
    }


def row(tally: Tally) -> dict[str, Any]:
    """A tally as it is recorded. Samples that are not fixed are counted by their cause."""
    causes = Counter(cause_of(tally.operator, sample) for sample in tally.not_fixed)
    return {**asdict(tally), "not_fixed": dict(sorted(causes.items()))}


def measure_all(chosen: list[Any], samples: int = SAMPLES) -> list[Tally]:
    """The tallies of all operators, each from its own process: a poisoned sample can crash a library below PyTorch."""
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
    for tally in tallies:
        total.add(tally)
    print(_line(total, *tallies))
    return tallies


def _line(tally: Tally, *parts: Tally) -> str:
    counts = ", ".join(f"{getattr(tally, count)} {count.replace('_', ' ')}" for count in COUNTS)
    unexplained = sum(row(part)["not_fixed"].get(UNEXPLAINED, 0) for part in parts or (tally,))
    return f"{tally.operator}: {counts}, {unexplained} unexplained"


def _in_a_process(op: Any, samples: int) -> Tally:
    found: Tally | str = apart(lambda: measure(op, samples=samples), SECONDS + SECONDS_ALONE)
    if isinstance(found, str):
        found = apart(lambda: measure(op, samples=samples, alone=True), SECONDS + 2 * SECONDS_ALONE)
    if isinstance(found, str):
        failure, found = found, Tally(name_of(op))
        found.lose("all samples", failure)
    return found


if __name__ == "__main__":  # for people who add a rule: measures the operators that you name
    measure_all([op for op in operators() if op.name in sys.argv[1:] or name_of(op) in sys.argv[1:]])
