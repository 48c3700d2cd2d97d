import pytest

from zero_or_nan.explain.births.findings import Mistakes


@pytest.fixture(autouse=True)
def raised_mistakes(monkeypatch):
    """A mistake of ours is raised, where a user gets a warning."""
    monkeypatch.setattr(Mistakes, "are_raised", True)
