"""Step 4, on request: record the outcomes on this PyTorch, next to the outcomes on other versions and devices.

`results/claims.json` has one line for each claim, and several lines only if runs gave different outcomes.
`helpers.recorded` reads it, and `results/schema.json` describes it. It contains no times and no paths, and its lines
are in the order of the pages. Therefore the same run gives the same bytes again.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..project import Problem, Project, read_record, write_record
from .collect import checked

PLACE = ("page", "type", "case", "method", "quantity")
"""The keys that together identify a claim or a verdict."""
_KEPT = (*PLACE, "expected", "observed", "tolerance", "holds", "history")


def check_records(project: Project) -> None:
    """Check that the outcomes of every release in the matrix, and the outputs of cells, are recorded and can be read.

    Pages show a release only if it is recorded. Without this check, the build would succeed after a record was deleted.
    A release would be missing from the site, or the outputs of cells would not be checked.

    Raises:
        Problem: if a record is missing, is not JSON, was edited, or lacks a release; with the path of the file. Also if
            the book lacks a recorded page: its notebook would be deleted.
    """
    for path in sorted(project.results.rglob("*.json")):
        if path.name != "schema.json":
            read_record(path)
    if project.outputs.is_file():
        recorded, now = list(read_record(project.outputs)["pages"]), [chapter.stem for chapter in project.chapters]
        if recorded != [name for name in now if name in recorded]:
            gone = ", ".join(name for name in recorded if name not in now)
            fault = f"these pages are no longer run: {gone}" if gone else "the pages have another order than recorded"
            raise Problem(
                f"{fault}. A page is run if _toc.yml names it, and its front matter has kernelspec. If you changed "
                "this on purpose, run `make record`"
            )
    if not project.matrix.is_file():
        return
    releases = {name.split()[0] for name in read_record(project.claims)["runs"]}
    if lost := [row["torch"] for row in read_record(project.matrix)["rows"] if row["torch"] not in releases]:
        raise Problem(
            f"{project.claims} has no outcomes of PyTorch {', '.join(lost)}, which {project.matrix} names; restore it "
            "with `git checkout`, or record them again"
        )
    read_record(project.outputs)


def outcome(fact: dict[str, Any]) -> dict[str, Any]:
    """The part of a claim or verdict that versions are compared by: what was expected, and what was observed."""
    kept = {key: fact[key] for key in _KEPT if fact.get(key) not in (None, [])}
    if "raised" in fact["observed"]:
        # The rest of a message is advice. It changes with each release, and may contain paths of the machine.
        message = str(fact["observed"].get("message", "")).strip().partition("\n")[0]
        kept["observed"] = {**fact["observed"], "message": message}
    return kept


def record(project: Project, facts: Iterable[dict[str, Any]], complete: bool = True) -> Path:
    """Write the outcomes of all claims and verdicts to `results/claims.json`, and return the file.

    Args:
        project: the checkout.
        facts: the statements of all pages.
        complete: whether these are all claims of the pages, that is, no cell failed before it could make its claim.

    Raises:
        Problem: if there are no facts, if they come from several versions or devices, or if two have the same place.
    """
    outcomes = checked(facts)
    runs = {(fact["torch"].partition("+")[0], fact["device"]) for fact in outcomes}
    if len(runs) != 1:
        found = ", ".join(" on ".join(run) for run in sorted(runs)) or "none"
        raise Problem(
            f"a record needs claims that all ran on one version of PyTorch and one device; these ran on: {found}"
        )
    torch, device = runs.pop()
    run = {"torch": torch, "device": device, "python": platform.python_version(), "machine": platform.machine()}
    return add(project, {**run, "outcomes": [outcome(fact) for fact in outcomes]}, complete)


def add(project: Project, run: dict[str, Any], complete: bool) -> Path:
    """Put a run into the record. It replaces the run of the same version and device; the other runs stay.

    A complete run removes the claims that no page makes any more from all other runs, and prints them.

    Raises:
        Problem: if two outcomes of the run have the same place, because a record can't hold both.
    """
    from helpers.recorded import runs  # here, because it imports torch, and most builds record nothing
    from helpers.releases import number

    places = [identity(each) for each in run["outcomes"]]
    if twice := [place for place, count in Counter(places).items() if count > 1]:
        raise Problem(
            f"more than one claim is called {'; '.join(map(named, twice))}. Give each of these claims another quantity"
        )
    known = runs(read_record(project.claims)) if project.claims.is_file() else []
    others = [each for each in known if _name(each) != _name(run)]
    if complete:
        gone = {identity(each): None for other in others for each in other["outcomes"] if identity(each) not in places}
        for place in gone:
            print(f"removed from the record, because no page makes this claim any more: {named(place)}")
        for other in others:
            other["outcomes"] = [each for each in other["outcomes"] if identity(each) not in gone]
    ordered = sorted([run, *others], key=lambda each: (each["device"] != "cpu", each["device"], number(each["torch"])))
    lines = {_name(each): list(map(written, each["outcomes"])) for each in ordered}
    content = {
        "runs": {_name(each): {key: each[key] for key in ("python", "machine")} for each in ordered},
        "outcomes": folded(lines, PLACE, first=_name(run)),  # the newest run has the present order of the pages
    }
    write_record(project.claims, content)
    return project.claims


def folded(runs: Mapping[str, Sequence[dict[str, Any]]], about: Sequence[str], first: str) -> list[dict[str, Any]]:
    """The lines of all runs as one list. If not all runs have a line, its `on` names the runs that have it.

    `helpers.recorded.unfolded` is the inverse.

    Args:
        runs: the lines of each run, by its name. Within one run, no two lines have the same values of `about`.
        about: the keys that identify a line. Lines with equal values become neighbours.
        first: the run that determines the order. A line that this run lacks follows its predecessor in another run.
    """
    order = [identity(line, about) for line in runs[first]]
    found: dict[tuple[str, ...], list[tuple[dict[str, Any], list[str]]]] = {}
    for name, lines in runs.items():
        before = None
        for line in lines:
            place = identity(line, about)
            if place not in order:
                order.insert(order.index(before) + 1 if before else 0, place)
            before = place
            alike = found.setdefault(place, [])
            on = next((on for known, on in alike if known == line), None)
            if on is None:
                alike.append((line, [name]))
            else:
                on.append(name)
    return [line if on == list(runs) else {"on": on, **line} for place in order for line, on in found[place]]


def identity(line: dict[str, Any], keys: Sequence[str] = PLACE) -> tuple[str, ...]:
    """The values that identify a claim or a verdict, or by other keys a line of another record."""
    return tuple(line.get(key, "") for key in keys)


def _name(run: dict[str, Any]) -> str:
    return f"{run['torch']} {run['device']}"


def named(place: tuple[str, ...]) -> str:
    """The identity of a claim or a verdict as messages give it."""
    return " · ".join(filter(None, place))


def written(outcome: dict[str, Any]) -> dict[str, Any]:
    """An outcome as the file has it: each tensor as one text, and the keys in an order that is easy to read."""
    line = {key: outcome[key] for key in _KEPT if key in outcome}
    line.update({side: _text(outcome[side]) for side in ("expected", "observed")})
    if "history" in outcome:
        line["history"] = [
            {"since": epoch["since"], "expected": _text(epoch["expected"]), "pull": epoch["pull"]}
            for epoch in outcome["history"]
        ]
    return line


def _text(outcome: dict[str, Any]) -> Any:
    if "entries" not in outcome:
        return dict(sorted(outcome.items()))
    return f"{outcome['dtype']}{outcome['shape']}:" + "".join(f" {entry}" for entry in outcome["entries"])
