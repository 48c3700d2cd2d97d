"""What both files share: one installation of torch, which takes minutes."""

import tempfile
from pathlib import Path

import pytest
from machines import Machines


@pytest.fixture(scope="session")
def machines():
    # Not pytest's own temporary folder, which would keep the PyTorch of three runs.
    with tempfile.TemporaryDirectory(prefix="installed-") as home:
        yield Machines(Path(home).resolve())
