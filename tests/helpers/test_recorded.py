"""What other versions gave: the nearest of them to compare with, and those on which all of a case holds."""

from helpers import Case, recorded
from helpers.recorded import nearest, observed, spans, verified


def fact(quantity="x.grad", holds=True, **more):
    return {"page": "p", "type": "claim", "case": "4132", "method": "vanilla", "quantity": quantity, "holds": holds,
            "observed": {"entries": [quantity]}, **more}  # fmt: skip


def record(version, *facts, device="cpu"):
    return {"torch": version, "device": device, "outcomes": list(facts or [fact()])}


def test_a_run_is_compared_with_the_newest_version_that_is_not_newer_on_its_device(known, monkeypatch):
    for here, version in (
        ("2.13.1+cpu", "2.13.0"),
        ("2.16.0.dev20261101", "2.15.0"),
        ("2.12.0", "2.9.0"),
        ("2.5.0", "2.9.0"),  # older than all
    ):
        known(record("2.9.0"), record("2.13.0"), record("2.15.0"), here=here)
        assert nearest()["torch"] == version
    known(record("2.13.0"), record("2.9.0", device="cuda"))
    for device, version in (("cpu", "2.13.0"), ("cuda", "2.9.0"), ("mps", "2.13.0")):
        monkeypatch.setattr(recorded, "device", lambda device=device: device)
        assert nearest()["torch"] == version
    known()
    assert nearest() is None and observed("4132", "vanilla", "x.grad") is None and verified("4132") == []


def test_what_was_observed_is_found_by_case_way_and_quantity(known):
    verdict = {"page": "p", "type": "verdict", "case": "4132", "quantity": "x.grad", "observed": {"vanilla": "right"}}
    known(record("2.13.0", fact("x.grad"), fact("y"), verdict))
    assert observed("4132", "vanilla", "y") == ("2.13.0", {"entries": ["y"]})
    assert observed("4132", None, "x.grad") == ("2.13.0", {"vanilla": "right"})
    assert observed("4132", "masked", "y") is None and observed("52248", "vanilla", "y") is None


def test_a_version_verifies_a_case_when_it_has_all_its_claims_and_all_hold(known):
    full = fact("x.grad"), fact("y")
    known(
        record("2.9.0", fact("x.grad")),  # an older state of the page: a claim is missing
        record("2.10.0", *full, fact("dropped", holds=False)),
        record("2.11.0", fact("x.grad"), fact("y", holds=False)),
        record("2.12.0", *full, fact("dropped since")),
        record("2.13.0", *full),
        record("2.13.0", *full, device="cuda"),
    )
    assert verified("4132") == [("cpu", ["2.12.0", "2.13.0"]), ("cuda", ["2.13.0"])]
    said = "passed on PyTorch 2.12 and 2.13 (CPU); 2.13 (CUDA)"
    assert said in Case("4132").text() and said in Case("4132").html()
    assert "passed" not in Case("52248").text()
    assert spans(["2.9.0", "2.9.1", "2.10.0", "2.11.0", "3.0.0"]) == "2.9 to 2.11, 3.0" and spans([]) == ""
