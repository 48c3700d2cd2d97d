"""Whether an undefined gradient becomes a number, by operator: the table from `results/measured/honesty.json`."""

from __future__ import annotations

import html
from typing import Any


def honesty(content: dict[str, Any]) -> str:
    """A table of the operators with findings, with the totals of all operators in the foot."""
    from helpers import show

    columns = ("undefined", "hidden", "other_bits", "exceptions", "failed")
    total = content["totals"]
    found = [row for row in content["rows"] if any(row[column] for column in columns[1:])]
    finite = sum(row["hidden"] > 0 for row in content["rows"])
    caption = (
        f"{total['hidden']} of {total['undefined']:,} undefined elements came out finite, in {finite} operators; "
        f"{total['cases']:,} gradients of {content['operators']} operators were tested; "
        f"torch {html.escape(content['torch'])}"
    )
    head = ["operator", "undefined", "came out finite", *(column.replace("_", " ") for column in columns[2:])]
    rows = [[f"<code>{html.escape(row['operator'])}</code>", *(str(row[c]) for c in columns)] for row in found]
    foot = ["all operators", *(str(total[column]) for column in columns)]
    return show.page(f'<div class="zn-prose">{show.table(caption, head, rows, foot)}</div>')
