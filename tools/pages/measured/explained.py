"""How often `explain` and other tools find an origin: the tables from `results/measured/explained.json`."""

from __future__ import annotations

import html
from collections import Counter
from typing import Any

_TOOLS = {
    "explain": "<code>explain</code>",
    "anomaly mode": "anomaly mode",
    "forward hooks": "module hooks",
    "loss and parameters": "loss check",
    "DebugMode": "<code>DebugMode</code>",
    "DebugUnderflowOverflow": "<code>DebugUnderflowOverflow</code>",
    "torchlens": "torchlens",
}


def explained(content: dict[str, Any]) -> str:
    """Three tables about `explain`.

    Two count the programs in which each tool names the right line, and the false alarms. The third compares the first
    answers of `explain` to public reports with its answers now.
    """
    from helpers import show

    wrong = [row for row in content["rows"] if row["kind"] != "clean"]
    total, told = sum(row["programs"] for row in wrong), sum(row["explain"]["all"] for row in wrong)
    caption = (
        f"In how many of {total} programs with a known origin each tool names the right line "
        f"(torch {html.escape(content['torch'])}). In {told} of them, <code>explain</code> also gives the right phase, "
        "operator and kind, and names no other origin"
    )
    parts = [_lines_named(caption, content["rows"], content)]
    if reports := content.get("reports"):
        count = sum(row["programs"] for row in reports["rows"] if row["kind"] != "clean")
        caption = f"The same for {count} programs from public reports, which were written before explain saw them"
        parts.append(_lines_named(caption, reports["rows"], content))
        parts.append(_answers(reports))
    return show.page(f'<div class="zn-prose">{"".join(parts)}</div>')


def _lines_named(caption: str, rows: list[dict[str, Any]], content: dict[str, Any]) -> str:
    from helpers import show

    wrong = [row for row in rows if row["kind"] != "clean"]
    clean = [row for row in rows if row["kind"] == "clean"]
    counts = [row["programs"] for row in wrong]
    body = [["programs", *map(str, counts), str(sum(counts)), str(sum(row["programs"] for row in clean))]]
    for tool in content["tools"]:
        lines = [row[tool]["line"] if tool in row else None for row in wrong]
        version = content.get("versions", {}).get(tool, "")
        own = (
            "" if version.startswith("torch ") or not version else f" ({html.escape(version.removeprefix(f'{tool} '))})"
        )
        alarms = sum(row[tool]["said"] for row in clean if tool in row)
        cells = ["–" if line is None else str(line) for line in lines]
        body.append([_TOOLS[tool] + own, *cells, str(sum(line or 0 for line in lines)), str(alarms)])
    head = ["tool", *(row["kind"] for row in wrong), "all kinds", "false alarms on clean programs"]
    return show.table(caption, head, body, stack=True)


_ANSWERS = {
    "kind": "the kind of the first origin",
    "line": "the line of the first origin",
    "all": "each origin, and no other",
    "cause": "the cause that the report found, if it is one to be named",
    "remedy": "a remedy that agrees with the fix of the report",
}


def _answers(reports: dict[str, Any]) -> str:
    """For each question, how many answers were right at first, and are right now, of the programs it applies to."""
    from helpers import show

    def right(when: str, name: str) -> str:
        words = Counter(word for answers in reports[when].values() for word in answers.split())
        return f"{words['+' + name]} of {words['+' + name] + words['-' + name]}"

    body = [[text, right("first", name), right("now", name)] for name, text in _ANSWERS.items()]
    return show.table(
        "What <code>explain</code> gets right in the programs from public reports",
        ["answer", "when it first saw the program", "now"],
        body,
    )
