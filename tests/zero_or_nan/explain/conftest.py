import linecache

import pytest
from equations import are_true

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


class Pasted:
    """A program that is a file: a remedy can be pasted into it, and the file can run again."""

    def __init__(self, path):
        self.path = path

    def write(self, numbers, lines, dtype="float32"):
        """Write the program: a leaf `x` of these numbers, the lines in which something fails, and backward."""
        end = "" if "backward" in lines else "\nloss.backward()"
        leaf = f"x = torch.tensor({numbers}, dtype=torch.{dtype}, requires_grad=True)"
        self.path.write_text(f"import torch\nimport torch.nn.functional as F\n{leaf}\n{lines}{end}\n")
        linecache.checkcache()

    def run(self):
        """The variables of the program."""
        names = {}
        exec(compile(self.path.read_text(), str(self.path), "exec"), names)
        return names

    def origins(self, *program):
        self.write(*program)
        with explain() as report:
            self.run()
        return report.origins

    def paste(self, origin):
        """The variables of the program, with the remedy in place of the line that it replaces."""
        lines = self.path.read_text().splitlines()
        line = lines[origin.replaces - 1]
        indent = line[: len(line) - len(line.lstrip())]
        lines[origin.replaces - 1 : origin.until or origin.replaces] = [
            indent + each for each in origin.remedy.splitlines()
        ]
        self.path.write_text("\n".join(lines))
        return self.run()


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Pasted(tmp_path / "program.py")
