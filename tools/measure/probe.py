"""What `explain.probe` finds: in losses of public repositories, in healthy losses, and in PyTorch's own.

The losses are in `tests/zero_or_nan/explain/losses.md`. The part *held* was searched once, when `explain.probe` was
done, and the record keeps these answers.
"""

from __future__ import annotations

import inspect
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from helpers import show
from zero_or_nan import explain
from zero_or_nan.explain import Finding

from ..project import Project
from .apart import all_apart
from .corpora import Program, answers, default_dtype_kept, programs, variables, written
from .records import keep, made_with, prose, read
from .torchs_losses import LOSSES, searchable

FILE = Path("tests/zero_or_nan/explain/losses.md")
SECONDS = 10.0
_MOST = 90.0
"""The most seconds for a loss, with the time in which its remedies are tried."""


@dataclass(frozen=True)
class Answer:
    """What `explain.probe` says of a loss.

    Attributes:
        name, part: those of the loss.
        is_healthy: whether the loss is healthy.
        is_found: whether the line at fault is among the findings.
        others: the other lines with a finding.
        distance: how far the first input is from the example.
        works: whether the remedy, pasted, gives finite numbers on this input; None if it has no line to paste.
        has_test: whether there is a test, which was run and failed.
        seconds: how long the search took.
        error: why there is no answer.
    """

    name: str
    part: str
    is_healthy: bool
    is_found: bool = False
    others: tuple[str, ...] = ()
    distance: str = ""
    works: bool | None = None
    has_test: bool = False
    seconds: float = 0.0
    error: str = ""


def probe(project: Project, *names: str) -> None:
    """Search all losses, and write the answers to `results/measured/probe.json`; of named losses, print them.

    Of PyTorch's own losses that are named, print the findings as scripts for PyTorch's tracker.
    """
    if scripts := [script for name in names if name in LOSSES for script in scripts_of_torch(name)]:
        return print(*scripts, sep="\n\n")
    held = read(project, "probe").get("held", [])
    told = "{0.name}: {0.distance}{0.error}".format
    if parts := answers(programs(project.root / FILE), names, held, answer, _MOST, _lost, told):
        of_torch = all_apart(list(LOSSES), answer_of_torch, _MOST, _lost_of_torch, "{0[name]}".format)
        keep(project, "probe", {**made_with(), **parts, "torch_losses": of_torch})
        print(*(f"{part}: {summed(rows)}" for part, rows in parts.items()), sep="\n")


def _lost(loss: Program, why: str) -> Answer:
    return Answer(loss.name, loss.part, not loss.lines, error=why)


def answer(loss: Program) -> Answer:
    """Search a loss, and paste the remedy of the first finding."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), default_dtype_kept():
        warnings.simplefilter("ignore")
        names = variables(Path(folder), loss.source)
        report = explain.probe(names["loss_fn"], *names["inputs"](), seconds=SECONDS)
        right = [each for each in report.findings if loss.has_at_fault(each.source)]
        others = tuple(dict.fromkeys(each.source for each in report.findings if not loss.has_at_fault(each.source)))
        found: dict[str, Any] = {"others": others, "seconds": round(report.seconds, 1)}
        if right:
            works = _works(Path(folder), loss.source, right[0])
            found |= {"is_found": True, "distance": right[0].distance, "works": works, "has_test": bool(right[0].test)}
        return Answer(loss.name, loss.part, not loss.lines, **found)


def _works(folder: Path, source: str, finding: Finding) -> bool | None:
    """Whether a remedy, pasted, makes the loss and its gradients finite on the input of the finding."""
    changed = written(source, finding.origin) if finding.origin is not None else None
    if changed is None:
        return None
    with explain() as report:
        variables(folder, changed)["loss_fn"](*finding.inputs).backward()
    return report.ok


def answer_of_torch(name: str) -> dict[str, Any]:
    """Search a loss of PyTorch's."""
    torch.manual_seed(0)
    loss_fn, inputs = searchable(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = explain.probe(loss_fn, *inputs, seconds=SECONDS)
    found = [{"function": each.function, "kind": each.kind, "distance": each.distance} for each in report.findings]
    return {"name": name, "code": LOSSES[name], "findings": found}


def scripts_of_torch(name: str) -> list[str]:
    """A script for each finding of a loss of PyTorch's. It needs PyTorch only, and ends with an AssertionError."""
    torch.manual_seed(0)
    loss_fn, inputs = searchable(name)
    head = ["import torch", "import torch.nn.functional as F", "from torch.distributions import *", "", ""]
    head += [f"def loss_fn({', '.join(inspect.signature(loss_fn).parameters)}):", f"    return ({LOSSES[name]}).mean()"]
    tests = (each.test.removeprefix("import torch\n") for each in explain.probe(loss_fn, *inputs).findings)
    return ["\n".join([*head, test, "", "test_loss_fn_is_finite()"]) for test in tests]


def _lost_of_torch(name: str, why: str) -> dict[str, Any]:
    return {"name": name, "code": LOSSES[name], "findings": [], "error": why}


def summed(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many losses can fail, are healthy, and have each answer."""
    failing = [row for row in rows if not row["is_healthy"]]
    found = [row for row in failing if row["is_found"]]
    return {
        "losses with a bug": len(failing),
        "the line is found": len(found),
        "with a test that fails": sum(row["has_test"] for row in found),
        "the remedy, pasted, gives finite numbers": sum(row["works"] is True for row in found),
        "healthy losses": len(rows) - len(failing),
        "healthy losses with a finding": sum(bool(row["others"]) for row in rows if row["is_healthy"]),
    }


def shown(content: dict[str, Any]) -> str:
    """A table of the parts, and a sentence on PyTorch's own losses."""
    parts = {"own": "our own", "work": "used to improve the search", "held": "held back"}
    counts = {part: summed(content[part]) for part in parts}
    body = [[text, *(str(counts[part][text]) for part in parts)] for text in counts["own"]]
    caption = f"What <code>explain.probe</code> finds in losses (torch {content['torch']})"
    table = show.table(caption, ["answer", *parts.values()], body, stack=True)
    failing = sum(bool(row["findings"]) for row in content["torch_losses"])
    said = (
        f"<p>We also searched {len(content['torch_losses'])} losses and distributions of PyTorch itself: {failing} of "
        "them can fail. On some of the inputs that make them fail, the exact result is infinite too, or the "
        "documentation mentions the failure.</p>"
    )
    return prose(table, said)
