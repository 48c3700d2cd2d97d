import pytest

from zero_or_nan.explain.recorder import Recorder


@pytest.fixture(autouse=True)
def raised_mistakes(monkeypatch):
    """A mistake of ours is raised, where a user gets a warning."""
    monkeypatch.setattr(Recorder, "raises_mistakes", True)
