"""Sphinx extension: measurements as figures and tables, generated when the site is rendered.

`{measured-costs}` reads `results/measured/costs.json`, which `make costs` writes. The other directives work in the same
way.
"""

from __future__ import annotations

import html
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ..project import Problem, Project, read_record
from .attention import attention
from .masked import masked

_BOTH = ("forward", "backward")


class Measured(SphinxDirective):
    """The figures and tables that the function `make` draws from the JSON file of the directive."""

    source: str
    draw: Callable[..., str]

    def run(self) -> list[nodes.Node]:
        """Read the measurements. Sphinx writes the page again if they change."""
        path = Project(Path(self.env.app.confdir)).results / "measured" / f"{self.source}.json"
        for read in (str(path), __file__):
            self.env.note_dependency(read)
        if not path.is_file():
            raise self.error(f"{path} is missing: run `make {self.source}`")
        try:
            content = read_record(path)
        except Problem as problem:
            raise self.error(str(problem)) from problem
        return [nodes.raw("", type(self).draw(content), format="html")]


def costs(content: dict[str, Any]) -> str:
    """A figure of the time that a gradient takes, and tables. Each number is a multiple of plain PyTorch's number."""
    from helpers import show

    rows = content["rows"]
    where, models, weighed = _kinds(rows)
    states = ["nothing contaminated", "contaminated"]
    caption = (
        "Time of backward, until its graph is freed, as a multiple of plain PyTorch's time "
        f"(torch {content['torch']}, {content['machine']})"
    )
    tables = [show.table(caption, ["model", *states], _pairs(models, _backward))]
    if compiled := content.get("compiled"):
        caption = "The same of compiled models, as a multiple of plain PyTorch's time, compiled in the same way"
        tables.append(show.table(caption, ["model, backend", *states], _pairs(compiled, _backward)))
        weighed = weighed + compiled
    chains = [row for row in rows if row.get("nodes")]
    if chains:
        tables.append(_by_nodes(chains))
    for parts, name in ((("backward",), "backward"), (_BOTH, "forward and backward")):
        cells = [
            [
                f"{row['entries']:,} {'contaminated' if row['contaminated'] else 'clean'}".replace(",", " "),
                *(f"{_times_plain(row, way, parts):.2g}" for way in _WAYS),
            ]
            for row in where
        ]
        tables.append(
            show.table(
                f"where over exp, {name}: time, as a multiple of plain PyTorch's time", ["elements", *_WAYS], cells
            )
        )
    tables.append(_part_by_part(content["parts"]))
    tables.append(
        show.table(
            "Peak memory, as a multiple of plain PyTorch's peak memory", ["case", *states], _pairs(weighed, _memory)
        )
    )
    folded = f"<details><summary>All numbers, in {len(tables)} tables</summary>{''.join(tables)}</details>"
    return show.page(f'{in_short(content)}{_curves(where).html()}<div class="zn-prose zn-figures">{folded}</div>')


def _kinds(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of `where` over `exp`, the rows of models, and the rows whose memory was measured."""
    return (
        [row for row in rows if row["entries"]],
        [row for row in rows if not row["entries"]],
        [row for row in rows if "peak" in row],
    )


_WAYS = ("ignoring", "double where", "masked")


def in_short(content: dict[str, Any]) -> str:
    """A summary of the tables of costs, in three sentences."""
    where, models, weighed = _kinds(content["rows"])

    def time_of(contaminated: bool) -> str:
        chosen = [row for row in models if row["contaminated"] is contaminated]
        times = [_times_plain(row, "ignoring") for row in chosen]
        most = max(chosen, key=lambda row: _times_plain(row, "ignoring"))
        return (
            f"{statistics.median(times):.2f} times as long as plain PyTorch's in the median of {len(times)} models, "
            f"and at most {max(times):.2f} times ({html.escape(most['case'])})"
        )

    quicker = [_times_plain(row, "masked", _BOTH) / _times_plain(row, "ignoring", _BOTH) for row in where]
    most = max(row["peak"]["ignoring"] / row["peak"]["plain"] for row in weighed)
    return (
        f'<div class="zn-prose"><p><strong>If nothing is contaminated, backward takes {time_of(False)}.</strong> '
        f"If something is contaminated, backward takes {time_of(True)}. Peak memory is at most {most:.2f} times plain "
        f"PyTorch's. For <code>where</code> over <code>exp</code>, forward and backward, <code>torch.masked</code> "
        f"takes {min(quicker):.1f} to {max(quicker):.1f} times as long as <code>ignoring</code>. All this was measured "
        f"on one machine ({html.escape(content['machine'])}).</p></div>"
    )


def _curves(rows: list[dict[str, Any]]) -> Any:
    from matplotlib.ticker import EngFormatter

    from helpers import figures

    styles = {
        "plain": (figures.GREY, "o", "-"),
        "ignoring": (figures.BLUE, "s", "-"),
        "double where": (figures.GREEN, "^", "--"),
        "masked": (figures.ORANGE, "D", ":"),
    }
    spans = []
    for way in _WAYS:
        clean, bad = (
            [_times_plain(row, way, _BOTH) for row in rows if row["contaminated"] is state] for state in (False, True)
        )
        spans.append(f"{way} {min(clean):.2g} to {max(clean):.2g}, {min(bad):.2g} to {max(bad):.2g}")
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
            for way, (colour, marker, dash) in styles.items():
                points = [row["entries"] for row in chosen], [_time(row, way) for row in chosen]
                axes.loglog(*points, color=colour, marker=marker, linestyle=dash, label=way, markersize=4)
            axes.set_title("contaminated" if contaminated else "nothing contaminated")
            axes.set_xlabel("number of elements")
            axes.set_ylabel("time")
            axes.xaxis.set_major_formatter(EngFormatter())
            axes.yaxis.set_major_formatter(EngFormatter("s"))
            axes.legend()
    return sketch.figure


def _time(row: dict[str, Any], way: str) -> float:
    return sum(float(row["seconds"][way][part]) for part in _BOTH)


def _times_plain(row: dict[str, Any], way: str, parts: tuple[str, ...] = ("backward",)) -> float:
    """The time of a method, as a multiple of plain PyTorch's time."""
    seconds = row["seconds"]
    return float(sum(seconds[way][part] for part in parts) / sum(seconds["plain"][part] for part in parts))


def _backward(row: dict[str, Any]) -> str:
    return f"{_times_plain(row, 'ignoring'):.2f}"


def _memory(row: dict[str, Any]) -> str:
    return f"{row['peak']['ignoring'] / row['peak']['plain']:.2f}"


def watching(content: dict[str, Any]) -> str:
    """A table of the cost of watching a step, as a multiple of plain PyTorch's step."""
    from helpers import show

    ways = {"detect_anomaly": "detect_anomaly", "explain": "explain", "on_failure": "explain.on_failure"}
    rows = [
        [html.escape(row["case"]), *(f"{row['seconds'][way] / row['seconds']['plain']:.2f}" for way in ways)]
        for row in content["watched"]
    ]
    caption = (
        "Time of a step (forward and backward) without NaN or infinity, as a multiple of plain PyTorch's time "
        f"(torch {content['torch']}, {content['machine']})"
    )
    head = ["model", *(f"<code>{name}</code>" for name in ways.values())]
    return show.page(f'<div class="zn-prose">{show.table(caption, head, rows)}{_failing(content)}</div>')


def _failing(content: dict[str, Any]) -> str:
    """A table of the cost of a report about a NaN."""
    from helpers import show

    rows = []
    fixed = min(row["seconds"]["explain"] for row in content["failing"])
    for row in content["failing"]:
        plain, passed, took = (row["seconds"][way] for way in ("plain", "ignoring", "explain"))
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


def _by_nodes(rows: list[dict[str, Any]]) -> str:
    """A table that shows whether the time of a node depends on the number of nodes."""
    from helpers import show

    def of_a_node(row: dict[str, Any], way: str) -> float:
        return float(row["seconds"][way]["backward"]) / int(row["nodes"])

    unit = of_a_node(next(row for row in rows if not row["contaminated"]), "plain")
    by_length: dict[int, list[str]] = {}
    for row in rows:
        ways = ("ignoring",) if row["contaminated"] else ("plain", "ignoring")
        by_length.setdefault(row["nodes"], []).extend(f"{of_a_node(row, way) / unit:.2f}" for way in ways)
    return show.table(
        "Time of one node of a chain, as a multiple of plain PyTorch's time in the shortest chain",
        ["nodes", "plain", "ignoring, nothing contaminated", "ignoring, contaminated"],
        [[f"{length:,}".replace(",", " "), *figures] for length, figures in by_length.items()],
    )


def _part_by_part(rows: list[dict[str, Any]]) -> str:
    """A table of backward with more and more of the work of `ignoring`."""
    from helpers import show

    steps = ("walk", "look", "hooks", "ignoring")
    cells = [
        [
            html.escape(row["case"]) + (", contaminated" if row["contaminated"] else ""),
            *(f"{row['seconds'][s] / row['seconds']['plain']:.2f}" if s in row["seconds"] else "–" for s in steps),
        ]
        for row in rows
    ]
    head = ["case", "with a walk along the graph", "and the check", "and hooks that do nothing", "and rules"]
    return show.table("The parts of backward, and the time of each as a multiple of plain PyTorch's time", head, cells)


def _pairs(rows: list[dict[str, Any]], figure: Callable[[dict[str, Any]], str]) -> list[list[str]]:
    """A row for each case, with its figure without and with contamination."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(figure(row))
    return [[html.escape(case), *figures] for case, figures in cases.items()]


def fixed(content: dict[str, Any]) -> str:
    """Three tables: operators with samples that are not fixed, with totals; the causes; folded, the other operators."""
    from helpers import show

    columns = ("samples", "contaminated", "fixed", "broken")
    total = content["totals"]
    rows = [row for row in content["rows"] if row["contaminated"]]
    left = sorted((row for row in rows if row["fixed"] < row["contaminated"]), key=_fixed_share)
    whole = [row for row in rows if row["fixed"] == row["contaminated"]]

    def lines(rows: list[dict[str, Any]]) -> list[list[str]]:
        return [[_with_notes(row), *(str(row[column]) for column in columns)] for row in rows]

    caption = (
        f"{total['fixed']} of {total['contaminated']} contaminated samples fixed "
        f"({_share(total['fixed'], total['contaminated'])}), {total['broken']} broken; "
        f"{content['operators']} operators, torch {html.escape(content['torch'])}"
    )
    foot = ["all operators", *(str(total[column]) for column in columns)]
    head = ["operator", *columns]
    parts = [show.table(caption, head, lines(left), foot)]
    if left:
        parts.append(_causes(content["causes"], left))
    if total["left_out"]:
        parts.append(f"<p>{total['left_out']} samples of the database were left out, because they are too large.</p>")
    every = show.table("Operators for which every contaminated sample is fixed", head, lines(whole))
    parts.append(f"<details><summary>{len(whole)} operators are fixed on every sample</summary>{every}</details>")
    return show.page(f'<div class="zn-prose">{"".join(parts)}</div>')


def _causes(sentences: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """A table of the causes, the most frequent first. A sample without a known cause is called unexplained."""
    from helpers import show

    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["not_fixed"])
    lines = [
        [html.escape(name), str(count), html.escape(sentences.get(name, "Not known yet."))]
        for name, count in counts.most_common()
    ]
    caption = f"Why {sum(counts.values())} samples are not fixed"
    return show.table(caption, ["cause", "samples", "what happens"], lines, stack=True)


def _share(part: int, whole: int) -> str:
    """A share in percent, rounded down, so that only a complete result is called 100 %."""
    return f"{math.floor(1000 * part / whole) / 10:.1f}%"


def _fixed_share(row: dict[str, Any]) -> tuple[float, str]:
    return row["fixed"] / row["contaminated"], row["operator"]


def _with_notes(row: dict[str, Any]) -> str:
    """The operator, with notes: why samples are not fixed, where plain PyTorch died, and operators without a rule."""
    notes = [f"{count} × {html.escape(cause)}" for cause, count in row["not_fixed"].items()]
    if row["crashed"]:
        notes.append(f"plain PyTorch crashes on {row['crashed']}")
    names = ", ".join(f"<code>{html.escape(each.removeprefix('aten::'))}</code>" for each in row["without_rule"])
    if names:
        notes.append(f"without a rule: {names}")
    note = f'<br><span class="zn-note">{"; ".join(notes)}</span>' if notes else ""
    return f"<code>{html.escape(row['operator'])}</code>{note}"


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
        [f"{html.escape(row['torch'])}, <code>{html.escape(row['backend'])}</code>", html.escape(row["name"])]
        + ["<br>".join(f"{html.escape(what)}: {html.escape('; '.join(cases))}" for what, cases in _exceptions(row))]
        for row in content["exceptions"]
    ]
    if left:
        table = show.table("Programs that are not right", ["PyTorch", "layer or loss", "outcome"], left, stack=True)
        parts.append(f"<details><summary>{len(left)} rows of programs that are not right</summary>{table}</details>")
    return show.page(f'<div class="zn-prose">{"".join(parts)}</div>')


def _exceptions(row: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [(outcome, cases) for outcome, cases in row.items() if outcome not in ("torch", "backend", "name")]


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


_REMOVED = {"targets": "targets missing", "inputs": "inputs missing"}
_METHODS = ("drop rows", "impute the mean", "impute and flag", "select first", "ignoring")


def penguins(content: dict[str, Any]) -> str:
    """A figure of the error by the share of missing values, and tables: the largest share, and, folded, the others."""
    from helpers import show

    found = {(row["missing"], row["share"], row["method"]): row["errors"] for row in content["rows"]}
    shares = sorted({share for _, share, _ in found})
    plain = [error for (*_, method), errors in found.items() if method == "plain PyTorch" for error in errors]
    nothing = sum(error is None for error in plain)
    words = (
        f"<p>{content['seeds']} seeds, {content['steps']} steps, {content['tested']} birds in the test, torch "
        f"{html.escape(content['made_with']['torch'])} on {html.escape(content['made_with']['device'].upper())}. "
        f"Without any method, plain PyTorch gave NaN in {nothing} of {len(plain)} runs.</p>"
    )

    def table(share: float) -> str:
        head = ["method", *(f"{word}: {what}" for word in _REMOVED.values() for what in ("error", "difference"))]
        lines = []
        for method in _METHODS:
            cells = [method]
            for missing in _REMOVED:
                errors, dropped = found[missing, share, method], found[missing, share, "drop rows"]
                cells += [_with_error(errors), "–" if method == "drop rows" else _difference(errors, dropped)]
            lines.append(cells)
        caption = (
            f"{share:.0%} missing: error in the test, and difference from dropping rows with the same seeds, each with "
            "its standard error. Bold: the difference is larger than two standard errors"
        )
        return show.table(caption, head, lines, stack=True)

    folded = "".join(table(share) for share in shares[:-1])
    parts = [_lines_of_methods(found, shares, content).html(), words, table(shares[-1])]
    parts.append(f"<details><summary>The other shares</summary>{folded}</details>")
    return show.page(f'<div class="zn-prose">{"".join(parts)}</div>')


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def _with_error(values: list[float]) -> str:
    mean, error = _mean_and_error(values)
    return f"{mean:.3f} ± {error:.3f}"


def _difference(errors: list[float], others: list[float]) -> str:
    """The mean of the differences, seed by seed. Bold if it is larger than two of its standard errors."""
    mean, error = _mean_and_error([one - other for one, other in zip(errors, others, strict=True)])
    text = f"{mean:+.3f} ± {error:.3f}".replace("-", "−") if abs(mean) >= 5e-4 or error >= 5e-4 else "0"
    return f"<strong>{text}</strong>" if text != "0" and abs(mean) > 2 * error else text


def _lines_of_methods(
    found: dict[tuple[str, float, str], list[float]], shares: list[float], content: dict[str, Any]
) -> Any:
    from helpers import figures

    styles = {
        "drop rows": (figures.ORANGE, "o", "-"),
        "impute the mean": (figures.RED, "^", ":"),
        "impute and flag": (figures.GREY, "v", "-."),
        "ignoring": (figures.BLUE, "s", "--"),
    }

    def said(missing: str) -> str:
        errors = [f"{method} {_mean_and_error(found[missing, shares[-1], method])[0]:.2f}" for method in styles]
        return f"{_REMOVED[missing]}: {', '.join(errors)}"

    alt = (
        "Test error against the share of missing values, in two panels: targets missing, and inputs missing. At the "
        f"largest share, {shares[-1]:.0%}: {'; '.join(map(said, _REMOVED))}."
    )
    caption = (
        f"Error in the test (1: always the mean) by the share of missing values. Bars: the standard error of "
        f"{content['seeds']} seeds. Select first is not drawn: it gives the same as ignoring."
    )
    with figures.sketch(alt, caption, panels=2) as sketch:
        for axes, (missing, title) in zip(sketch.axes, _REMOVED.items(), strict=True):
            for at, (method, (colour, marker, dash)) in enumerate(styles.items()):
                if (missing, method) == ("targets", "impute and flag"):
                    continue  # it selects the targets, like ignoring
                points = [_mean_and_error(found[missing, share, method]) for share in shares]
                axes.errorbar(
                    [100 * share + 0.5 * (at - 1.5) for share in shares],  # side by side
                    [mean for mean, _ in points],
                    [error for _, error in points],
                    color=colour, marker=marker, linestyle=dash, label=method, markersize=5, capsize=2,
                )  # fmt: skip
            axes.set_title(title)
            axes.set_xlabel("% missing")
            axes.set_ylabel("test error")
            axes.set_ylim(0.2, 0.6)
            axes.legend(loc="upper left")
    return sketch.figure


def remedies(content: dict[str, Any]) -> str:
    """A table of the time of each remedy, as a multiple of plain PyTorch's: median, minimum and maximum of cases."""
    from helpers import show
    from helpers.remedies import COLUMNS
    from helpers.ways import way

    sizes = sorted({row["elements"] for row in content["rows"]})
    lines = []
    for name in COLUMNS[1:]:
        spans = (remedy_times(content, name, size) for size in sizes)
        cells = [f"{statistics.median(found):.1f} ({min(found):.1f}–{max(found):.1f})" for found in spans]
        lines.append([html.escape(way(name).title), *cells])
    caption = (
        f"Processor time of forward and backward, as a multiple of plain PyTorch's: the median of {_cases(content)} "
        f"cases, and the least and the most (torch {html.escape(content['made_with']['torch'])}, one thread)"
    )
    head = ["method", *(f"{size:,} elements".replace(",", " ") for size in sizes)]
    return show.page(f'<div class="zn-prose zn-figures">{show.table(caption, head, lines)}</div>')


def _cases(content: dict[str, Any]) -> int:
    return len({row["case"] for row in content["rows"]})


def remedy_times(content: dict[str, Any], remedy: str, elements: int) -> list[float]:
    """The time of a remedy in each case that it applies to. A hook on a module is compared with the module."""
    base = "plain PyTorch in a module" if remedy == "module hook" else "vanilla"
    rows = [row["seconds"] for row in content["rows"] if row["elements"] == elements]
    return [times[remedy] / times[base] for times in rows if remedy in times]


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


class MeasuredCosts(Measured):
    """`make costs`."""

    source, draw = "costs", costs


class MeasuredCostsInShort(Measured):
    """`make costs`, in three sentences."""

    source, draw = "costs", in_short


class MeasuredWatching(Measured):
    """`make costs`, of steps that are watched."""

    source, draw = "costs", watching


class MeasuredFixed(Measured):
    """`make fixed`."""

    source, draw = "fixed", fixed


class MeasuredHonesty(Measured):
    """`make honesty`."""

    source, draw = "honesty", honesty


class MeasuredCompiled(Measured):
    """`make compiled`."""

    source, draw = "compiled", compiled


class MeasuredExplained(Measured):
    """`make explained`."""

    source, draw = "explained", explained


class MeasuredPenguins(Measured):
    """`make penguins`."""

    source, draw = "penguins", penguins


class MeasuredRemedies(Measured):
    """`make remedies`."""

    source, draw = "remedies", remedies


class MeasuredSetups(Measured):
    """`make setups`."""

    source, draw = "setups", setups


class MeasuredMasked(Measured):
    """`make masked`."""

    source, draw = "masked", masked


class MeasuredAttention(Measured):
    """`make attention`."""

    source, draw = "attention", attention


class MeasuredNoticed(Measured):
    """`make noticed`."""

    source, draw = "noticed", noticed


class MeasuredPeers(Measured):
    """`make peers`."""

    source, draw = "peers", peers


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_directive("measured-costs", MeasuredCosts)
    app.add_directive("measured-costs-in-short", MeasuredCostsInShort)
    app.add_directive("measured-watching", MeasuredWatching)
    app.add_directive("measured-fixed", MeasuredFixed)
    app.add_directive("measured-honesty", MeasuredHonesty)
    app.add_directive("measured-compiled", MeasuredCompiled)
    app.add_directive("measured-explained", MeasuredExplained)
    app.add_directive("measured-penguins", MeasuredPenguins)
    app.add_directive("measured-remedies", MeasuredRemedies)
    app.add_directive("measured-setups", MeasuredSetups)
    app.add_directive("measured-masked", MeasuredMasked)
    app.add_directive("measured-attention", MeasuredAttention)
    app.add_directive("measured-noticed", MeasuredNoticed)
    app.add_directive("measured-peers", MeasuredPeers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
