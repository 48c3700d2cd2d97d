"""What a gradient costs, and what a watched step costs: sentences and tables from `results/measured/costs.json`."""

from __future__ import annotations

import html
import statistics
from typing import Any

from helpers import show

from .records import prose

BOTH = ("forward", "backward")
STATES = ("clean", "contaminated")
SLOWEST = 5
"""How many of the functions the table shows."""


def shown(content: dict[str, Any]) -> str:
    """Tables of the time that a gradient takes, as a multiple of plain PyTorch's, and sentences on the rest."""
    rows, compiled = content["rows"], content["compiled"]
    usual, extreme = _models(rows)
    caption = (
        "Time of backward with <code>ignoring</code>, divided by plain PyTorch's time "
        f"(torch {content['torch']}, {content['machine']}). The first {len(usual) // 2} models are ordinary, the "
        "others are tiny or unusual"
    )
    head = ["model", "plain PyTorch, ms", "all finite", "half of the rows NaN"]
    table = show.table(caption, head, _pairs([*usual, *extreme]))
    masked, twice = (
        _span([times(row, method, BOTH, "ignoring") for row in rows if row["entries"]])
        for method in ("masked", "double where")
    )
    said = (
        f"<p>Backward of a compiled layer takes {_of(compiled, False)} as long as plain PyTorch's with the same "
        f"compiler, and {_of(compiled, True)} as long with NaN rows ({len(compiled) // 2} cases).</p>"
        f"<p>Peak memory is at most {_most_memory(rows):.1f} times plain PyTorch's, and in compiled layers at most "
        f"{_most_memory(compiled):.1f} times.</p>"
        "<p>To compute <code>where(keep, x.exp(), 0)</code> and its gradient, a second <code>where</code> "
        f"takes {twice} as long as <code>ignoring</code>. <code>torch.masked</code> takes {masked} as long.</p>"
    )
    return prose(table, said)


def _models(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of models of ordinary size, and of tiny or unusual ones."""
    models = [row for row in rows if not row["entries"]]
    return [row for row in models if "peak" in row], [row for row in models if "peak" not in row]


def _weighed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "peak" in row]


def multiples(row: dict[str, Any], state: str) -> list[float]:
    """The time of a function's backward at each size, as multiples of plain PyTorch's time."""
    return [round(ignoring / plain, 2) for plain, ignoring in row[state]]


def by_function(content: dict[str, Any]) -> str:
    """A summary of the functions at three sizes, and a table of the slowest."""
    rows = sorted(content["functions"], key=lambda row: -multiples(row, "contaminated")[-1])
    found = [[multiple for state in STATES for multiple in multiples(row, state)] for row in rows]
    median = [statistics.median(column) for column in zip(*found, strict=True)]
    growing = [
        f"<code>{html.escape(row['function'])}</code> ({state})"
        for at, state in ((1, "all finite"), (4, "with one NaN"))
        for row, of in zip(rows, found, strict=True)
        if of[at + 1] > 1.2 * of[at]
    ]
    grows = f"the multiple of {', '.join(growing)} grows" if growing else "no multiple grows"
    least = min(multiple for of in found for multiple in of[:3])
    summary = (
        f"<p><strong>In the median of {len(rows)} functions with a large input, backward takes {median[2]:.1f} times "
        f"as long as plain PyTorch's if all numbers are finite, and {median[5]:.1f} times if one is NaN.</strong> From "
        f"the middle size to the large one, {grows} by more than a fifth.{_error(least)}</p>"
    )
    head = ["function", "all finite", "with one NaN"]
    lines = [
        [f"<code>{html.escape(row['function'])}</code>", *_by_state(of)]
        for row, of in zip(rows[:SLOWEST], found, strict=False)
    ]
    lines.insert(0, ["median of all", *_by_state(median)])
    caption = (
        "Time of a function's backward in one thread, divided by plain PyTorch's time, at a small, a middle and a "
        f"large size: the {SLOWEST} slowest at the large size"
    )
    return prose(summary, show.table(caption, head, lines, stack=True))


def _error(least: float) -> str:
    """A sentence on the error of the measurement: with finite numbers, nothing can be faster than plain PyTorch."""
    if least >= 1:
        return ""
    return (
        " With finite numbers, <code>ignoring</code> can't be faster than plain PyTorch. The least multiple is "
        f"{least:.1f}, so these times have an error of at least {1 - least:.1f}."
    )


def _by_state(multiples_of_row: list[float]) -> list[str]:
    """For each state, the multiples at the three sizes as one text."""
    texts = [f"{multiple:.1f}" for multiple in multiples_of_row]
    return [" / ".join(texts[:3]), " / ".join(texts[3:])]


def in_short(content: dict[str, Any], on_gpu: dict[str, Any]) -> str:
    """What somebody decides by: the cost of ordinary models and of tiny ones, on a CPU and on a GPU."""
    usual, extreme = _models(content["rows"])
    clean, contaminated = (_span([row[what] for row in on_gpu["costs"]]) for what in STATES)
    return prose(
        f"<p><strong>On a CPU, backward of an ordinary model takes {_of(usual, False)} as long as plain PyTorch's if "
        f"all numbers are finite. If half of the rows are NaN, it takes {_of(usual, True)} as long.</strong> Tiny "
        f"models, long chains of functions and a gradient penalty take {_of(extreme, False)} as long, and "
        f"{_of(extreme, True)} as long with NaN rows. "
        '<a href="what-it-costs.html#functions-at-three-sizes">Small programs with one kind of function</a> take up to '
        f"{_most(content, 'clean', 'all numbers finite')}, and up to {_most(content, 'contaminated', 'one NaN')}.</p>"
        f"<p>A whole step, forward and backward, of an ordinary model takes {_of(usual, False, BOTH)} as long on a CPU "
        f"if all numbers are finite. On one GPU ({html.escape(on_gpu['device'])}), "
        f'<a href="use-it-in-your-project.html#on-a-gpu">a step takes</a> {clean} as long, and {contaminated} as long '
        "with a row of NaN.</p>"
    )


def cost(content: dict[str, Any], of: str) -> str:
    """What backward costs for a row of the table of settings: of `ordinary` or `compiled` models, or of a `penalty`."""
    penalty = [row for row in content["rows"] if row["case"].startswith("gradient penalty")]
    rows = {"ordinary": _models(content["rows"])[0], "compiled": content["compiled"], "penalty": penalty}[of]
    return f"Backward takes {_of(rows, False)} as long, and {_of(rows, True)} if half of the rows are NaN."


def _most(content: dict[str, Any], state: str, words: str) -> str:
    """The largest multiple of all functions at all sizes, with the name of the function."""
    most, name = max((max(multiples(row, state)), row["function"]) for row in content["functions"])
    return f"{most:.1f} times as long with {words} ({html.escape(name)})"


def _of(rows: list[dict[str, Any]], contaminated: bool, parts: tuple[str, ...] = ("backward",)) -> str:
    return _span([times(row, parts=parts) for row in rows if row["contaminated"] is contaminated])


def _span(multiples: list[float]) -> str:
    """The least and the most of some multiples."""
    least, most = f"{min(multiples):.1f}", f"{max(multiples):.1f}"
    return f"{least} times" if least == most else f"{least} to {most} times"


def _most_memory(rows: list[dict[str, Any]]) -> float:
    return max(map(_memory, _weighed(rows)))


def times(
    row: dict[str, Any], method: str = "ignoring", parts: tuple[str, ...] = ("backward",), base: str = "plain"
) -> float:
    """The time of a method in these parts of the work, as a multiple of the time of `base`."""
    seconds = row["seconds"]
    return float(sum(seconds[method][part] for part in parts) / sum(seconds[base][part] for part in parts))


def _memory(row: dict[str, Any]) -> float:
    """The peak memory with `ignoring`, as a multiple of plain PyTorch's."""
    return float(row["peak"]["ignoring"] / row["peak"]["plain"])


def watching(content: dict[str, Any]) -> str:
    """A table of the cost of watching a step, as a multiple of plain PyTorch's step."""
    methods = {"detect_anomaly": "detect_anomaly", "explain": "explain", "on_failure": "explain.on_failure"}
    rows = [
        [html.escape(row["case"]), *(f"{row['seconds'][method] / row['seconds']['plain']:.1f}" for method in methods)]
        for row in content["watched"]
    ]
    caption = (
        "Time of a step (forward and backward) without NaN or infinity, divided by plain PyTorch's time "
        f"(torch {content['torch']}, {content['machine']})"
    )
    head = ["model", *(f"<code>{name}</code>" for name in methods.values())]
    return prose(show.table(caption, head, rows), _failing(content["failing"]))


def _failing(rows: list[dict[str, Any]]) -> str:
    """Sentences on the cost of a report about a NaN: the quickest report, and the slowest."""
    quickest, *_, slowest = sorted(rows, key=lambda row: row["seconds"]["explain"])
    least, most = (
        f"{_duration(row['seconds']['explain'])} instead of {_duration(row['seconds']['plain'])} "
        f"({html.escape(row['case'])})"
        for row in (quickest, slowest)
    )
    return (
        "<p>In a step that fails, <code>explain</code> repeats some functions with other numbers, tries remedies, and "
        f"may run backward again. The quickest such step took {least}, and the slowest took {most}.</p>"
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{float(f'{1000 * seconds:.2g}'):g} ms"


def _pairs(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each case: the milliseconds of plain PyTorch, and the multiples without and with contamination."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        plain = f"{1000 * row['seconds']['plain']['backward']:,.1f}"
        cases.setdefault(row["case"], [plain]).append(f"{times(row):.1f}")
    return [[html.escape(case), *figures] for case, figures in cases.items()]
