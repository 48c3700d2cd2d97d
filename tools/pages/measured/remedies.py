"""The time of each remedy: the table from `results/measured/remedies.json`."""

from __future__ import annotations

import html
import statistics
from typing import Any


def remedies(content: dict[str, Any]) -> str:
    """A table of the time of each remedy, as a multiple of plain PyTorch's: median, minimum and maximum of cases."""
    from helpers import show
    from helpers.methods import method
    from helpers.remedies import COLUMNS

    sizes = sorted({row["elements"] for row in content["rows"]})
    lines = []
    for name in COLUMNS[1:]:
        spans = (remedy_times(content, name, size) for size in sizes)
        cells = [f"{statistics.median(found):.1f} ({min(found):.1f}–{max(found):.1f})" for found in spans]
        lines.append([html.escape(method(name).title), *cells])
    caption = (
        f"Processor time of forward and backward, as a multiple of plain PyTorch's: the median of {_cases(content)} "
        f"cases, and the least and the most (torch {html.escape(content['made_with']['torch'])}, one thread)"
    )
    head = ["method", *(f"{size:,} elements".replace(",", " ") for size in sizes)]
    return show.page(f'<div class="zn-prose zn-figures">{show.table(caption, head, lines)}</div>')


def _cases(content: dict[str, Any]) -> int:
    return len({row["case"] for row in content["rows"]})


def remedy_times(content: dict[str, Any], remedy: str, elements: int) -> list[float]:
    """The time of a remedy in each case that it applies to. A hook on a module is compared with the module."""
    base = "plain PyTorch in a module" if remedy == "module hook" else "vanilla"
    rows = [row["seconds"] for row in content["rows"] if row["elements"] == elements]
    return [times[remedy] / times[base] for times in rows if remedy in times]
