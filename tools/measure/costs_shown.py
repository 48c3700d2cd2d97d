"""What a gradient costs, and what a watched step costs: figures and tables from `results/measured/costs.json`."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable
from typing import Any

from helpers import show

from .records import prose

BOTH = ("forward", "backward")
STATES = ("clean", "contaminated")


def shown(content: dict[str, Any]) -> str:
    """A summary of the time that a gradient takes, and tables of multiples of plain PyTorch's time and memory."""
    rows, compiled = content["rows"], content["compiled"]
    models = [row for row in rows if not row["entries"]]
    time = "Time of backward, until its graph is freed, as a multiple of plain PyTorch's time"
    parts = [
        (f"{time} (torch {content['torch']}, {content['machine']})", "model", models, times),
        ("The same of compiled layers, compared with plain PyTorch compiled in the same way", "layer", compiled, times),
        ("Peak memory, as a multiple of plain PyTorch's", "program", [*_weighed(rows), *compiled], _memory),
    ]
    states = ["ignored elements are finite", "ignored elements are NaN or inf"]
    tables = [show.table(caption, [of, *states], _pairs(cases, figure)) for caption, of, cases, figure in parts]
    folded = f"<details><summary>All numbers, in {len(tables)} tables</summary>{''.join(tables)}</details>"
    return show.page(f'{in_short(content)}<div class="zn-prose zn-figures">{folded}</div>')


def _weighed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "peak" in row]


def multiples(row: dict[str, Any], state: str) -> list[float]:
    """The time of a function's backward at each size, as multiples of plain PyTorch's time."""
    return [round(ignoring / plain, 2) for plain, ignoring in row[state]]


def by_function(content: dict[str, Any]) -> str:
    """A summary of the functions at three sizes, a table of the slowest ten, and a folded table of the others."""
    rows = sorted(content["functions"], key=lambda row: -multiples(row, "contaminated")[-1])
    found = [[multiple for state in STATES for multiple in multiples(row, state)] for row in rows]
    median = [statistics.median(column) for column in zip(*found, strict=True)]
    growing = [
        f"<code>{html.escape(row['function'])}</code> ({state})"
        for at, state in ((1, "all finite"), (4, "with one NaN"))
        for row, of in zip(rows, found, strict=True)
        if of[at + 1] > 1.2 * of[at]
    ]
    summary = (
        f"<p><strong>In the median of {len(rows)} functions with a large input, backward takes {median[2]:.1f} times "
        f"as long as plain PyTorch's if all numbers are finite, and {median[5]:.1f} times if one is NaN.</strong> From "
        "the middle size to the large one, these multiples grow by more than a fifth for "
        f"{', '.join(growing) or 'no function'}.</p>"
    )
    head = ["function", "elements: small, middle, large", "all finite", "with one NaN"]
    lines = [
        [
            f"<code>{html.escape(row['function'])}</code>",
            " / ".join(f"{number:,}" for number in row["elements"]),
            *_by_state(multiples_of_row),
        ]
        for row, multiples_of_row in zip(rows, found, strict=True)
    ]
    lines.insert(0, ["median of all", "", *_by_state(median)])
    caption = (
        "Time of a function's backward in one thread, as a multiple of plain PyTorch's time at each of the three "
        "sizes: the ten slowest with a NaN"
    )
    rest = show.table("The same of all other functions", head, lines[11:])
    folded = f"<details><summary>The other {len(lines) - 11} functions</summary>{rest}</details>"
    return prose(summary, show.table(caption, head, lines[:11]), folded)


def _by_state(multiples_of_row: list[float]) -> list[str]:
    """For each state, the multiples at the three sizes as one text."""
    texts = [f"{multiple:.1f}" for multiple in multiples_of_row]
    return [" / ".join(texts[:3]), " / ".join(texts[3:])]


def in_short(content: dict[str, Any]) -> str:
    """A summary of the tables of costs, in a few sentences."""
    rows, compiled = content["rows"], content["compiled"]
    usual, extreme = ([row for row in rows if not row["entries"] and ("peak" in row) is has] for has in (True, False))
    masked, twice = (
        _span([times(row, method, BOTH, "ignoring") for row in rows if row["entries"]])
        for method in ("masked", "double where")
    )
    most, slowest = max(
        (max(multiples(row, state)), row["function"]) for row in content["functions"] for state in STATES
    )
    return (
        '<div class="zn-prose"><p><strong>If all elements that the loss ignores are finite, backward of ordinary '
        f"models takes {_of(usual, False)} as long as plain PyTorch's.</strong> A whole step, forward and backward, "
        f"then takes {_of(usual, False, BOTH)} as long. If half of the rows are NaN and the loss leaves them out, "
        f"backward takes {_of(usual, True)} as long. Tiny models, long chains of functions and a gradient penalty cost "
        f"more: {_of(extreme, False)}, or {_of(extreme, True)} with NaN. Among functions that were timed alone, the "
        f"most is {most:.1f} times ({html.escape(slowest)}).</p><p>Layers of large models were also compiled, and "
        f"compared with plain PyTorch compiled in the same way: backward takes {_of(compiled, False)} as long, or "
        f"{_of(compiled, True)} with NaN. Peak memory is at most {_most_memory(rows):.1f} times plain PyTorch's, and "
        f"{_most_memory(compiled):.1f} times in compiled layers. For <code>where</code> over <code>exp</code>, forward "
        f"and backward, <code>torch.masked</code> takes {masked} as long as <code>ignoring</code>, and a second "
        f"<code>where</code> {twice}. All this was measured on one CPU ({html.escape(content['machine'])}).</p></div>"
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
        plain, passed, took = (row["seconds"][method] for method in ("plain", "ignoring", "explain"))
        shown = [f"{1000 * plain:,.1f}", f"{1000 * took:,.0f}", f"{took / plain:.1f}", f"{passed / plain:.1f}"]
        rows.append([html.escape(row["case"]), *shown])
    caption = (
        "Processor time of a step that is not finite, forward, backward and report, in one thread "
        f"(torch {content['torch']}, {content['machine'].partition(',')[0]})"
    )
    quickest, *_, slowest = sorted(content["failing"], key=lambda row: row["seconds"]["explain"])
    said = (
        f"<p>With <code>explain</code>, even the quickest of these failing steps takes "
        f"{1000 * quickest['seconds']['explain']:.0f} ms ({html.escape(quickest['case'])}), so a tiny step takes many "
        f"times as long as without. The slowest takes {slowest['seconds']['explain']:.1f} s "
        f"({html.escape(slowest['case'])}).</p>"
    )
    explained, ignored = "<code>explain</code>", "<code>ignoring</code>"
    head = ["step", "plain PyTorch, ms", f"{explained}, ms", f"{explained} ÷ plain", f"{ignored} ÷ plain"]
    return said + show.table(caption, head, rows)


def _pairs(rows: list[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> list[list[str]]:
    """A row for each case, with its figure without and with contamination."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(f"{figure(row):.1f}")
    return [[html.escape(case), *figures] for case, figures in cases.items()]
