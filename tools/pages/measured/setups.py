"""The training setups in which `ignoring` works: the table from `results/measured/setups.json`."""

from __future__ import annotations

import html
import re
from typing import Any


def setups(content: dict[str, Any]) -> str:
    """A table of the setups: the code, the result, and the releases on which it was tested."""
    from helpers import show

    rows = [
        [
            _code(row["setup"]),
            f'<pre>{html.escape(row["code"])}</pre><div class="zn-note">{_code(row["remark"])}</div>',
            _right_on(row),
        ]
        for row in content["rows"]
    ]
    caption = "Training code with <code>ignoring</code>, and the releases of PyTorch on which it was tested"
    table = show.table(caption, ["setup", "what you write", "right on"], rows, stack=True)
    return show.page(f'<div class="zn-prose zn-setups zn-searched">{table}</div>')


def _right_on(row: dict[str, Any]) -> str:
    from helpers.recorded import spans

    tested = f'<span class="zn-word">{spans(row["holds_on"])}</span>'
    return (tested if row["fixes"] else "<strong>no</strong>") if row["holds_on"] else html.escape(row["not_run"])


def _code(text: str) -> str:
    """Text with code between backticks, as HTML."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
