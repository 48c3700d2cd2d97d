"""How many contaminated gradients are fixed, by operator: the table from `results/measured/fixed.json`."""

from __future__ import annotations

import html
import math
from collections import Counter
from typing import Any


def fixed(content: dict[str, Any]) -> str:
    """Three tables: operators with samples that are not fixed, with totals; the causes; folded, the other operators."""
    from helpers import show

    columns = ("samples", "contaminated", "fixed", "broken")
    total = content["totals"]
    rows = [row for row in content["rows"] if row["contaminated"]]
    left = sorted((row for row in rows if row["fixed"] < row["contaminated"]), key=_fixed_share)
    whole = [row for row in rows if row["fixed"] == row["contaminated"]]

    def lines(rows: list[dict[str, Any]]) -> list[list[str]]:
        return [[_with_notes(row), *(str(row[column]) for column in columns)] for row in rows]

    caption = (
        f"{total['fixed']} of {total['contaminated']} contaminated samples fixed "
        f"({_share(total['fixed'], total['contaminated'])}), {total['broken']} broken; "
        f"{content['operators']} operators, torch {html.escape(content['torch'])}"
    )
    foot = ["all operators", *(str(total[column]) for column in columns)]
    head = ["operator", *columns]
    parts = [show.table(caption, head, lines(left), foot)]
    if left:
        parts.append(_causes(content["causes"], left))
    if total["left_out"]:
        parts.append(f"<p>{total['left_out']} samples of the database were left out, because they are too large.</p>")
    every = show.table("Operators for which every contaminated sample is fixed", head, lines(whole))
    parts.append(f"<details><summary>{len(whole)} operators are fixed on every sample</summary>{every}</details>")
    return show.page(f'<div class="zn-prose">{"".join(parts)}</div>')


def _causes(sentences: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """A table of the causes, the most frequent first. A sample without a known cause is called unexplained."""
    from helpers import show

    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["not_fixed"])
    lines = [
        [html.escape(name), str(count), html.escape(sentences.get(name, "Not known yet."))]
        for name, count in counts.most_common()
    ]
    caption = f"Why {sum(counts.values())} samples are not fixed"
    return show.table(caption, ["cause", "samples", "what happens"], lines, stack=True)


def _share(part: int, whole: int) -> str:
    """A share in percent, rounded down, so that only a complete result is called 100 %."""
    return f"{math.floor(1000 * part / whole) / 10:.1f}%"


def _fixed_share(row: dict[str, Any]) -> tuple[float, str]:
    return row["fixed"] / row["contaminated"], row["operator"]


def _with_notes(row: dict[str, Any]) -> str:
    """The operator, with notes: why samples are not fixed, where plain PyTorch died, and operators without a rule."""
    notes = [f"{count} × {html.escape(cause)}" for cause, count in row["not_fixed"].items()]
    if row["crashed"]:
        notes.append(f"plain PyTorch crashes on {row['crashed']}")
    names = ", ".join(f"<code>{html.escape(each.removeprefix('aten::'))}</code>" for each in row["without_rule"])
    if names:
        notes.append(f"without a rule: {names}")
    note = f'<br><span class="zn-note">{"; ".join(notes)}</span>' if notes else ""
    return f"<code>{html.escape(row['operator'])}</code>{note}"
