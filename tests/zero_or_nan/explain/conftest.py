import pytest
from equations import are_true

from zero_or_nan.explain.births.findings import Mistakes
from zero_or_nan.explain.report.report import Report


@pytest.fixture(autouse=True)
def raised_mistakes(monkeypatch):
    """A mistake of ours is raised, where a user gets a warning."""
    monkeypatch.setattr(Mistakes, "are_raised", True)


@pytest.fixture(autouse=True)
def true_equations(monkeypatch):
    """What a report of any test prints as an equation is true."""
    origins, add = [], Report.add

    def kept(self, origin, complete):
        origins.append(origin)
        add(self, origin, complete)

    monkeypatch.setattr(Report, "add", kept)
    yield
    assert not [origin.operands for origin in origins if not are_true(origin.operands)]
