"""What a gradient costs, and what a watched step costs: figures and tables from `results/measured/costs.json`."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable
from typing import Any

from matplotlib.ticker import EngFormatter

from helpers import figures, show

from .records import prose

BOTH = ("forward", "backward")
STATES = ("contaminated", "clean")
MODEL = "6 transformer layers"
"""The model among the functions that are timed."""


def shown(content: dict[str, Any]) -> str:
    """A figure of the time that a gradient takes, and tables. Each number is a multiple of plain PyTorch's number."""
    rows, compiled = content["rows"], content["compiled"]
    where, models = ([row for row in rows if bool(row["entries"]) is has] for has in (True, False))
    time = "Time of backward, until its graph is freed, as a multiple of plain PyTorch's time"
    parts = [
        (f"{time} (torch {content['torch']}, {content['machine']})", "model", models, times),
        ("The same of compiled layers, compared with plain PyTorch compiled in the same way", "layer", compiled, times),
        ("Peak memory, as a multiple of plain PyTorch's", "case", [*_weighed(rows), *compiled], _memory),
    ]
    states = ["nothing contaminated", "contaminated"]
    tables = [show.table(caption, [of, *states], _pairs(cases, figure)) for caption, of, cases, figure in parts]
    folded = f"<details><summary>All numbers, in {len(tables)} tables</summary>{''.join(tables)}</details>"
    return show.page(f'{in_short(content)}{_curves(where).html()}<div class="zn-prose zn-figures">{folded}</div>')


def _weighed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "peak" in row]


_METHODS = ("ignoring", "double where", "masked")


def multiples(row: dict[str, Any], state: str) -> list[float]:
    """The time of a function's backward at each size, as multiples of plain PyTorch's time."""
    return [round(ignoring / plain, 2) for plain, ignoring in row[state]]


def by_function(content: dict[str, Any]) -> str:
    """A summary of the functions at three sizes, a table of the slowest ten, and a folded table of the others."""
    rows = sorted(content["functions"], key=lambda row: -multiples(row, "contaminated")[-1])
    found = [[multiple for state in STATES for multiple in multiples(row, state)] for row in rows]
    median = [statistics.median(column) for column in zip(*found, strict=True)]
    growing = sum(large > 1.2 * middle for _, middle, large, *_ in found)
    summary = (
        f"<p><strong>In the median of {len(rows)} functions, backward takes {median[2]:.1f} times as long as plain "
        f"PyTorch's if one number of a large input is NaN, and at most {found[0][2]:.1f} times.</strong> For {growing} "
        "of them, this multiple grows by more than a fifth from the middle size to the large one.</p>"
    )
    model = next(row for row in rows if row["function"] == MODEL)
    of_model = (
        f"{multiple:.1f} times where plain PyTorch takes {1000 * plain:.1f} ms"
        for multiple, (plain, _) in zip(multiples(model, "contaminated"), model["contaminated"], strict=True)
    )
    summary += f"<p>A model of many small layers pays most. Backward of {MODEL} takes {', '.join(of_model)}.</p>"
    head = ["function", "elements", *(f"{state}: small, middle, large" for state in STATES)]
    lines = [
        [
            f"<code>{html.escape(row['function'])}</code>",
            ", ".join(f"{number / 1000:.3g}k" for number in row["elements"]),
            *_by_state(multiples_of_row),
        ]
        for row, multiples_of_row in zip(rows, found, strict=True)
    ]
    lines.insert(0, ["median of all", "", *_by_state(median)])
    caption = "Time of a function's backward in one thread, as a multiple of plain PyTorch's time: the slowest ten"
    rest = show.table("The same of all other functions", head, lines[11:])
    folded = f"<details><summary>The other {len(lines) - 11} functions</summary>{rest}</details>"
    return prose(summary, show.table(caption, head, lines[:11]), folded)


def _by_state(multiples_of_row: list[float]) -> list[str]:
    """For each state, the multiples at the three sizes as one text."""
    texts = [f"{multiple:.1f}" for multiple in multiples_of_row]
    return [", ".join(texts[:3]), ", ".join(texts[3:])]


def in_short(content: dict[str, Any]) -> str:
    """A summary of the tables of costs, in a few sentences."""
    rows, compiled = content["rows"], content["compiled"]
    models = [row for row in rows if not row["entries"]]
    quicker = [times(row, "masked", BOTH, "ignoring") for row in rows if row["entries"]]
    return (
        f'<div class="zn-prose"><p><strong>Without a NaN in ignored elements, backward takes {_time_of(models, False)}.'
        f"</strong> With one, backward takes {_time_of(models, True)}. Peak memory is at most "
        f"{max(map(_memory, _weighed(rows))):.2f} times plain PyTorch's. For <code>where</code> over <code>exp</code>, "
        f"forward and backward, <code>torch.masked</code> takes {min(quicker):.1f} to {max(quicker):.1f} times as long "
        f"as <code>ignoring</code>. All this was measured on one machine ({html.escape(content['machine'])}).</p>"
        "<p>Layers of large models were also compiled, and compared with plain PyTorch compiled in the same way. If "
        f"nothing is contaminated, backward takes {_time_of(compiled, False)}. If something is contaminated, it takes "
        f"{_time_of(compiled, True)}. Peak memory is at most {max(map(_memory, compiled)):.2f} times plain PyTorch's."
        "</p></div>"
    )


def _time_of(rows: list[dict[str, Any]], contaminated: bool) -> str:
    """The time of backward: the median, and the most."""
    found = {row["case"]: times(row) for row in rows if row["contaminated"] is contaminated}
    most = max(found, key=lambda case: found[case])
    return (
        f"{statistics.median(found.values()):.2f} times as long as plain PyTorch's in the median of {len(found)} "
        f"cases, and at most {found[most]:.2f} times ({html.escape(most)})"
    )


def _curves(rows: list[dict[str, Any]]) -> Any:
    styles = {
        "plain": (figures.GREY, "o", "-"),
        "ignoring": (figures.BLUE, "s", "-"),
        "double where": (figures.GREEN, "^", "--"),
        "masked": (figures.ORANGE, "D", ":"),
    }
    spans = []
    for method in _METHODS:
        clean, bad = (
            [times(row, method, BOTH) for row in rows if row["contaminated"] is state] for state in (False, True)
        )
        spans.append(f"{method} {min(clean):.2g} to {max(clean):.2g}, {min(bad):.2g} to {max(bad):.2g}")
    alt = (
        "Time of forward and backward against the number of elements, both axes logarithmic, in two panels: nothing "
        f"contaminated, and contaminated. The time in each panel, as a multiple of plain PyTorch's: {'; '.join(spans)}."
    )
    caption = (
        "How long where over exp takes, forward and backward together, by method and number of elements. Both axes are "
        "logarithmic. Contaminated: two thirds of the exponentials overflow."
    )
    with figures.sketch(alt, caption, panels=2) as sketch:
        for axes, contaminated in zip(sketch.axes, (False, True), strict=True):
            chosen = [row for row in rows if row["contaminated"] is contaminated]
            for method, (colour, marker, dash) in styles.items():
                points = (
                    [row["entries"] for row in chosen],
                    [sum(row["seconds"][method][part] for part in BOTH) for row in chosen],
                )
                axes.loglog(*points, color=colour, marker=marker, linestyle=dash, label=method, markersize=4)
            axes.set_title("contaminated" if contaminated else "nothing contaminated")
            axes.set_xlabel("number of elements")
            axes.set_ylabel("time")
            axes.xaxis.set_major_formatter(EngFormatter())
            axes.yaxis.set_major_formatter(EngFormatter("s"))
            axes.legend()
    return sketch.figure


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
        [html.escape(row["case"]), *(f"{row['seconds'][method] / row['seconds']['plain']:.2f}" for method in methods)]
        for row in content["watched"]
    ]
    caption = (
        "Time of a step (forward and backward) without NaN or infinity, as a multiple of plain PyTorch's time "
        f"(torch {content['torch']}, {content['machine']})"
    )
    head = ["model", *(f"<code>{name}</code>" for name in methods.values())]
    return prose(show.table(caption, head, rows), _failing(content))


def _failing(content: dict[str, Any]) -> str:
    """A table of the cost of a report about a NaN."""
    rows = []
    fixed = min(row["seconds"]["explain"] for row in content["failing"])
    for row in content["failing"]:
        plain, passed, took = (row["seconds"][method] for method in ("plain", "ignoring", "explain"))
        shown = [f"{1000 * plain:.1f}", f"{1000 * took:.0f}", f"{took / plain:.1f}"]
        shown += [f"{(took - fixed) / plain:.1f}", f"{passed / plain:.1f}"]
        rows.append([html.escape(row["case"]), *shown])
    caption = (
        "Processor time of a step that is not finite, in one thread: in milliseconds, and as a multiple of plain "
        f"PyTorch's (torch {content['torch']}, {content['machine'].partition(',')[0]}). A report has a fixed price, "
        f"once for each failure: the {1000 * fixed:.0f} ms of the quickest step"
    )
    less = "<code>explain</code>, less the fixed price"
    head = ["step", "plain, ms", "<code>explain</code>, ms", "<code>explain</code>", less, "<code>ignoring</code>"]
    return show.table(caption, head, rows)


def _pairs(rows: list[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> list[list[str]]:
    """A row for each case, with its figure without and with contamination."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(f"{figure(row):.2f}")
    return [[html.escape(case), *figures] for case, figures in cases.items()]
