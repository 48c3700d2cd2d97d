"""The cost of each remedy on the page *Every remedy for a NaN gradient*: its time, compared with plain PyTorch.

The programs are those of the page, with a longer `x`: its two elements are repeated. With two elements, the time would
be only the time of calling functions. Therefore only cases are measured whose code works for any number of elements.
All programs of a case run in turn, in one thread, and the median of many rounds counts.
"""

from __future__ import annotations

import contextlib
import html
import statistics
import time
import warnings
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from helpers import show
from helpers.methods import method
from helpers.recipes import IGNORED, Situation
from helpers.remedies import COLUMNS, namespace, plain_of, program

from ..project import Project
from .records import keep, made_with, prose

ELEMENTWISE = tuple(s for s in IGNORED if isinstance(s.x, list) and s.given.startswith("ok = x"))
"""Cases of the page whose code works for any number of elements. The loss ignores half of them."""
MODULE = "plain PyTorch in a module"
"""The baseline for a hook on a module. Each round creates the class again, so the baseline does too."""
ROUNDS = {2**14: 300, 2**20: 15}
"""How often each program runs, by the number of elements."""


def seconds(situation: Situation, elements: int, rounds: int) -> dict[str, float]:
    """The processor time of forward and backward, by remedy. A remedy that does not apply to the case is left out.

    A program that raises is timed until it raises.
    """
    assert isinstance(situation.x, list)
    names = namespace(replace(situation, x=situation.x * (elements // len(situation.x))))
    texts = {MODULE: plain_of(situation, "module hook"), **{name: program(situation, name) for name in COLUMNS}}
    codes = {name: compile(text, name, "exec") for name, text in texts.items() if text is not None}
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(rounds):
        for name, code in codes.items():
            times[name].append(_once(code, names))
    return {name: statistics.median(each) for name, each in times.items()}


def _once(code: CodeType, names: dict[str, Any]) -> float:
    fresh = {**names, "x": names["x"].detach().clone().requires_grad_()}  # a new tensor, without old hooks
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")  # torch.masked warns that it is a prototype
        start = time.process_time()
        try:
            exec(code, fresh)
        finally:
            took = time.process_time() - start
    return took


def remedies(project: Project) -> None:
    """Time every remedy on every case, and write the times to `results/measured/remedies.json`."""
    torch.set_num_threads(1)
    rows = []
    for elements, rounds in ROUNDS.items():
        for situation in ELEMENTWISE:
            found = seconds(situation, elements, rounds)
            times = {name: round(took, 7) for name, took in found.items()}
            rows.append({"case": situation.name, "elements": elements, "seconds": times})
            ratios = ", ".join(f"{name} {took / found['vanilla']:.2f}" for name, took in found.items())
            print(f"{situation.name}, {elements} elements: {ratios}", flush=True)
    keep(project, "remedies", {"made_with": made_with(), "rows": rows})


# On the page.


def shown(content: dict[str, Any]) -> str:
    """A table of the time of each remedy, as a multiple of plain PyTorch's: median, minimum and maximum of cases."""
    sizes = sorted({row["elements"] for row in content["rows"]})
    lines = []
    for name in COLUMNS[1:]:
        spans = (remedy_times(content, name, size) for size in sizes)
        cells = [f"{statistics.median(found):.1f} ({min(found):.1f}–{max(found):.1f})" for found in spans]
        lines.append([html.escape(method(name).title), *cells])
    cases = len({row["case"] for row in content["rows"]})
    caption = (
        f"Processor time of forward and backward, as a multiple of plain PyTorch's: the median of {cases} "
        f"cases, and the least and the most (torch {html.escape(content['made_with']['torch'])}, one thread)"
    )
    head = ["method", *(f"{size:,} elements" for size in sizes)]
    return prose(show.table(caption, head, lines), kind="zn-figures")


def remedy_times(content: dict[str, Any], remedy: str, elements: int) -> list[float]:
    """The time of a remedy in each case that it applies to. A hook on a module is compared with the module."""
    base = MODULE if remedy == "module hook" else "vanilla"
    rows = [row["seconds"] for row in content["rows"] if row["elements"] == elements]
    return [times[remedy] / times[base] for times in rows if remedy in times]
