"""What is followed in compiled regions, by backend: the tables from `results/measured/compiled.json`."""

from __future__ import annotations

import html
from typing import Any


def compiled(content: dict[str, Any]) -> str:
    """A table of the outcomes of the programs, by release and backend; folded, the programs that are not right."""
    from helpers import show

    totals = content["totals"]
    outcomes = [key for key in totals[0] if key not in ("torch", "backend", "of", "names")]
    programs = sum(row[outcome] for row in totals for outcome in outcomes)
    caption = (
        f"{sum(row['right'] for row in totals):,} of {programs:,} compiled programs with bad rows get the right "
        f"gradient, {sum(row['silent'] + row['hidden'] for row in totals)} get another one without a warning"
    )
    shown = [outcome for outcome in outcomes if any(row[outcome] for row in totals)]
    lines = [
        [f"{html.escape(row['torch'])}, <code>{html.escape(row['backend'])}</code>", f"{row['names']} {row['of']}"]
        + [str(row[outcome]) for outcome in shown]
        for row in totals
    ]
    parts = [show.table(caption, ["PyTorch, backend", "of", *shown], lines)]
    left = [
        [
            f"{html.escape(row['torch'])}, <code>{html.escape(row['backend'])}</code>",
            html.escape(row["name"]),
            "<br>".join(html.escape(f"{what}: {'; '.join(cases)}") for what, cases in cases_by_outcome(row)),
        ]
        for row in content["exceptions"]
    ]
    if left:
        table = show.table("Programs that are not right", ["PyTorch", "layer or loss", "outcome"], left, stack=True)
        parts.append(f"<details><summary>{len(left)} rows of programs that are not right</summary>{table}</details>")
    return show.page(f'<div class="zn-prose">{"".join(parts)}</div>')


def cases_by_outcome(row: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Each outcome of a program that is not right, with the cases that have it."""
    return [(outcome, cases) for outcome, cases in row.items() if outcome not in ("torch", "backend", "name")]
