"""A mutant is drawn, only the tests of its line run, and what they say about it is recorded."""

import random
import shutil
from itertools import islice

import pytest
from scratch import ROOT, Book

from tools.measure import covering, mutants
from tools.measure.covering import statement
from tools.measure.mutants import drawn, meaning
from tools.project import Problem, Project, read_record

CODE = """\
def tested(x):
    return not x


def forgotten():
    return True


def unused():
    return False


def endless():
    while True:
        break


def slow():
    return True


FACT = True
"""
TESTS = """\
import pytest
from tools import code


@pytest.mark.parametrize("x", ["a b", ""])
def test_one(x):
    assert code.tested(x) == (x == "")


def test_nothing():
    code.forgotten()
    code.endless()


def test_what_fails_without_a_mutation_is_left_out():
    code.unused()
    assert False


def test_fact():
    assert code.FACT


@pytest.mark.slow
def test_slow():
    assert code.slow()
"""


@pytest.fixture
def book(tmp_path):
    """A commit of little code, with tests that fail, notice nothing, are slow, or do not come to an end."""
    book = Book(tmp_path / "book", {"intro": []})
    shutil.rmtree(book.root / "tools")
    shutil.rmtree(book.root / "src")
    for path, text in {"tools/__init__.py": "", "tools/code.py": CODE, "tests/test_code.py": TESTS}.items():
        (book.root / path).parent.mkdir(exist_ok=True)
        (book.root / path).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", book.root)
    book.commit()
    return book


@pytest.mark.slow
def test_the_outcomes_are_those_of_the_tests_that_run_the_line(book, capsys, monkeypatch):
    monkeypatch.setattr(covering, "START", 10)
    project = Project(book.root)
    mutants.mutants(project, "tools/code.py", seed=7)
    record = read_record(project.results / "measured" / "mutants.json")
    assert {name: record[name] for name in ("seed", "of", "count")} == {"seed": 7, "of": ["tools/code.py"], "count": 7}
    outcomes = {name: record[name] for name in ("killed", "survived", "timed_out", "not_covered")}
    assert outcomes == {"killed": 2, "survived": 2, "timed_out": 1, "not_covered": 2}
    forgotten, endless = sorted(record["survivors"], key=lambda row: row["line"])
    assert forgotten == {"file": "tools/code.py", "line": 6, "change": ["-    return True", "+    return False"]}
    assert endless["line"] == 14
    said = capsys.readouterr().out
    assert "left out, because it fails without a mutation: tests/test_code.py::test_what_fails" in said
    assert "timed out: tools/code.py:15, 1 tests" in said and "killed: tools/code.py:2, 2 tests" in said
    assert "-    return True\n+    return False" in said

    # The tests ran under coverage once. If you interrupt a later run, the checkout is as it was.
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(covering, "run", interrupted)
    before = book.git("status", "--porcelain")
    with pytest.raises(KeyboardInterrupt):
        mutants.mutants(project)
    assert "running the fast tests once" not in capsys.readouterr().out
    assert book.git("status", "--porcelain") == before


def test_an_unknown_file_is_refused(book):
    with pytest.raises(Problem, match="no file or folder of code is called tools/cod; did you mean tools/code.py"):
        mutants.mutants(Project(book.root), "tools/", "tools/cod")


def test_a_run_without_an_end_is_ended(tmp_path):
    (tmp_path / "test_endless.py").write_text("def test_endless():\n    while True: pass\n", encoding="utf-8")
    assert covering.run(tmp_path, ["test_endless.py"], 0.5) is None


def test_the_same_seed_draws_the_same_mutants():
    def draw(seed):
        return [*islice(drawn(ROOT, ["tools/pdf.py", "tools/steps/made.py"], random.Random(seed)), 4)]

    first = draw(1)
    assert first == draw(1) != draw(2)
    assert len({(mutant.file, mutant.line) for mutant in first}) == 4
    for mutant in first:
        assert meaning(mutant.before) != meaning(mutant.after) and mutant.change
        assert mutant.before.splitlines()[mutant.line - 1] != mutant.after.splitlines()[mutant.line - 1]


@pytest.mark.parametrize(
    "code",
    [
        "def f(a: int | None) -> int | None:\n    b: int | None",
        '"""1 + 1"""',
        "if TYPE_CHECKING:\n    A = B | None\n",
    ],
)
def test_what_python_does_not_run_is_not_mutated(code, tmp_path):
    (tmp_path / "code.py").write_text(code, encoding="utf-8")
    assert not [*drawn(tmp_path, ["code.py"], random.Random(0))]


@pytest.mark.parametrize(
    ("code", "line", "lines"),
    [
        ("x = 1", 1, None),
        ("@d(1)\ndef f():\n    pass", 1, None),
        ("def f(x=1):\n    pass", 1, None),
        ("class A:\n    x = 1\n    def f(self):\n        return 1", 2, None),
        ("class A:\n    x = 1\n    def f(self):\n        return 1", 4, range(4, 5)),
        ("def f():\n    if (\n        a\n    ):\n        b", 3, range(2, 5)),
        ("def f():\n    def g(): return 1\n", 2, range(2, 3)),
    ],
)
def test_the_lines_of_a_statement(code, line, lines):
    assert statement(code, line) == lines
