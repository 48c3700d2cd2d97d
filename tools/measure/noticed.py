"""Whether the build notices a change: each cell that shows something is changed in turn, and its page is checked."""

from __future__ import annotations

import copy
import html
import random
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from helpers import show

from ..project import Problem, Project
from ..steps import session
from ..steps.collect import collect, failed
from ..steps.execute import TIMEOUT
from ..steps.outputs import Output, Recorded, environment, outputs
from ..steps.read import read as read_chapter
from ..steps.run import needs_torch, run_one
from ..steps.warm import Warmth
from .mutations import mutations
from .records import keep, prose, read

TRIES = 12
"""How many mutations are tried in a cell, until a mutation changes the output and raises nothing."""
ADDED = "\nprint('one line more')"
"""The code that is added to a cell if no mutation that was tried changes its output."""


def noticed(project: Project, *names: str, sample: int | None = None) -> int:
    """Change every cell that shows something, and write the counts to `results/measured/noticed.json`.

    A change is a mutation of the cell's code (a number, an operator, an argument) that changes what is compared of the
    cell's output. If no mutation does, the change is a printed line. A change is noticed if `make check` would fail.

    Args:
        project: the checkout.
        names: the chapters; all chapters by default. The record keeps the rows of the other chapters.
        sample: how many cells of each chapter to change; all cells by default. With a sample, nothing is written.

    Returns:
        0 if every change was noticed, otherwise 1.

    Raises:
        Problem: if there is no chapter with such a name, or if the outputs were recorded in another environment.
    """
    recorded = Recorded.read(project)
    if not recorded.applies:
        raise Problem(
            f"the outputs were recorded with {recorded.made_with}, but this is {environment()}: run make record first"
        )
    rows: dict[str, Any] = read(project, "noticed").get("pages", {}) if names else {}
    session.begin(project)
    chapters = project.chapters_called(*names)
    with Warmth(several=any(needs_torch(read_chapter(chapter)) for chapter in chapters)), ThreadPoolExecutor(2) as pool:
        for chapter in chapters:
            row = _page(chapter, recorded, pool, sample)
            print(
                f"  {chapter.stem}: the build noticed the change in {row['noticed']} of {row['cells']} cells",
                flush=True,
            )
            rows[chapter.stem] = row
    if sample is None:
        order = [chapter.stem for chapter in project.chapters if chapter.stem in rows]
        keep(project, "noticed", {"made_with": environment(), "pages": {page: rows[page] for page in order}})
    missed = [f"{page}: {line}" for page, row in rows.items() for line in row["missed"]]
    if missed:
        print("the build did not notice a change in these cells:", *missed, sep="\n  ", file=sys.stderr)
    return int(bool(missed))


def _page(chapter: Path, recorded: Recorded, pool: ThreadPoolExecutor, sample: int | None) -> dict[str, Any]:
    """The row of one page: how many cells show something, in how many a change was noticed, and the other cells."""
    book = read_chapter(chapter)
    before = outputs(run_one(chapter, copy.deepcopy(book), TIMEOUT).notebook)
    if sample is not None:
        before = random.Random(chapter.stem).sample(before, min(sample, len(before)))
    found = list(pool.map(lambda shown: _change(chapter, book, shown, recorded), before))
    return {
        "cells": len(before),
        "noticed": sum(is_noticed for is_noticed, _ in found),
        "mutated": sum(mutated for _, mutated in found),
        "missed": [shown.name for shown, (is_noticed, _) in zip(before, found, strict=True) if not is_noticed],
    }


def _change(chapter: Path, book: NotebookNode, shown: Output, recorded: Recorded) -> tuple[bool, bool]:
    """Whether the build notices a change of this cell's output, and whether the change is a mutation."""
    number = shown.number - 1
    source = [cell for cell in book.cells if cell.cell_type == "code"][number].source
    for code in _changed(source):
        changed = copy.deepcopy(book)
        cell = [cell for cell in changed.cells if cell.cell_type == "code"][number]
        cell.source = code
        run = run_one(chapter, changed, TIMEOUT)
        if run.troubles:
            continue
        now = [output for output in outputs(run.notebook) if output.number == shown.number]
        if not (now and now[0].equals(shown)):
            return bool(recorded.differences(run) or failed(collect([run]))), not code.endswith(ADDED)
    raise Problem(
        f"{chapter.name}: {shown.name} shows the same output although a print was added; so its output can't be tested"
    )


def _changed(source: str) -> Iterable[str]:
    """The code of a cell with one change, for each possible change, always in the same order."""
    changed = mutations(source)
    yield from random.Random(source).sample(changed, min(TRIES, len(changed)))
    yield source + ADDED


# On the page.


def shown(content: dict[str, Any]) -> str:
    """How many changes of an output the build noticed, and the cells in which it noticed none."""
    pages = content["pages"]
    total = {key: sum(row[key] for row in pages.values()) for key in ("cells", "mutated", "noticed")}
    missed = [[html.escape(page), html.escape(line)] for page, row in pages.items() for line in row["missed"]]
    cells, mutated = total["cells"], total["mutated"]
    summary = (
        f"<p>On torch {html.escape(content['made_with']['torch'])}, the {len(pages)} pages with code have {cells} "
        f"cells that show something. Each of these cells was changed once. In {mutated} of them, the change was a "
        f"mutation of the code. In the other {cells - mutated}, every mutation that was tried raised an error or "
        "left the output unchanged, so the change was an added print. "
        f"The build failed after {total['noticed']} of {cells} changes.</p>"
    )
    table = show.table("Changes that the build did not notice", ["page", "cell"], missed, stack=True) if missed else ""
    return prose(summary, table)
