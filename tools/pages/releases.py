"""Tables of the results of each PyTorch release, drawn from `results/`: case by method, what changed, what ran."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..project import MAIN, read_record

Link = Callable[[str], str]
"""Gives the address of a page by its name, or the empty text if there is no such page."""


class Column(NamedTuple):
    """One recorded run: its device, its version, and its content."""

    device: str
    version: str
    record: dict[str, Any]


class Place(NamedTuple):
    """The keys of a claim: the page that makes it, its case, method and quantity."""

    page: str
    case: str
    method: str
    quantity: str


class Change(NamedTuple):
    """A claim whose result differs from the release before. `pull` is PyTorch's pull request, if it is known."""

    place: Place
    version: str
    before: dict[str, Any]
    since: dict[str, Any]
    pull: int | None


def columns(folder: Path) -> list[Column]:
    """The recorded runs, grouped by device (the CPU first), with the oldest release first."""
    from helpers.recorded import runs

    path = folder / "claims.json"
    found = runs(read_record(path)) if path.is_file() else []
    return [Column(run["device"], run["torch"], run) for run in found]


def releases(folder: Path, link: Link) -> str:
    """The table of cases and methods by release. Releases with the same word share one cell."""
    from helpers import METHODS, THREADS, show

    table = columns(folder)
    bodies = []
    for case in THREADS:
        methods = {fact["method"]: fact["page"] for fact in _claims(table, case)}
        order = [
            *filter(methods.__contains__, MAIN),
            *(method for method in METHODS if method in methods and method not in MAIN),
        ]
        rows = [
            f'<tr><th scope="row">{html.escape(METHODS[m].title)}</th>{"".join(_cells(table, case, m))}</tr>'
            for m in order
        ]
        thread = THREADS[case]
        name = (
            f"{_linked(link(next(iter(methods.values()), '')), html.escape(thread.label))}: {html.escape(thread.title)}"
        )
        head = f'<tr><th scope="rowgroup" colspan="{len(table) + 1}">{name}</th></tr>'
        if rows:
            bodies.append(f"<tbody>{head}{''.join(rows)}</tbody>")
    devices = [(device, len(list(group))) for device, group in groupby(table, lambda column: column.device)]
    groups = "".join(f'<th scope="colgroup" colspan="{n}">PyTorch, {_device(device)}</th>' for device, n in devices)
    heads = "".join(f'<th scope="col">{html.escape(_minor(column.version))}</th>' for column in table)
    count = len(set(map(_place, _claims(table))))
    where = " and ".join(
        f"{len({c.version for c in table if c.device == d})} releases on {_device(d)}" for d, _ in devices
    )
    caption = f"{count} claims, {where}; a release changed {len(list(changes(table)))} of these claims"
    top = f'<thead><tr><th rowspan="2" scope="col">case and method</th>{groups}</tr><tr>{heads}</tr></thead>'
    table_ = f'<table class="zn-releases"><caption>{caption}</caption>{top}{"".join(bodies)}</table>'
    return show.page(show.prose(table_))


def changed(folder: Path, link: Link) -> str:
    """A table of the claims whose result a release changed: the elements that differ, and the pull request if known."""
    from helpers import METHODS, THREADS, show

    rows = []
    for change in changes(columns(folder)):
        place = change.place
        case, method = html.escape(THREADS[place.case].label), html.escape(METHODS[place.method].title)
        quantity = _linked(_address(place, link), f"<code>{html.escape(place.quantity)}</code>")
        name = f"{case}, {method}: {quantity}"
        url = f"https://github.com/pytorch/pytorch/pull/{change.pull}"
        by = f'<a href="{url}">pytorch#{change.pull}</a>' if change.pull else "see the page"
        before, since = _differing_entries(change.before, change.since)
        rows.append([name, html.escape(before), f"{_minor(change.version)}: {html.escape(since)}", by])
    table = show.table("Claims whose result a release changed", ["claim", "before", "since", "changed by"], rows)
    return show.page(show.prose(table))


def tested(folder: Path) -> str:
    """A table of the tests on each release: the recorded claims, tests of the library, and samples of the database.

    Claims are counted in the record of claims, because this record is updated more often than the matrix.
    """
    from helpers import show

    held = {column.version: [fact["holds"] for fact in column.record["outcomes"]] for column in columns(folder)}
    rows = []
    for row in read_record(folder / "measured" / "matrix.json")["rows"]:
        claims, tests, fixed = (row.get(part, {}) for part in ("claims", "tests", "fixed"))
        facts = held.get(row["torch"])
        rows.append(
            [
                html.escape(row["torch"]),
                f"{sum(facts)} of {len(facts)}" if facts else _wrong(row, claims),
                f"{tests['passed']} passed, {len(tests['failed'])} failed" if "passed" in tests else _wrong(row, tests),
                (
                    f"{fixed['fixed']} of {fixed['contaminated']} fixed, {fixed['broken']} broken"
                    if "fixed" in fixed
                    else _wrong(row, fixed)
                ),
            ]
        )
    head = ["release", "claims and verdicts that hold", "library tests", "contaminated samples"]
    return show.page(show.prose(show.table("Results of all tests on each release", head, rows, stack=False)))


def changes(table: list[Column]) -> Iterator[Change]:
    """The differences between neighbouring releases of one device, claim by claim in the order of the pages."""
    for _, of_device in groupby(table, lambda column: column.device):
        runs = [(run.version, _by_place(run)) for run in of_device]
        for place, newest in runs[-1][1].items():
            pulls = {epoch["since"]: epoch.get("pull") for epoch in newest.get("history", [])}
            seen = [(version, facts[place]["observed"]) for version, facts in runs if place in facts]
            for (_, before), (version, since) in pairwise(seen):
                if not _alike(before, since):
                    yield Change(place, version, before, since, pulls.get(_minor(version)))


def _by_place(run: Column) -> dict[Place, dict[str, Any]]:
    return {_place(fact): fact for fact in _claims([run])}


def _place(fact: dict[str, Any]) -> Place:
    return Place(fact["page"], fact["case"], fact["method"], fact["quantity"])


def _differing_entries(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, str]:
    """Both results in a few words. For tensors of equal shape, only the elements that differ, each with its index."""
    if "entries" not in one or one.get("shape") != other.get("shape"):
        return _brief(one), _brief(other)
    pairs = enumerate(zip(one["entries"], other["entries"], strict=True))
    found = [(index, a, b) for index, (a, b) in pairs if not _alike({**one, "entries": [a]}, {**one, "entries": [b]})]
    sides = ([f"[{index}] {_short(*pair)[side]}" for index, *pair in found] for side in (0, 1))
    before, since = (", ".join(side) for side in sides)
    return before, since


def _short(one: str, other: str) -> tuple[str, str]:
    """Two entries. Numbers with a point have five digits if they differ then."""
    brief = [f"{float(each):.5g}" if re.fullmatch(r"-?\d+\.\d+(e[-+]?\d+)?", each) else each for each in (one, other)]
    return (brief[0], brief[1]) if brief[0] != brief[1] else (one, other)


def _claims(table: list[Column], case: str | None = None) -> list[dict[str, Any]]:
    facts = (fact for column in table for fact in column.record["outcomes"])
    return [fact for fact in facts if fact["type"] == "claim" and case in (None, fact["case"])]


def _cells(table: list[Column], case: str, method: str) -> Iterator[str]:
    """A cell for each span of consecutive releases of one device with the same word."""
    for _, of_device in groupby(table, lambda column: column.device):
        spans = [
            (word, len(list(span))) for word, span in groupby(_state(column, case, method) for column in of_device)
        ]
        for number, (word, length) in enumerate(spans):
            kind = ' class="zn-changed"' if number else ""
            yield f'<td colspan="{length}"{kind}><div>{_word(word)}</div></td>'


def _state(run: Column, case: str, method: str) -> str:
    """The result of a release for one method of a case, in a word."""
    from helpers import JUDGEMENTS

    facts = [fact for fact in run.record["outcomes"] if fact["case"] == case]
    claims = [fact for fact in facts if fact["type"] == "claim" and fact["method"] == method]
    if not all(fact["holds"] for fact in claims):
        return "does not hold"
    words = [fact["observed"][method] for fact in facts if fact["type"] == "verdict" and method in fact["observed"]]
    order = [*JUDGEMENTS, *words]  # an exception is worse than any judgement
    return str(max(words, key=order.index)) if words else "as claimed" if claims else "not run"


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if "entries" not in one or "entries" not in other:
        return one.get("raised") == other.get("raised") and one.keys() == other.keys()
    from helpers.recorded import alike

    pairs = zip(one["entries"], other["entries"], strict=False)
    return bool(one["shape"] == other["shape"]) and all(alike(a, b) for a, b in pairs)


def _address(place: Place, link: Link) -> str:
    from helpers.claims import anchor

    page = link(place.page)
    return f"{page}#{anchor(place.case, place.method, place.quantity)}" if page else ""


def _word(word: str) -> str:
    from helpers.verdict import JUDGEMENTS

    mark = {"as claimed": "✓", "not run": "–", "does not hold": "✗"}.get(word) or JUDGEMENTS.get(word, "!")
    return f'<span class="zn-mark">{mark}</span> <span class="zn-word">{html.escape(word)}</span>'


def _brief(observed: dict[str, Any]) -> str:
    if "raised" in observed:
        return f"raises {observed['raised']}"
    return "None" if "absent" in observed else f"[{', '.join(observed['entries'])}]"


def _linked(address: str, text: str) -> str:
    return f'<a href="{html.escape(address, quote=True)}">{text}</a>' if address else text


def _wrong(row: dict[str, Any], part: dict[str, Any]) -> str:
    return html.escape(str(row.get("error") or part.get("error") or "not run"))


def _minor(version: str) -> str:
    """The minor release, with the patch if it is not 0: `2.9`, `2.9.1`."""
    return version.removesuffix(".0") if version.count(".") == 2 else version


def _device(device: str) -> str:
    return {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS"}.get(device, html.escape(device))
