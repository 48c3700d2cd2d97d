"""What another PyTorch gives and was not recorded, and whose doing it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

KINDS = {
    "broken here": "A result of `ignoring` is not the recorded one. The library must be fixed.",
    "fixed upstream": "A result of PyTorch itself is right now, and the recorded one was not. The page must say so.",
    "changed upstream": "A result of PyTorch itself is not the recorded one. Whether it is nearer to the right "
    "result is not known.",
    "could not be run": "The code failed, so its results are not known until it runs again.",
}
"""What can be said of a difference, in the order in which one wants to know it."""

OURS = "ignoring"
"""The way whose results are this project's own; every other way's are PyTorch's."""


@dataclass(frozen=True)
class Difference:
    """One result that is not as recorded.

    `kind` is one of `KINDS`; `where` a page, or the self-check; `what` its case, way and quantity, or a cell.
    """

    kind: str
    where: str
    what: str
    recorded: str
    observed: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no difference is called {self.kind!r}; known: {', '.join(KINDS)}")

    def digest(self, build: str) -> str:
        """The same for the same difference of a build on another day; short, for many of them stand in one issue."""
        said = "\0".join((build, self.kind, self.where, self.what, self.observed))
        return hashlib.sha256(said.encode()).hexdigest()[:8]


def of_claims(facts: Iterable[dict[str, Any]]) -> list[Difference]:
    """The claims and verdicts of executed pages that do not hold.

    A claim knows no reference. Whether a way of PyTorch's came nearer to it is known from the verdict on the same
    quantity; without one, only a result where there was an exception is better.
    """
    facts = list(facts)
    found, better = [], {}
    for fact in facts:
        if fact["type"] != "verdict":
            continue
        for way, word in fact["observed"].items():
            wanted = fact["expected"].get(way, "no expectation")
            better[fact["page"], fact["quantity"], way] = _rank(word) < _rank(wanted)
            if word != wanted:
                if better[fact["page"], fact["quantity"], way]:
                    kind = "fixed upstream"
                else:
                    kind = "broken here" if way == OURS else "changed upstream"
                what = f"{fact['case']} · {way} · verdict on {fact['quantity']}"
                found.append(Difference(kind, fact["page"], what, wanted, word))
    for fact in facts:
        if fact["type"] != "claim" or fact["holds"]:
            continue
        way, expected, observed = fact["way"], fact["expected"], fact["observed"]
        improved = better.get((fact["page"], fact["quantity"], way), "raised" in expected and "entries" in observed)
        kind = "broken here" if way == OURS else "fixed upstream" if improved else "changed upstream"
        # Of two exceptions of one type it is what they say that differs.
        worded = "raised" in expected and expected["raised"] == observed.get("raised")
        sides = (_text(side, fact["differing"] or [], worded) for side in (expected, observed))
        found.append(Difference(kind, fact["page"], f"{fact['case']} · {way} · {fact['quantity']}", *sides))
    return found


def of_selfcheck(said: dict[str, Any]) -> list[Difference]:
    """What `python -m zero_or_nan.selfcheck --json` found; and where it says so, that operators were left out."""
    found = [
        Difference(each["kind"], "self-check", f"{each['name']} · {each['way']}", each["recorded"], each["observed"])
        for each in said["differences"]
    ]
    if said["operators_left_out"]:
        found.append(Difference("could not be run", "self-check", "operators", "run", said["operators_left_out"]))
    return found


def _rank(word: str) -> int:
    """How far a word of a verdict is from right. An exception is worth what a missing entry is: it hides nothing."""
    from helpers.verdict import JUDGEMENTS  # brings torch, which reading what was written down can do without

    order = list(JUDGEMENTS)
    return order.index(word if word in order else "missing")


def _text(outcome: dict[str, Any], differing: list[int], worded: bool, limit: int = 6) -> str:
    """An outcome in a few words: the entries that differ, or the first; an exception's type, or its message."""
    if "raised" in outcome:
        return f"says {outcome['message'].strip().partition(chr(10))[0]!r}" if worded else f"raises {outcome['raised']}"
    if "absent" in outcome:
        return "None"
    entries = outcome["entries"]
    shown = [entries[index] for index in differing or range(len(entries))]
    return ", ".join(map(str, shown[:limit])) + (f", … ({len(shown)})" if len(shown) > limit else "")
