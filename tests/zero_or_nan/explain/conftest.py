import linecache
import textwrap

import pytest
from equations import are_true
from pasting import HEAD, ran

from zero_or_nan import explain
from zero_or_nan.explain.births.findings import Mistakes
from zero_or_nan.explain.report.narration import Narration


@pytest.fixture(autouse=True)
def raised_mistakes(monkeypatch):
    """A mistake of ours is raised, where a user gets a warning."""
    monkeypatch.setattr(Mistakes, "are_raised", True)


@pytest.fixture(autouse=True)
def true_equations(monkeypatch):
    """What a report of any test prints as an equation is true."""
    origins, new = [], Narration._new

    def kept(*args):
        narrated = new(*args)
        origins.append(narrated.origin)
        return narrated

    monkeypatch.setattr(Narration, "_new", kept)
    yield
    assert not [origin.operands for origin in origins if not are_true(origin.operands)]


@pytest.fixture
def first(tmp_path, monkeypatch):
    """Explains a program, and gives the first origin, or another one."""
    monkeypatch.chdir(tmp_path)

    def explained(source, head=HEAD, at=0):
        (tmp_path / "program.py").write_text(head + textwrap.dedent(source))
        linecache.checkcache()
        with explain() as report:
            ran(tmp_path / "program.py")
        return report.origins[at]

    return explained
