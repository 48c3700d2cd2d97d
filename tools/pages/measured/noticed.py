"""In how many cells the build notices a change: the table from `results/measured/noticed.json`."""

from __future__ import annotations

import html
from typing import Any


def noticed(content: dict[str, Any]) -> str:
    """How many changes of an output the build noticed, and the cells in which it noticed none."""
    from helpers import show

    pages = content["pages"]
    total = {key: sum(row[key] for row in pages.values()) for key in ("cells", "mutated", "noticed")}
    missed = [[html.escape(page), html.escape(line)] for page, row in pages.items() for line in row["missed"]]
    cells, mutated = total["cells"], total["mutated"]
    prose = (
        f"<p>On torch {html.escape(content['made_with']['torch'])}, the {len(pages)} pages with code have {cells} "
        f"cells that show something. Each of these cells was changed once. In {mutated} of them, the change was a "
        f"mutation of the code. In the other {cells - mutated}, every mutation that was tried raised an error or "
        f"left the "
        "output unchanged, so the change was an added print. "
        f"The build failed after {total['noticed']} of {cells} changes.</p>"
    )
    table = show.table("Changes that the build did not notice", ["page", "cell"], missed, stack=True) if missed else ""
    return show.page(f'<div class="zn-prose">{prose}{table}</div>')
