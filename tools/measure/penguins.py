"""The cost of missing data, by method: the error of a small network on the Palmer penguins, ten seeds for each point.

The network predicts flipper length and body mass from the length and the depth of the bill. A share of the training
inputs, or of the training targets, is removed completely at random. With the same seed, all methods start from the same
weights, see the same birds, and take the same number of steps. The birds of the test have no missing value.
"""

from __future__ import annotations

import csv
import math
import os
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zero_or_nan import ignoring

from ..project import Project, write_record

COLUMNS = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
"""The two inputs, and then the two targets."""
TESTED, STEPS, SEEDS = 100, 200, 10
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def read_birds(file: Path) -> Tensor:
    """One row for each bird and one column for each of `COLUMNS`. A missing measurement is NaN."""
    with file.open(encoding="utf-8", newline="") as lines:
        return torch.tensor([[_number(bird[name]) for name in COLUMNS] for bird in csv.DictReader(lines)])


def _number(text: str) -> float:
    return math.nan if text == "NA" else float(text)


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


def network(seed: int) -> nn.Sequential:
    """The network before its first step."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


Loss = Callable[[nn.Module], Tensor]


def plain(data: Data) -> Loss:
    """Use all birds, including missing values."""
    return lambda model: (model(data.inputs) - data.targets).square().mean()


def drop_rows(data: Data) -> Loss:
    """Use only the birds without a missing value."""
    whole = data.inputs.isfinite().all(1) & data.targets.isfinite().all(1)
    inputs, targets = data.inputs[whole], data.targets[whole]
    return lambda model: (model(inputs) - targets).square().mean()


def impute(data: Data) -> Loss:
    """Use all birds, and replace a missing value by the mean, which is 0."""
    inputs, targets = data.inputs.nan_to_num(0.0), data.targets.nan_to_num(0.0)
    return lambda model: (model(inputs) - targets).square().mean()


def select_first(data: Data) -> Loss:
    """Use the birds whose inputs are known, and their known targets, with plain PyTorch."""
    known = data.inputs.isfinite().all(1)
    inputs, targets = data.inputs[known], data.targets[known]
    there = targets.isfinite()
    return lambda model: (model(inputs)[there] - targets[there]).square().mean()


def select_errors(data: Data) -> Loss:
    """Run the network on all birds, and use only the known errors in the loss."""
    there = data.inputs.isfinite().all(1, keepdim=True) & data.targets.isfinite()
    return lambda model: (model(data.inputs) - data.targets).square()[there].mean()


class Flagged(nn.Module):
    """A network that also gets a flag for each missing input.

    It starts with the other methods' weights, and zero for flags.
    """

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.model, self.flags = model, nn.Parameter(torch.zeros(16, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        first, *rest = self.model
        hidden = first(inputs.nan_to_num(0.0)) + inputs.isnan().float() @ self.flags.T
        out: Tensor = nn.Sequential(*rest)(hidden)
        return out


def impute_and_flag(data: Data) -> Loss:
    """Use all birds, replace a missing input by the mean, and flag it. The loss selects the known targets."""
    there = data.targets.isfinite()
    return lambda model: (model(data.inputs)[there] - data.targets[there]).square().mean()


METHODS: dict[str, Callable[[Data], Loss]] = {
    "plain PyTorch": plain,
    "drop rows": drop_rows,
    "impute the mean": impute,
    "impute and flag": impute_and_flag,
    "select first": select_first,
    "ignoring": select_errors,
}


def trained(method: str, data: Data, seed: int, steps: int = STEPS) -> nn.Module:
    """The network after its last step."""
    loss_of = METHODS[method](data)
    model: nn.Module = network(seed)
    if method == "impute and flag":
        model = Flagged(network(seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        if method == "ignoring":
            ignoring.backward(loss)
        else:
            loss.backward()
        optimizer.step()
    return model


def error(model: nn.Module, data: Data) -> float:
    """The mean squared error on the birds of the test, in units of the variance of a target."""
    with torch.no_grad():
        return float((model(data.test_inputs) - data.test_targets).square().mean())


def row(birds: Tensor, missing: str, share: float, method: str, seeds: int, steps: int = STEPS) -> dict[str, Any]:
    """The errors of one method, one for each seed; None if the network gives NaN."""
    torch.set_num_threads(1)
    errors = []
    for seed in range(seeds):
        data = split(birds, seed, missing, share)
        found = error(trained(method, data, seed, steps), data)
        errors.append(round(found, 6) if math.isfinite(found) else None)
    return {"missing": missing, "share": share, "method": method, "errors": errors}


def penguins(project: Project) -> None:
    """Train with every method, and write the errors to `results/measured/penguins.json`."""
    birds = read_birds(project.helpers / "penguins.csv")
    tasks = [(missing, share, method) for missing in ("targets", "inputs") for share in SHARES for method in METHODS]
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        rows = list(pool.map(row, *zip(*((birds, *task, SEEDS) for task in tasks), strict=True)))
    path = project.results / "measured" / "penguins.json"
    made_with = {"torch": torch.__version__.partition("+")[0], "python": platform.python_version(), "device": "cpu"}
    facts = {"birds": len(birds), "tested": TESTED, "steps": STEPS, "seeds": SEEDS}
    write_record(path, {"made_with": made_with, **facts, "rows": rows})
    print(f"written: {path.relative_to(project.root)}")
