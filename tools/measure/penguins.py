"""The cost of missing data, by method: the error of a small network on the Palmer penguins, ten seeds for each point.

The network predicts flipper length and body mass from the length and the depth of the bill. A share of the training
inputs, or of the training targets, is removed completely at random. With the same seed, all methods start from the same
weights, see the same birds, and take the same number of steps. The birds of the test have no missing value.
"""

from __future__ import annotations

import csv
import html
import itertools
import math
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from helpers import figures, show
from zero_or_nan import ignoring

from ..project import Project
from .records import keep, made_with, prose

COLUMNS = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
"""The two inputs, and then the two targets."""
TESTED, STEPS, SEEDS = 100, 200, 10
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def read_birds(file: Path) -> Tensor:
    """One row for each bird and one column for each of `COLUMNS`. A missing measurement is NaN."""
    with file.open(encoding="utf-8", newline="") as lines:
        birds = csv.DictReader(lines)
        return torch.tensor([[float(bird[name].replace("NA", "nan")) for name in COLUMNS] for bird in birds])


@dataclass(frozen=True)
class Data:
    """The birds for training, some with missing values, and the birds for the test.

    All are standardized by the former.
    """

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


def split(birds: Tensor, seed: int, missing: str, share: float) -> Data:
    """The birds of one seed, with a share of the training `"inputs"` or `"targets"` removed at random."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(birds), generator=generator)
    whole = order[birds[order].isfinite().all(1)]
    is_test = torch.zeros(len(birds), dtype=torch.bool)
    is_test[whole[:TESTED]] = True
    train = birds[~is_test].clone()
    part = train[:, :2] if missing == "inputs" else train[:, 2:]
    part[torch.rand(part.shape, generator=generator) < share] = math.nan
    mean = train.nanmean(0)
    scale = (train - mean).square().nanmean(0).sqrt()
    train, test = (train - mean) / scale, (birds[is_test] - mean) / scale
    return Data(train[:, :2], train[:, 2:], test[:, :2], test[:, 2:])


def network(seed: int, flags: bool = False) -> nn.Sequential:
    """The network before its first step. If it also gets a flag for each missing input, its weights for flags are 0."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    if flags:
        first: Any = model[0]
        first.weight = nn.Parameter(torch.cat([first.weight.detach(), torch.zeros(16, 2)], 1))
    return model


def given(method: str, inputs: Tensor) -> Tensor:
    """What the network of a method gets: the inputs; or with the mean for a missing input, and a flag for each."""
    return torch.cat([inputs.nan_to_num(0.0), inputs.isnan().float()], 1) if method == FLAG else inputs


FLAG = "impute and flag"
METHODS = ("plain PyTorch", "drop rows", "impute the mean", FLAG, "select first", "ignoring")


def prepared(method: str, data: Data) -> tuple[Tensor, Tensor]:
    """The inputs and the targets that a method trains on. The mean, by which it may replace a missing value, is 0."""
    known = data.inputs.isfinite().all(1)
    if method == "drop rows":
        known &= data.targets.isfinite().all(1)
    if method in ("drop rows", "select first"):
        return data.inputs[known], data.targets[known]
    if method == "impute the mean":
        return data.inputs.nan_to_num(0.0), data.targets.nan_to_num(0.0)
    return given(method, data.inputs), data.targets


def loss_of(method: str, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of the squared errors. A method may select the known ones, before it computes them or afterwards."""
    predictions, there = model(inputs), targets.isfinite()
    if method in (FLAG, "select first"):
        return (predictions[there] - targets[there]).square().mean()
    errors = (predictions - targets).square()
    return errors[there & inputs.isfinite().all(1, keepdim=True)].mean() if method == "ignoring" else errors.mean()


def trained(method: str, data: Data, seed: int, steps: int = STEPS) -> nn.Module:
    """The network after its last step."""
    inputs, targets = prepared(method, data)
    model = network(seed, flags=method == FLAG)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(method, model, inputs, targets)
        ignoring.backward(loss) if method == "ignoring" else loss.backward()
        optimizer.step()
    return model


def error(method: str, model: nn.Module, data: Data) -> float:
    """The mean squared error on the birds of the test, in units of the variance of a target."""
    with torch.no_grad():
        return float((model(given(method, data.test_inputs)) - data.test_targets).square().mean())


def row(birds: Tensor, missing: str, share: float, method: str) -> dict[str, Any]:
    """The errors of one method, one for each seed; None if the network gives NaN."""
    torch.set_num_threads(1)
    errors = []
    for seed in range(SEEDS):
        data = split(birds, seed, missing, share)
        found = error(method, trained(method, data, seed), data)
        errors.append(round(found, 6) if math.isfinite(found) else None)
    return {"missing": missing, "share": share, "method": method, "errors": errors}


def penguins(project: Project) -> None:
    """Train with every method, and write the errors to `results/measured/penguins.json`."""
    birds = read_birds(project.helpers / "penguins.csv")
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        rows = list(pool.map(partial(row, birds), *zip(*itertools.product(_REMOVED, SHARES, METHODS), strict=True)))
    facts = {"birds": len(birds), "tested": TESTED, "steps": STEPS, "seeds": SEEDS}
    keep(project, "penguins", {"made_with": made_with(), **facts, "rows": rows})


# On the page.


_REMOVED = {"targets": "targets missing", "inputs": "inputs missing"}
_COMPARED = METHODS[1:]
"""Plain PyTorch gives NaN in every run with a missing value."""


def shown(content: dict[str, Any]) -> str:
    """A figure of the error by the share of missing values, and tables: the largest share, and, folded, the others."""
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
        for method in _COMPARED:
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
    return prose(*parts)


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
    styles = {
        "drop rows": (figures.ORANGE, "o", "-"),
        "impute the mean": (figures.RED, "^", ":"),
        FLAG: (figures.GREY, "v", "-."),
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
        "Test error by the share of missing values. An error of 1 means: no better than always predicting the mean. "
        f"Bars: the standard error of {content['seeds']} seeds. Select first is not drawn, because it gives the same "
        "as ignoring."
    )
    with figures.sketch(alt, caption, panels=2) as sketch:
        for axes, (missing, title) in zip(sketch.axes, _REMOVED.items(), strict=True):
            for at, (method, (colour, marker, dash)) in enumerate(styles.items()):
                if (missing, method) == ("targets", FLAG):
                    continue  # it selects the targets, like ignoring
                places = [100 * share + 0.5 * (at - 1.5) for share in shares]  # side by side
                points = zip(*(_mean_and_error(found[missing, share, method]) for share in shares), strict=True)
                style = {"color": colour, "marker": marker, "linestyle": dash, "markersize": 5, "capsize": 2}
                axes.errorbar(places, *points, label=method, **style)
            axes.set(title=title, xlabel="% missing", ylabel="test error", ylim=(0.2, 0.6))
            axes.legend(loc="upper left")
    return sketch.figure
