"""How much `ignoring` fixes, measured on PyTorch's own operator database: cases that this project did not choose.

`zero_or_nan.selfcheck.poisoned` describes how a sample is poisoned and judged. Each operator runs in a separate
process. If this process dies or does not end, each sample gets its own process, so that one crash costs only one
sample.
"""

from __future__ import annotations

import html
import json
import platform
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from helpers import show
from zero_or_nan import ignoring
from zero_or_nan.selfcheck.poisoned import (
    COUNTS,
    Gradients,
    NotFixed,
    PoisonedSample,
    Tally,
    database,
    judge,
    name_of,
    poisoned,
)

from ..project import Project, named, write
from .apart import all_apart, apart, counted, totals
from .records import keep_swept, prose

SAMPLES = 40
"""How many samples of each operator are measured. The database has hundreds of samples for a few operators."""
SECONDS = 600
"""The most seconds that one operator may take."""
SECONDS_ALONE = 30
"""The most seconds that one poisoned sample may take."""
ENDS = ("the process died", "no end in ")
"""The beginnings of the messages about work that did not end."""
UNEXPLAINED = "unexplained"
ATTENTION = frozenset(
    """
    nn.functional.multi_head_attention_forward nn.functional.scaled_dot_product_attention
    torch.ops.aten._efficient_attention_forward torch.ops.aten._flash_attention_forward
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    """.split()
)


@dataclass(frozen=True)
class Cause:
    """A cause: its name for the rows of a table, a sentence, and a test that says which samples it explains."""

    name: str
    sentence: str
    explains: Callable[[str, NotFixed], bool]


CAUSES = (
    Cause(
        "no end",
        "With plain backward and with ignoring, the process dies in one of PyTorch's kernels, or it does not end.",
        lambda operator, sample: sample.failure.startswith(ENDS),
    ),
    Cause(
        "finite in PyTorch",
        "In PyTorch's formula, terms as large as 3e38 cancel, so the digits of smaller terms are lost. PyTorch's "
        "gradient is finite, but it differs from the gradient of the clean input. ignoring returns the same bits.",
        lambda operator, sample: sample.finite,
    ),
    Cause(
        "computed zero",
        "In attention, softmax computes the weight 0 for some keys. A computed 0 is not a selection, so its product "
        "with a NaN, an infinity or an overflow is NaN.",
        lambda operator, sample: (
            operator in ATTENTION
            and not sample.failure
            and ("nan" not in sample.case or "last entry" in sample.case)  # a causal mask cuts off the last key
        ),
    ),
)


def cause_of(operator: str, sample: NotFixed) -> str:
    """The name of the first cause that explains the sample."""
    return next((cause.name for cause in CAUSES if cause.explains(operator, sample)), UNEXPLAINED)


def operators() -> list[Any]:
    """Operators of the database that have a derivative in float32."""
    return [op for op in database() if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")]


def called(ops: list[Any], names: Sequence[str]) -> list[Any]:
    """The operators with these names, with all their variants, or the variants with these names; without names all.

    Raises:
        Problem: if a name is not known.
    """
    chosen = named(names, (name for op in ops for name in (op.name, name_of(op))), "operator")
    return [op for op in ops if not chosen or op.name in chosen or name_of(op) in chosen]


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


def fixed(project: Project, *names: str) -> None:
    """Measure all operators, print those that are not fixed, and write `results/measured/fixed.json`.

    If operators are named, measure only them, and write nothing.
    """
    tallies = measure_all(called(operators(), names))
    if names:
        return
    content = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "samples_of_an_operator": SAMPLES,
        **totals_and_rows(tallies),
    }
    keep_swept(project, "fixed", content)


def fixed_sample(project: Project) -> None:
    """Measure two samples of each operator, in a minute or two, and write the sums to `_build/fixed.json`."""
    tallies = measure_all(operators(), 2)
    found = totals_and_rows(tallies)
    crashed = [tally.operator for tally in tallies if any(lost.failure.startswith(ENDS) for lost in tally.not_fixed)]
    sums = {count: found["totals"][count] for count in ("samples", "contaminated", "fixed", "broken", "other_bits")}
    write(project.build / "fixed.json", json.dumps({"operators": len(tallies), **sums, "crashed": crashed}) + "\n")


def totals_and_rows(tallies: list[Tally]) -> dict[str, Any]:
    """What is recorded of all operators: their number, their sums, and a row for each operator with a finding.

    No sample contaminates the other operators, and `ignoring` gives plain PyTorch's gradients for them.
    """
    told = [tally for tally in tallies if tally.contaminated or tally.broken or tally.other_bits]
    return {
        "operators": len(tallies),
        "totals": totals(tallies, COUNTS),
        "rows": [row(tally) for tally in told],
    }


def row(tally: Tally) -> dict[str, Any]:
    """A tally as it is recorded. Samples that are not fixed are counted by their cause."""
    causes = Counter(cause_of(tally.operator, sample) for sample in tally.not_fixed)
    return {**asdict(tally), "not_fixed": dict(sorted(causes.items()))}


def measure_all(chosen: list[Any], samples: int = SAMPLES) -> list[Tally]:
    """The tallies of all operators, each from its own process: a poisoned sample can crash a library below PyTorch."""

    def lost(op: Any, why: str) -> Tally:
        found: Tally | str = apart(lambda: measure(op, samples=samples, alone=True), SECONDS + 2 * SECONDS_ALONE)
        if isinstance(found, str):
            why, found = found, Tally(name_of(op))
            found.lose("all samples", why)
        return found

    def told(tally: Tally) -> str:
        notes = tally.notes[:: max(1, len(tally.notes) // 3)][:4]
        return "\n    ".join([_line(tally.operator, tally), *notes]) if notes else ""

    tallies = all_apart(chosen, lambda op: measure(op, samples=samples), SECONDS + SECONDS_ALONE, lost, told)
    print(_line("\rall operators", *tallies))
    return tallies


def _line(name: str, *tallies: Tally) -> str:
    unexplained = sum(row(tally)["not_fixed"].get(UNEXPLAINED, 0) for tally in tallies)
    return counted(name, {**totals(tallies, COUNTS), "unexplained": unexplained})


# On the page.


def shown(content: dict[str, Any]) -> str:
    """Sentences on how many samples are fixed, and a table of the causes of the others."""
    total, rows = content["totals"], [row for row in content["rows"] if row["contaminated"]]
    left = [row for row in rows if row["fixed"] < row["contaminated"]]
    said = (
        f"<p><strong>{total['fixed']:,} of {total['contaminated']:,} contaminated samples are fixed "
        f"({_share(total['fixed'], total['contaminated'])}), and {total['broken']} of {total['samples']:,} samples are "
        f"broken</strong> (torch {html.escape(content['torch'])}). Of {content['operators']} operators, {len(left)} "
        f"have samples that are not fixed, {len(rows) - len(left)} have only fixed ones, and "
        f"{content['operators'] - len(rows)} have no contaminated sample."
    )
    if total["left_out"]:
        said += f" {total['left_out']} samples of the database were left out, because they are too large."
    return prose(f"{said}</p>", *([_causes(left)] if left else []))


def _causes(rows: list[dict[str, Any]]) -> str:
    """A table of the causes, the most frequent first. A sample without a known cause is called unexplained."""
    sentences = {cause.name: cause.sentence for cause in CAUSES}
    counts: Counter[str] = Counter()
    having: dict[str, list[str]] = {}
    for row in rows:
        counts.update(row["not_fixed"])
        for name in row["not_fixed"]:
            having.setdefault(name, []).append(f"<code>{html.escape(row['operator'])}</code>")
    lines = [
        [
            html.escape(name),
            str(count),
            f"{html.escape(sentences.get(name, 'Not known yet.'))} Operators: {', '.join(having[name])}.",
        ]
        for name, count in counts.most_common()
    ]
    caption = f"Why {sum(counts.values())} samples are not fixed"
    return show.table(caption, ["cause", "samples", "what happens"], lines, stack=True)


def _share(part: int, whole: int) -> str:
    """A share in percent. Only a complete result is called 100 %."""
    share = 100 * part / whole
    return f"{share if part == whole else min(share, 99.9):.1f}%"
