"""Whatever a chapter expects: change it, and the check is red."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from helpers import Claim
from helpers.compare import Tolerance
from helpers.entries import Absent, Entries, Outcome, Raised
from tools.steps.collect import failed


def test_the_chapters_claim_enough_to_speak_of(facts):
    count = Counter(fact["type"] for fact in facts)
    assert count["claim"] > 100 and count["verdict"] >= 8
    assert failed(facts) == []


def test_every_claim_can_be_rebuilt_from_its_record_and_holds(facts):
    for fact in claims(facts):
        claim = rebuilt(fact)
        assert claim.holds, fact["text"]
        assert [claim.expected.json(), claim.observed.json()] == [fact["expected"], fact["observed"]]


def test_no_claim_holds_with_any_entry_of_its_expectation_changed(facts):
    survivors = [
        f"{fact['page']}: {fact['text']} also holds with {changed}"
        for fact in claims(facts)
        for changed in changes(outcome_of(fact["expected"]))
        if replace(rebuilt(fact), expected=changed).holds
    ]
    assert survivors == []


def claims(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [fact for fact in facts if fact["type"] == "claim"]


def outcome_of(fact: dict[str, Any]) -> Outcome:
    if "absent" in fact:
        return Absent()
    if "raised" in fact:
        return Raised(fact["raised"], fact["message"])
    dtype = getattr(torch, fact["dtype"])
    numbers = [{"--": 0, "True": True, "False": False}.get(text, text) for text in fact["entries"]]
    kind = float if dtype.is_floating_point else int
    data = torch.tensor([kind(number) for number in numbers], dtype=dtype).reshape(fact["shape"])
    mask = torch.tensor([text != "--" for text in fact["entries"]], dtype=torch.bool).reshape(fact["shape"])
    return Entries(data, mask)


def rebuilt(fact: dict[str, Any]) -> Claim:
    names = (fact["case"], fact["method"], fact["quantity"])
    return Claim(*names, outcome_of(fact["expected"]), outcome_of(fact["observed"]), tolerance_of(fact["tolerance"]))


def tolerance_of(text: str) -> Tolerance:
    found = {
        "ulps": int((re.search(r"within (\d+) ulp", text) or [0, 0])[1]),
        "rtol": float((re.search(r"rtol ([^,]+)", text) or [0, 0])[1]),
        "atol": float((re.search(r"atol ([^,]+)", text) or [0, 0])[1]),
        "signed_zero": "sign of zero" in text,
        "because": (re.search(r"because (.+)", text) or ["", ""])[1],
    }
    assert str(Tolerance(**found)) == text
    return Tolerance(**found)


def changes(expected: Outcome) -> Iterator[Outcome]:
    """Every expectation that differs in one element, or in what it is at all."""
    if isinstance(expected, Entries):
        for index in range(len(expected)):
            data, mask = expected.data.clone(), expected.mask.clone()
            data.view(-1)[index] = other(data.view(-1)[index].item())
            mask.view(-1)[index] = True
            yield Entries(data, mask)
            if expected.mask.view(-1)[index]:
                mask = mask.clone()
                mask.view(-1)[index] = False
                yield Entries(expected.data, mask)
        yield Absent()
    elif isinstance(expected, Raised):
        yield Raised("Other" + expected.type, expected.message)
        yield Raised(expected.type, expected.message + " or so")
        yield Absent()
    else:
        yield Entries(torch.tensor(0.0), torch.tensor(True))
        yield Raised("RuntimeError")


def other(value: float) -> float:
    """A number that is not this one, by more than any tolerance in the book."""
    if isinstance(value, bool):
        return not value
    return value + max(1, abs(value)) if math.isfinite(value) else 0.0
