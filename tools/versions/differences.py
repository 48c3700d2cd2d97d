"""The results on another PyTorch that differ from the record, and whether PyTorch or this project changed them."""

from __future__ import annotations

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
"""The kinds of differences, the most important first."""

OURS = "ignoring"
"""The method whose results belong to this project. The results of all other methods belong to PyTorch."""


@dataclass(frozen=True)
class Difference:
    """One result that is not as recorded.

    `kind` is one of `KINDS`. `where` is a page, or the self-check. `what` is a case, method and quantity, or a cell.
    """

    kind: str
    where: str
    what: str
    recorded: str
    observed: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no difference is called {self.kind!r}; known: {', '.join(KINDS)}")


def of_claims(facts: Iterable[dict[str, Any]]) -> list[Difference]:
    """The claims and verdicts of executed pages that do not hold.

    A claim has no reference. The verdict on the same quantity says whether a method of PyTorch came nearer to the
    reference. Without a verdict, only a result in place of an exception counts as better.
    """
    facts = list(facts)
    found, better = [], {}
    for fact in facts:
        if fact["type"] != "verdict":
            continue
        for method, word in fact["observed"].items():
            wanted = fact["expected"].get(method, "no expectation")
            better[fact["page"], fact["quantity"], method] = _rank(word) < _rank(wanted)
            if word != wanted:
                if better[fact["page"], fact["quantity"], method]:
                    kind = "fixed upstream"
                else:
                    kind = "broken here" if method == OURS else "changed upstream"
                what = f"{fact['case']} · {method} · verdict on {fact['quantity']}"
                found.append(Difference(kind, fact["page"], what, wanted, word))
    for fact in facts:
        if fact["type"] != "claim" or fact["holds"]:
            continue
        method, expected, observed = fact["method"], fact["expected"], fact["observed"]
        improved = better.get((fact["page"], fact["quantity"], method), "raised" in expected and "entries" in observed)
        kind = "broken here" if method == OURS else "fixed upstream" if improved else "changed upstream"
        # If both results are exceptions of one type, their messages differ.
        worded = "raised" in expected and expected["raised"] == observed.get("raised")
        sides = (_text(side, fact["differing"] or [], worded) for side in (expected, observed))
        found.append(Difference(kind, fact["page"], f"{fact['case']} · {method} · {fact['quantity']}", *sides))
    return found


def of_selfcheck(said: dict[str, Any]) -> list[Difference]:
    """The findings of `python -m zero_or_nan.selfcheck --json`, with operators that it left out, if it reports them."""
    found = [
        Difference(each["kind"], "self-check", f"{each['name']} · {each['method']}", each["recorded"], each["observed"])
        for each in said["differences"]
    ]
    if said["operators_left_out"]:
        found.append(Difference("could not be run", "self-check", "operators", "run", said["operators_left_out"]))
    return found


def _rank(word: str) -> int:
    """How far a word of a verdict is from right. An exception counts like a missing element: neither hides anything."""
    from helpers.verdict import JUDGEMENTS  # here, because it imports torch, which reading the record does not need

    order = list(JUDGEMENTS)
    return order.index(word if word in order else "missing")


def _text(outcome: dict[str, Any], differing: list[int], worded: bool, limit: int = 6) -> str:
    """An outcome in a few words: the elements that differ, or the first ones; for an exception its type or message."""
    if "raised" in outcome:
        return f"says {outcome['message'].strip().partition(chr(10))[0]!r}" if worded else f"raises {outcome['raised']}"
    if "absent" in outcome:
        return "None"
    entries = outcome["entries"]
    shown = [entries[index] for index in differing or range(len(entries))]
    return ", ".join(map(str, shown[:limit])) + (f", … ({len(shown)})" if len(shown) > limit else "")
