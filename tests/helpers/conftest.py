"""What a page would show, and what other versions gave."""

import pytest
import torch

from helpers import recorded


@pytest.fixture
def shown(monkeypatch):
    items = []
    monkeypatch.setattr("helpers.show.show", items.append)
    return items


@pytest.fixture
def known(monkeypatch):
    """Put records in the place of those of the repository."""

    def put(*records, here="2.13.0+cpu"):
        monkeypatch.setattr(recorded, "records", lambda: records)
        monkeypatch.setattr(torch, "__version__", here)

    return put
