"""The card of the library says what is installed and what is recorded, and no more."""

import pytest

import zero_or_nan
from helpers import library_card, recorded


def record(torch, device="cpu"):
    return {"torch": torch, "device": device, "outcomes": []}


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([record("2.6.0"), record("2.7.0"), record("2.8.0")], "PyTorch 2.6 to 2.8 on CPU only."),
        ([record("2.6.0"), record("2.7.0", "cuda")], "PyTorch 2.6 on CPU; PyTorch 2.7 on CUDA."),
        ([], "no release."),
    ],
)
def test_devices_are_those_that_are_recorded(monkeypatch, records, said):
    monkeypatch.setattr(recorded, "records", lambda: tuple(records))
    monkeypatch.setattr("helpers.show.show", (shown := []).append)
    library_card()
    first, second = shown[0].text().splitlines()
    assert first.startswith(f"zero_or_nan {zero_or_nan.__version__}, ")
    assert second.endswith(said)
    assert all(line in shown[0].html() for line in (first, second))
