"""What a gradient costs, and what a watched step costs: figures and tables from `results/measured/costs.json`."""

from __future__ import annotations

import html
import statistics
from typing import Any

from helpers import show

from .records import prose

BOTH = ("forward", "backward")
STATES = ("clean", "contaminated")


def shown(content: dict[str, Any]) -> str:
    """Tables of the time that a gradient takes, as a multiple of plain PyTorch's, and sentences on the rest."""
    rows, compiled = content["rows"], content["compiled"]
    usual, extreme = _models(rows)
    states = ["all finite", "half of the rows NaN"]
    caption = (
        "Time of backward with <code>ignoring</code>, as a multiple of plain PyTorch's time "
        f"(torch {content['torch']}, {content['machine']}). The first {len(usual) // 2} models are of ordinary size"
    )
    table = show.table(caption, ["model", *states], _pairs([*usual, *extreme]))
    of_layers = show.table(
        "The same of compiled layers, compared with plain PyTorch compiled in the same way",
        ["layer, compiler", *states],
        _pairs(compiled),
    )
    folded = f"<details><summary>Compiled layers, one by one</summary>{of_layers}</details>"
    masked, twice = (
        _span([times(row, method, BOTH, "ignoring") for row in rows if row["entries"]])
        for method in ("masked", "double where")
    )
    said = (
        f"<p>A whole step of an ordinary model, forward and backward, takes {_of(usual, False, BOTH)} as long as plain "
        f"PyTorch's if all numbers are finite. Large layers that were compiled take {_of(compiled, False)} as long in "
        f"backward, or {_of(compiled, True)} with NaN. Peak memory is at most {_most_memory(rows):.1f} times plain "
        f"PyTorch's, and {_most_memory(compiled):.1f} times in compiled layers. For <code>where</code> over "
        f"<code>exp</code>, forward and backward, a second <code>where</code> takes {twice} as long as "
        f"<code>ignoring</code>, and <code>torch.masked</code> {masked}.</p>"
    )
    return prose(table, said, folded)


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
    """A summary of the functions at three sizes, and a table of the slowest ten."""
    rows = sorted(content["functions"], key=lambda row: -multiples(row, "contaminated")[-1])
    found = [[multiple for state in STATES for multiple in multiples(row, state)] for row in rows]
    median = [statistics.median(column) for column in zip(*found, strict=True)]
    growing = [
        f"<code>{html.escape(row['function'])}</code> ({state})"
        for at, state in ((1, "all finite"), (4, "with one NaN"))
        for row, of in zip(rows, found, strict=True)
        if of[at + 1] > 1.2 * of[at]
    ]
    least = min(multiple for of in found for multiple in of[:3])
    summary = (
        f"<p><strong>In the median of {len(rows)} functions with a large input, backward takes {median[2]:.1f} times "
        f"as long as plain PyTorch's if all numbers are finite, and {median[5]:.1f} times if one is NaN.</strong> From "
        "the middle size to the large one, the multiple grows by more than a fifth for "
        f"{', '.join(growing) or 'no function'}.{_error(least)}</p>"
    )
    head = ["function", "elements: small, middle, large", "all finite", "with one NaN"]
    lines = [
        [
            f"<code>{html.escape(row['function'])}</code>",
            " / ".join(f"{number:,}" for number in row["elements"]),
            *_by_state(multiples_of_row),
        ]
        for row, multiples_of_row in zip(rows[:10], found, strict=False)
    ]
    lines.insert(0, ["median of all", "", *_by_state(median)])
    caption = (
        "Time of a function's backward in one thread, as a multiple of plain PyTorch's time at each of the three "
        "sizes: the ten slowest with a NaN"
    )
    return prose(summary, show.table(caption, head, lines))


def _error(least: float) -> str:
    """A sentence on the error of the measurement: with finite numbers, nothing can be faster than plain PyTorch."""
    if least >= 1:
        return ""
    return (
        f" With finite numbers, <code>ignoring</code> can't be faster than plain PyTorch, but the least multiple is "
        f"{least:.1f}: so a difference of {1 - least:.1f} may be an error of the measurement."
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
        f"all numbers are finite, and {_of(usual, True)} as long if half of the rows are NaN.</strong> Tiny models, "
        f"long chains of functions and a gradient penalty take {_of(extreme, False)}, or {_of(extreme, True)} with "
        'NaN. <a href="what-it-costs.html#functions-at-three-sizes">Some functions alone</a> cost more.</p>'
        f'<p>On one GPU ({html.escape(on_gpu["device"])}), <a href="use-it-in-your-project.html#on-a-gpu">the '
        f"cost is higher</a>: a whole step of a model takes {clean} as long, or {contaminated} with a row of NaN.</p>"
    )


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
        "Time of a step (forward and backward) without NaN or infinity, as a multiple of plain PyTorch's time "
        f"(torch {content['torch']}, {content['machine']})"
    )
    head = ["model", *(f"<code>{name}</code>" for name in methods.values())]
    return prose(show.table(caption, head, rows), _failing(content))


def _failing(content: dict[str, Any]) -> str:
    """A table of the cost of a report about a NaN, with a sentence on the quickest report and the slowest."""
    rows = []
    for row in content["failing"]:
        plain, took = (row["seconds"][method] for method in ("plain", "explain"))
        shown = [f"{1000 * plain:,.1f}", f"{1000 * took:,.0f}", f"{took / plain:.1f}"]
        rows.append([html.escape(row["case"]), *shown])
    caption = (
        "Processor time of a step that is not finite, forward, backward and report, in one thread "
        f"(torch {content['torch']}, {content['machine'].partition(',')[0]})"
    )
    quickest, *_, slowest = sorted(content["failing"], key=lambda row: row["seconds"]["explain"])
    said = (
        f"<p>A failing step takes longer, once: {1000 * quickest['seconds']['explain']:.0f} ms "
        f"({html.escape(quickest['case'])}) to {slowest['seconds']['explain']:.1f} s ({html.escape(slowest['case'])}). "
        "<code>explain</code> then repeats some functions and derivatives with other numbers, tries remedies, and may "
        "run backward again under <code>ignoring</code>.</p>"
    )
    explained = "<code>explain</code>"
    head = ["step", "plain PyTorch, ms", f"{explained}, ms", f"{explained} ÷ plain"]
    return said + show.table(caption, head, rows)


def _pairs(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each case, with its time without and with contamination."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(f"{times(row):.1f}")
    return [[html.escape(case), *figures] for case, figures in cases.items()]
