"""Training with missing data, method by method: figure and tables from `results/measured/penguins.json`."""

from __future__ import annotations

import html
import math
import statistics
from typing import Any

_REMOVED = {"targets": "targets missing", "inputs": "inputs missing"}
METHODS = ("drop rows", "impute the mean", "impute and flag", "select first", "ignoring")


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
        for method in METHODS:
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
