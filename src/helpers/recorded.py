"""What other versions of PyTorch gave: the files of `results/`, which lie beside `src/` wherever the helpers do."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .releases import number

RESULTS = Path(__file__).resolve().parents[2] / "results"


@cache
def records() -> tuple[dict[str, Any], ...]:
    """Every recorded run, oldest version first; empty where the helpers were copied without `results/`.

    Raises:
        ValueError: when a file is not JSON; with its path.
    """
    found = list(map(_read, sorted(RESULTS.glob("torch-*.json"))))
    return tuple(sorted(found, key=lambda record: (record["device"], number(record["torch"]))))


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); restore it with `git checkout`") from error


def nearest() -> dict[str, Any] | None:
    """The record to compare this run with: of its device or else the CPU, of its version or else the newest older."""
    here = number(torch.__version__)
    by_device = {name: [record for record in records() if record["device"] == name] for name in (device(), "cpu")}
    alike = by_device[device()] or by_device["cpu"]
    older = [record for record in alike if number(record["torch"]) <= here]
    return older[-1] if older else alike[0] if alike else None


def observed(case: str, way: str | None, quantity: str) -> tuple[str, dict[str, Any]] | None:
    """What the nearest record says that a way gave, or, without a way, the words of a verdict; with its version."""
    record = nearest()
    for fact in reversed(record["outcomes"] if record else []):
        if (fact["case"], fact.get("way"), fact["quantity"]) == (case, way, quantity):
            return str(record["torch"]), dict(fact["observed"])  # type: ignore[index]
    return None


def verified(case: str) -> list[tuple[str, list[str]]]:
    """The devices, each with the versions on which every claim of a case is recorded, and holds."""
    wanted = _claims(nearest(), case)
    found: dict[str, list[str]] = {}
    for record in records():
        claims = _claims(record, case)
        if wanted and claims.keys() >= wanted.keys() and all(claims.values()):
            found.setdefault(record["device"], []).append(record["torch"])
    return list(found.items())


def spans(versions: list[str]) -> str:
    """Versions as people say them: neighbouring minor releases as a span.

    >>> spans(["2.6.0", "2.7.0", "2.8.0", "2.10.0", "2.13.0", "2.14.0"])
    '2.6 to 2.8, 2.10, 2.13 and 2.14'
    """
    runs: list[list[tuple[int, ...]]] = []
    for version in dict.fromkeys(number(version)[:2] for version in versions):
        if runs and version == (runs[-1][-1][0], runs[-1][-1][1] + 1):
            runs[-1].append(version)
        else:
            runs.append([version])
    names = [[".".join(map(str, version)) for version in run] for run in runs]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else " and ".join(run) for run in names)


def device() -> str:
    """The kind of device on which tensors are made here: `cpu`, `cuda`, `mps`."""
    return str(torch.get_default_device().type)


def _claims(record: dict[str, Any] | None, case: str) -> dict[tuple[str, str, str, str], bool]:
    facts = [fact for fact in (record["outcomes"] if record else []) if fact["case"] == case]
    keys = ("page", "type", "way", "quantity")
    return {tuple(str(fact.get(key)) for key in keys): fact["holds"] for fact in facts}  # type: ignore[misc]
