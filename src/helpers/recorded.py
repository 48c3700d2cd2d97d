"""The recorded results of other versions of PyTorch: `results/claims.json`, which is next to `src/` in a checkout.

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
    """Every recorded run, the oldest version first. Empty if the helpers were copied without `results/`.

    Raises:
        ValueError: if the file is not JSON; with its path.
    """
    if not RECORDED.is_file():
        return ()
    try:
        return tuple(runs(json.loads(RECORDED.read_text(encoding="utf-8"))))
    except ValueError as error:
        raise ValueError(f"{RECORDED} is not valid ({error}); restore it with `git checkout`") from error


def runs(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Each run in the content of the file: its version, its device, and the outcomes of all its claims.

    The order is that of the file: by device (the CPU first), then by release (the oldest first).
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
    """A line of the file, with its tensors in the form that claims use."""
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
    """The run to compare with: on this device, or else on the CPU; the newest version that is not newer than this one.

    If all recorded versions are newer, the oldest of them.
    """
    here = number(torch.__version__)
    by_device = {name: [record for record in records() if record["device"] == name] for name in (device(), "cpu")}
    alike = by_device[device()] or by_device["cpu"]
    older = [record for record in alike if number(record["torch"]) <= here]
    return older[-1] if older else alike[0] if alike else None


def observed(case: str, method: str | None, quantity: str) -> tuple[str, dict[str, Any]] | None:
    """The nearest record's version, and its result of a method. Without a method, the words of the verdict."""
    record = nearest()
    for fact in reversed(record["outcomes"] if record else []):
        if (fact["case"], fact.get("method"), fact["quantity"]) == (case, method, quantity):
            return str(record["torch"]), dict(fact["observed"])  # type: ignore[index]
    return None


def alike(one: str, other: str) -> bool:
    """Whether two recorded elements are the same, or numbers that differ only by rounding. Zero equals only zero.

    >>> alike("NaN", "NaN"), alike("0.5", "0.50000006"), alike("0", "1e-9")
    (True, True, False)
    """
    if one == other:
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-4)
    except ValueError:  # masked, or a boolean
        return False


def verified(case: str) -> list[tuple[str, list[str]]]:
    """Each device, with the versions on which every claim of the case is recorded and holds."""
    wanted = _claims(nearest(), case)
    found: dict[str, list[str]] = {}
    for record in records():
        claims = _claims(record, case)
        if wanted and claims.keys() >= wanted.keys() and all(claims.values()):
            found.setdefault(record["device"], []).append(record["torch"])
    return list(found.items())


def spans(versions: list[str]) -> str:
    """Versions as text, with consecutive minor releases as a span.

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
    """The type of the default device: `cpu`, `cuda` or `mps`."""
    return str(torch.get_default_device().type)


def _claims(record: dict[str, Any] | None, case: str) -> dict[tuple[str, str, str, str], bool]:
    facts = [fact for fact in (record["outcomes"] if record else []) if fact["case"] == case]
    keys = ("page", "type", "method", "quantity")
    return {tuple(str(fact.get(key)) for key in keys): fact["holds"] for fact in facts}  # type: ignore[misc]
