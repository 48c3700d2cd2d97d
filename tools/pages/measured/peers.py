"""The test suites of other projects, run with `ignoring`: the table from `results/measured/peers.json`."""

from __future__ import annotations

import html
from typing import Any


def peers(content: dict[str, Any]) -> str:
    """A table of other projects' tests: how many pass with plain PyTorch, and how many of those fail with ignoring."""
    from helpers import show

    counts = ("passed", "differentiating", "failed", "unsteady")
    rows, sums, failures, warned = [], dict.fromkeys(counts, 0), [], []
    for row in content["rows"]:
        figures = {name: row[name] if isinstance(row[name], int) else len(row[name]) for name in counts}
        sums = {name: sums[name] + figures[name] for name in counts}
        run = ", ".join(html.escape(each) for each in row["tests"])
        name = f"<code>{html.escape(row['package'])}</code> {html.escape(row['version'])}"
        rows.append([f'{name}<br><span class="zn-note">{run}</span>', *(str(figures[each]) for each in counts)])
        failures += [[f"<code>{html.escape(test)}</code>", html.escape(said)] for test, said in row["failed"].items()]
        warned += [[html.escape(said), str(tests)] for said, tests in row["warnings"].items()]
    run_on = content["rows"][0]
    caption = (
        f"{sums['failed']} of {sums['passed']:,} tests that pass with plain PyTorch fail with <code>ignoring</code>; "
        f"torch {html.escape(run_on['torch'])}, Python {html.escape(run_on['python'])}"
    )
    head = [
        "package, and the tests that ran",
        "tests that pass with plain PyTorch",
        "of these, tests that call backward",
        "of these, tests that fail with ignoring",
        "tests left out",
    ]
    foot = ["all packages", *(str(sums[name]) for name in counts)]
    parts = [show.table(caption, head, rows, foot, stack=True)]
    if failures:
        parts.append(show.table("Tests that fail with ignoring", ["test", "its error message"], failures, stack=True))
    if warned:
        parts.append(show.table("Warnings of ignoring in these tests", ["warning", "tests"], warned))
    return show.page(f'<div class="zn-prose">{"".join(parts)}</div>')
