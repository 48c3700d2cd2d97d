"""The cost of each remedy on the page *Every remedy for a NaN gradient*: its time, compared with plain PyTorch.

The programs are those of the page, with a longer `x`: its two elements are repeated, because with two elements, the
time would be only the time of calling functions. All programs of a case run in turn, in one thread, and the median of
many rounds counts.
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
    """The processor time of forward and backward, by remedy, if the remedy has a place in the case.

    A program that raises is timed until it raises.
    """
    assert isinstance(situation.x, list)
    names = namespace(replace(situation, x=situation.x * (elements // len(situation.x))))
    texts = {MODULE: plain_of(situation, "module hook"), **{name: program(situation, name) for name in COLUMNS}}
    codes = {name: compile(text, name, "exec") for name, text in texts.items() if text is not None}
    times = [{name: _once(code, names) for name, code in codes.items()} for _ in range(rounds)]
    return {name: statistics.median(each[name] for each in times) for name in codes}


def _once(code: CodeType, names: dict[str, Any]) -> float:
    fresh = {**names, "x": names["x"].detach().clone().requires_grad_()}  # a new tensor, without old hooks
    with warnings.catch_warnings(action="ignore"):  # torch.masked warns that it is a prototype
        start = time.process_time()
        with contextlib.suppress(RuntimeError):
            exec(code, fresh)
        return time.process_time() - start


def remedies(project: Project) -> None:
    """Time every remedy on every case, and write the times to `results/measured/remedies.json`."""
    torch.set_num_threads(1)
    rows = []
    for elements, rounds in ROUNDS.items():
        for situation in ELEMENTWISE:
            times = {name: round(took, 7) for name, took in seconds(situation, elements, rounds).items()}
            rows.append({"case": situation.name, "elements": elements, "seconds": times})
            print(
                f"{situation.name}, {elements} elements: {times['vanilla'] * 1e3:.2f} ms with plain PyTorch", flush=True
            )
    keep(project, "remedies", {"made_with": made_with(), "rows": rows})


# On the page.


def shown(content: dict[str, Any]) -> str:
    """A table of the time of each remedy, as a multiple of plain PyTorch's: median, minimum and maximum of cases."""
    sizes = sorted({row["elements"] for row in content["rows"]})
    lines = []
    for name in COLUMNS[1:]:
        base = MODULE if name == "module hook" else "vanilla"  # a hook on a module is compared with the module
        cells = []
        for size in sizes:
            times = [row["seconds"] for row in content["rows"] if row["elements"] == size]
            found = [each[name] / each[base] for each in times if name in each]
            cells.append(f"{statistics.median(found):.1f} ({min(found):.1f}–{max(found):.1f})")
        lines.append([html.escape(method(name).title), *cells])
    cases = len({row["case"] for row in content["rows"]})
    caption = (
        f"Processor time of forward and backward, as a multiple of plain PyTorch's: the median of {cases} "
        f"cases, and the least and the most (torch {html.escape(content['made_with']['torch'])}, one thread)"
    )
    head = ["method", *(f"{size:,} elements" for size in sizes)]
    return prose(show.table(caption, head, lines), kind="zn-figures")
