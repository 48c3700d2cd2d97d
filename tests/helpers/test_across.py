"""A table of claims that are alike: this run beside the records of other releases."""

import re
from math import nan

import pytest
import torch

from helpers import Case, across
from helpers.across import _table

HEAD = ["what", "first", "second"]


@pytest.fixture
def case():
    made = Case("52248")
    made.claim("vanilla", "halves", torch.tensor([0.5, nan]), [0.5, nan])
    return made


def record(version, *entries, device="cpu", **observed):
    fact = {
        "case": "52248",
        "method": "vanilla",
        "quantity": "halves",
        "observed": observed or {"entries": list(entries)},
    }
    return {"torch": version, "device": device, "outcomes": [fact]}


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "not recorded"),
        ([record("2.13.0", "0.5", "NaN")], "not recorded"),  # this release is not another one
        ([record("2.6.0", "0.5", "NaN"), record("2.7.0", "0.50000003", "NaN")], "the same"),
        ([record("2.6.0", "1", "0"), record("2.15.0", "0.5", "NaN")], "1, 0 (2.6)<br>the same (2.15)"),
        ([record("2.6.0", raised="TypeError")], "raises TypeError"),
        ([record("2.6.0", absent=True)], "None"),
        ([record("2.6.0", "1", "0", device="cuda")], "not recorded"),
    ],
)
def test_the_last_column_says_what_other_releases_gave(case, known, records, said):
    known(*records)
    shown = _table("Two numbers", HEAD, {"a <i>half</i>": case.claims[0]}).html()
    last = re.findall(r"<td[^>]*>(.*?)</td>", shown, re.DOTALL)[-1]
    assert re.sub(r"</?span[^>]*>", "", last) == said


def test_the_caption_has_the_releases(case, known):
    known(record("2.6.0", "0.5", "NaN"), record("2.7.0", "1", "NaN"))
    html = _table("Two", HEAD, {"row": case.claims[0]}).html()
    assert "Two, on PyTorch 2.13.0; recorded on 2.6 and 2.7</caption>" in html


def test_a_row_without_a_fitting_claim_is_an_error(case):
    with pytest.raises(LookupError, match="the method vanilla made no claim about 'thirds'; it made .*: halves"):
        across(case, "vanilla", "Two", HEAD, {"row": "thirds"})
    with pytest.raises(LookupError, match="needs 1 elements"):
        across(case, "vanilla", "Two", HEAD[:2], {"row": "halves"})
