"""Tables of what each release of PyTorch gave, drawn from `results/`: case by way, what changed, what ran."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ..project import MAIN

Link = Callable[[str], str]
"""Gives the address of a page by its name, or the empty text where there is no such page."""

LEAST = 4
"""Releases that a cell has to span for its word to fit on a phone."""


class Column(NamedTuple):
    """One recorded run: where it lies in the table, and what it holds."""

    device: str
    version: str
    record: dict[str, Any]


class State(NamedTuple):
    """What a release gave for one way of a case: a word, and every claim with its expectation and whether it held."""

    word: str
    claims: frozenset[tuple[str, str, bool]]


class Place(NamedTuple):
    """A claim's place: the page that makes it, its case, way and quantity."""

    page: str
    case: str
    way: str
    quantity: str


def columns(folder: Path) -> list[Column]:
    """The recorded runs, device by device (the CPU first), oldest release first."""
    from helpers.releases import number

    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("torch-*.json")]
    found = [Column(record["device"], record["torch"], record) for record in records]
    return sorted(found, key=lambda column: (column.device != "cpu", column.device, number(column.version)))


def releases(folder: Path, link: Link) -> str:
    """The table of cases and ways by release. Releases that gave the same share one cell; a change begins a new one."""
    from helpers import THREADS, WAYS, show

    table = columns(folder)
    bodies = []
    for case in THREADS:
        ways = {fact["way"]: fact["page"] for fact in _claims(table, case)}
        order = [*filter(ways.__contains__, MAIN), *(way for way in WAYS if way in ways and way not in MAIN)]
        rows = [
            f'<tr><th scope="row">{html.escape(WAYS[way].title)}</th>{"".join(_cells(table, case, way, link))}</tr>'
            for way in order
        ]
        name = _linked(link(next(iter(ways.values()), "")), html.escape(THREADS[case].label))
        head = f'<tr><th scope="rowgroup" colspan="{len(table) + 1}">{name}</th></tr>'
        if rows:
            bodies.append(f"<tbody>{head}{''.join(rows)}</tbody>")
    devices = [(device, len(list(group))) for device, group in groupby(table, lambda column: column.device)]
    groups = "".join(f'<th scope="colgroup" colspan="{n}">PyTorch, {_device(device)}</th>' for device, n in devices)
    heads = "".join(f'<th scope="col">{html.escape(_minor(column.version))}</th>' for column in table)
    count = len({Place(f["page"], f["case"], f["way"], f["quantity"]) for f in _claims(table)})
    caption = f"{count} claims on {len(table)} releases; {len(list(changes(table)))} of them changed"
    return show.page(
        f'<div class="zn-prose"><table class="zn-releases"><caption>{caption}</caption>'
        f'<thead><tr><th rowspan="2" scope="col">case and way</th>{groups}</tr><tr>{heads}</tr></thead>'
        f"{''.join(bodies)}</table></div>"
    )


def changed(folder: Path, link: Link) -> str:
    """A table of the claims whose result a release changed: before, since, and the pull request."""
    from helpers import THREADS, WAYS, show
    from helpers.claims import anchor

    rows = []
    for place, fact in changes(columns(folder)):
        case, way = html.escape(THREADS[place.case].label), html.escape(WAYS[place.way].title)
        address = link(place.page)
        target = f"{address}#{anchor(place.case, place.way, place.quantity)}" if address else ""
        name = f"{case}, {way}: {_linked(target, f'<code>{html.escape(place.quantity)}</code>')}"
        for older, newer in zip(fact["history"], fact["history"][1:], strict=False):
            pull = newer.get("pull")
            url = f"https://github.com/pytorch/pytorch/pull/{pull}"
            by = f'<a href="{url}">pytorch#{pull}</a>' if pull else "not found"
            rows.append([name, _brief(older["expected"]), f"{newer['since']}: {_brief(newer['expected'])}", by])
    table = show.table("Claims whose result a release changed", ["claim", "before", "since", "changed by"], rows)
    return show.page(f'<div class="zn-prose">{table}</div>')


def tested(folder: Path) -> str:
    """A table of what `make matrix` ran on each release: claims, tests of the library, samples of the database."""
    from helpers import show

    rows = []
    for row in json.loads((folder / "measured" / "matrix.json").read_text(encoding="utf-8"))["rows"]:
        claims, tests, mended = (row.get(part, {}) for part in ("claims", "tests", "mended"))
        rows.append(
            [
                html.escape(row["torch"]),
                f"{claims['held']} of {claims['of']}" if "held" in claims else _wrong(row, claims),
                f"{tests['passed']} passed, {len(tests['failed'])} failed" if "passed" in tests else _wrong(row, tests),
                (
                    f"{mended['mended']} of {mended['contaminated']} mended, {mended['broken']} broken"
                    if "mended" in mended
                    else _wrong(row, mended)
                ),
            ]
        )
    head = ["release", "claims that hold", "tests of the library", "contaminated samples of the operator database"]
    return show.page(f'<div class="zn-prose">{show.table("What ran on each release", head, rows)}</div>')


def changes(table: list[Column]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The claims that know two results, each once, as the newest release recorded it."""
    found = {Place(f["page"], f["case"], f["way"], f["quantity"]): f for f in _claims(table) if f.get("history")}
    return iter(found.items())


def _claims(table: list[Column], case: str | None = None) -> list[dict[str, Any]]:
    facts = (fact for column in table for fact in column.record["outcomes"])
    return [fact for fact in facts if fact["type"] == "claim" and case in (None, fact["case"])]


def _cells(table: list[Column], case: str, way: str, link: Link) -> Iterator[str]:
    """A cell for each span of releases of one device that gave the same."""
    for _, of_device in groupby(table, lambda column: column.device):
        before: tuple[Column, State] | None = None
        for state, group in groupby(of_device, lambda column: _state(column.record, case, way)):
            span = list(group)
            delta = _delta(before[1], state, span[0], case, way, link) if before else ""
            short = " zn-short" if len(span) < LEAST else ""
            kind = f' class="zn-changed{short}"' if delta else f' class="{short.strip()}"' if short else ""
            yield f'<td colspan="{len(span)}"{kind}>{_word(state.word)}{delta}</td>'
            before = span[-1], state


def _state(record: dict[str, Any], case: str, way: str) -> State:
    from helpers import JUDGEMENTS

    facts = [fact for fact in record["outcomes"] if fact["case"] == case]
    claims = [fact for fact in facts if fact["type"] == "claim" and fact["way"] == way]
    words = [fact["observed"][way] for fact in facts if fact["type"] == "verdict" and way in fact["observed"]]
    order = [*JUDGEMENTS, *words]  # an exception is worse than any judgement
    word = max(words, key=order.index) if words else "as claimed" if claims else "not run"
    told = frozenset((fact["quantity"], json.dumps(fact["expected"]), fact["holds"]) for fact in claims)
    return State(word if all(fact["holds"] for fact in claims) else "does not hold", told)


def _delta(before: State, state: State, first: Column, case: str, way: str, link: Link) -> str:
    """How many claims changed with a release, as a link to the first of them."""
    from helpers.claims import anchor

    quantities = sorted({quantity for quantity, *_ in before.claims ^ state.claims})
    page = next((f["page"] for f in first.record["outcomes"] if (f["case"], f.get("way")) == (case, way)), "")
    address = link(page)
    target = f"{address}#{anchor(case, way, quantities[0])}" if address and quantities else ""
    said = f"{len(quantities)} claim{'s' * (len(quantities) != 1)} changed with {_minor(first.version)}"
    return f' <span class="zn-delta" title="{said}">{_linked(target, f"Δ{len(quantities)}", said)}</span>'


def _word(word: str) -> str:
    from helpers.verdict import JUDGEMENTS

    mark = {"as claimed": "✓", "not run": "–", "does not hold": "✗"}.get(word) or JUDGEMENTS.get(word, "!")
    return f'<span class="zn-mark">{mark}</span> <span class="zn-word">{html.escape(word)}</span>'


def _brief(expected: dict[str, Any]) -> str:
    if "raised" in expected:
        return f"raises {html.escape(expected['raised'])}"
    if "absent" in expected:
        return "None"
    texts = [f"{float(text):.3g}" if text not in ("--", "True", "False") else text for text in expected["entries"]]
    return html.escape(f"[{', '.join(texts).replace('nan', 'NaN')}]")


def _linked(address: str, text: str, label: str = "") -> str:
    said = f' aria-label="{html.escape(label, quote=True)}"' if label else ""
    return f'<a href="{html.escape(address, quote=True)}"{said}>{text}</a>' if address else text


def _wrong(row: dict[str, Any], part: dict[str, Any]) -> str:
    return html.escape(str(row.get("error") or part.get("error") or "not run"))


def _minor(version: str) -> str:
    """The minor release, and the patch where it is not the first: `2.9`, `2.9.1`."""
    return version.removesuffix(".0") if version.count(".") == 2 else version


def _device(device: str) -> str:
    return {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS"}.get(device, html.escape(device))
