"""An expectation that a release changed: the right side of it on every version, and both on the page."""

import pytest
import torch

from helpers import Case, ClaimFailed, Since
from helpers.entries import outcome
from helpers.releases import number

CHAIN = Since("2.14", now="c", before=Since("2.9.1", now="b", before="a", pull=7))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.6.0", "a"),
        ("2.9.1", "b"),
        ("2.13.1+cu126", "b"),
        ("2.14.0.dev20260801+cpu", "c"),  # a nightly build counts as the release that it leads to
        ("2.14.0", "c"),
        ("2.100.0", "c"),
    ],
)
def test_each_version_has_its_own_side(version, expected):
    assert CHAIN.at(version) == expected


def test_what_is_no_release_and_a_chain_out_of_order_are_refused():
    for release in ("2", "2.14.0.dev1", "v2.14"):
        with pytest.raises(ValueError, match="not the number of a PyTorch release"):
            Since(release, now=1, before=0)
    with pytest.raises(ValueError, match="not a version of PyTorch"):
        number("parrot")
    with pytest.raises(ValueError, match="2.14, which is not older than 2.9"):
        Since("2.9", now=1, before=Since("2.14", now=1, before=0))
    with pytest.raises(ValueError, match="pass the older one as `before`"):
        Since("2.9", now=Since("2.14", now=1, before=0), before=0)


EXPECTED = Since("2.14", now=[0.0], before=[1.0], pull=191142)


@pytest.mark.parametrize(
    ("version", "holding", "said", "other"),
    [("2.13.0+cpu", 1.0, "Since PyTorch 2.14", ">0<"), ("2.14.0+cpu", 0.0, "Before PyTorch 2.14", ">1<")],
)
def test_a_claim_holds_with_the_side_of_its_version_alone_and_says_since_when_the_other(
    monkeypatch, version, holding, said, other
):
    monkeypatch.setattr(torch, "__version__", version)
    case = Case("10729")
    case.claim("vanilla", "x.grad", torch.tensor([holding]), EXPECTED)
    with pytest.raises(ClaimFailed):
        case.claim("vanilla", "x.grad", torch.tensor([1 - holding]), EXPECTED)
    fact, note = case.claims[0].json(), case.claims[0].html().partition("zn-history")[2]
    assert fact["expected"] == outcome([holding]).json()
    assert [epoch["since"] for epoch in fact["history"]] == ["", "2.14"]
    assert said in note and other in note
    assert '<a href="https://github.com/pytorch/pytorch/pull/191142">pytorch#191142</a>' in note
    case.claim("vanilla", "same", torch.ones(1), [1.0])
    assert "zn-history" not in case.claims[-1].html() and case.claims[-1].json()["history"] == []


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0"])
def test_what_raises_may_change_with_a_release_too(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    case = Case("67180")
    wanted = Since("2.14", now=None, before=TypeError)
    with case.raises("masked", "mm", wanted, "MaskedTensor"):
        if version == "2.13.0":
            raise TypeError("no mm for MaskedTensor")
    assert case.claims[0].holds
    with pytest.raises(ClaimFailed), case.raises("masked", "again", wanted):
        if version == "2.14.0":
            raise TypeError
