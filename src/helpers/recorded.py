"""What other versions of PyTorch gave: `results/claims.json`, which lies beside `src/` wherever the helpers do.

The file has one line for each claim and verdict. If runs gave different outcomes, each outcome has its own line, and
`on` names the runs that gave it. A line without `on` belongs to all runs. A tensor is one text: `float32[2]: 1 NaN`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .releases import number

RECORDED = Path(__file__).resolve().parents[2] / "results" / "claims.json"


@cache
def records() -> tuple[dict[str, Any], ...]:
    """Every recorded run, oldest version first; empty where the helpers were copied without `results/`.

    Raises:
        ValueError: when the file is not JSON; with its path.
    """
    if not RECORDED.is_file():
        return ()
    try:
        return tuple(runs(json.loads(RECORDED.read_text(encoding="utf-8"))))
    except ValueError as error:
        raise ValueError(f"{RECORDED} is not valid JSON ({error}); restore it with `git checkout`") from error


def runs(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Each run in the content of the file: its version, its device, and the outcomes of all its claims.

    They come in the order of the file: device by device (the CPU first), oldest release first.
    """
    outcomes = unfolded(content["runs"], map(_whole, content["outcomes"]))
    return [
        {**dict(zip(("torch", "device"), name.split(), strict=True)), **run, "outcomes": outcomes[name]}
        for name, run in content["runs"].items()
    ]


def unfolded(names: Iterable[str], lines: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The lines of each of these runs, in order, without `on`. `tools.steps.record.folded` is the inverse."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for line in lines:
        content = {key: value for key, value in line.items() if key != "on"}
        for name in line.get("on", found):
            found[name].append(content)
    return found


def _whole(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the file with its tensors as claims state them."""
    whole = {**line, "expected": _outcome(line["expected"]), "observed": _outcome(line["observed"])}
    if "history" in line:
        whole["history"] = [{**epoch, "expected": _outcome(epoch["expected"])} for epoch in line["history"]]
    return whole


def _outcome(recorded: Any) -> Any:
    if not isinstance(recorded, str):
        return recorded
    head, _, entries = recorded.partition(":")
    dtype, _, shape = head.partition("[")
    return {"dtype": dtype, "shape": json.loads(f"[{shape}"), "entries": entries.split()}


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


def by_release(case: str, way: str, quantity: str) -> list[tuple[str, dict[str, Any]]]:
    """What each recorded release gave on a CPU, oldest release first."""
    return [
        (str(record["torch"]), dict(fact["observed"]))
        for record in records()
        if record["device"] == "cpu"
        for fact in record["outcomes"]
        if (fact["case"], fact.get("way"), fact["quantity"]) == (case, way, quantity)
    ]


def alike(one: str, other: str) -> bool:
    """Whether two recorded elements are the same, or numbers that differ by rounding. Zero is alike to zero only.

    >>> alike("NaN", "NaN"), alike("0.5", "0.50000006"), alike("0", "1e-9")
    (True, True, False)
    """
    if one == other:
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-4)
    except ValueError:  # masked, or a truth value
        return False


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
