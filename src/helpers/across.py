"""A table of similar claims: the result of each here, and the recorded results of other releases of PyTorch."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from . import recorded, show
from .cases import Case
from .claims import Claim
from .entries import Entries


def across(case: Case, method: str, caption: str, head: Sequence[str], rows: Mapping[str, str]) -> None:
    """Show a table with a row for each claim, and a column for each element that the claim observed.

    The last column shows the recorded results of other releases: that they are the same, or each different result with
    its releases. Numbers that differ only in the last digits count as the same. The records are those of
    `results/claims.json` for the CPU.

    Args:
        case: the case that made the claims.
        method: the method of the claims.
        caption: what the table shows, as HTML.
        head: a header for the labels, then one for each element.
        rows: for each label, as HTML, the quantity of the claim.

    Raises:
        LookupError: if a claim is not made yet, or if it doesn't have one element for each header.

    >>> case = Case("52248")
    >>> case.claim("vanilla", "halves", torch.tensor([0.5, float("nan")]), [0.5, float("nan")])
    holds: 52248 · vanilla · halves = [0.5, NaN]  (exactly)
    >>> across(case, "vanilla", "Two numbers", ["what", "first", "second"], {"halves": "halves"})
    Two numbers
      halves: 0.5, NaN
    """
    made = {claim.quantity: claim for claim in case.claims if claim.method == method}
    for quantity in rows.values():
        if quantity not in made:
            raise LookupError(
                f"the method {method} made no claim about {quantity!r}; it made claims about: "
                f"{', '.join(made) or 'nothing'}"
            )
        observed = made[quantity].observed
        if not isinstance(observed, Entries) or len(observed) != len(head) - 1:
            raise LookupError(f"the claim about {quantity!r} needs {len(head) - 1} elements, one for each column")
    show.show(_table(caption, head, {label: made[quantity] for label, quantity in rows.items()}))


def _table(caption: str, head: Sequence[str], claims: Mapping[str, Claim]) -> show.Item:
    others = {label: _others(claim) for label, claim in claims.items()}
    known = list(dict.fromkeys(version for found in others.values() for _, versions in found for version in versions))
    rows = [[label, *show.cells(_entries(claim)), _said(others[label], known)] for label, claim in claims.items()]
    where = f", on PyTorch {html.escape(_here())}" + (f"; recorded on {recorded.spans(known)}" if known else "")
    # The text has no records, because these change when other releases are recorded.
    lines = [f"  {show.plain(label)}: {', '.join(_entries(claim).texts())}" for label, claim in claims.items()]
    text = "\n".join([show.plain(caption), *lines])
    return show.Item(text, show.table(caption + where, [*head, "other releases"], rows))


def _entries(claim: Claim) -> Entries:
    assert isinstance(claim.observed, Entries)
    return claim.observed


def _here() -> str:
    return torch.__version__.partition("+")[0]


def _others(claim: Claim) -> list[tuple[str, list[str]]]:
    """The results of other releases as text, each with the neighbouring releases that gave it."""
    known = recorded.by_release(claim.case, claim.method, claim.quantity)
    texts = [("the same" if _same(found, claim) else _brief(found), name) for name, found in known if name != _here()]
    return [(text, [name for _, name in group]) for text, group in groupby(texts, lambda pair: pair[0])]


def _said(others: list[tuple[str, list[str]]], known: list[str]) -> str:
    """The cell of the last column, as HTML. It names releases only if they differ, or if some are not recorded."""
    if not others:
        return '<span class="zn-note">not recorded</span>'
    if len(others) == 1 and others[0][1] == known:
        return html.escape(others[0][0])
    return "<br>".join(f"{html.escape(text)} ({recorded.spans(names)})" for text, names in others)


def _same(found: Mapping[str, Any], claim: Claim) -> bool:
    """Whether a record is the same as this run's result. A claim allows for round-off, so this compares the texts."""
    entries = found.get("entries")
    if entries is None:
        return False
    here = claim.observed.json().get("entries", [])
    return len(entries) == len(here) and all(recorded.alike(a, b) for a, b in zip(entries, here, strict=True))


def _brief(found: Mapping[str, Any]) -> str:
    if "entries" in found:
        return ", ".join(found["entries"])
    return f"raises {found['raised']}" if "raised" in found else "None"
