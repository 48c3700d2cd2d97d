"""A mutant is drawn, only the tests of its line run, and what they say about it is recorded."""

import random
import shutil

import pytest
from scratch import ROOT, Book

from tools.measure import mutants
from tools.project import Problem, Project, read_record

SEED = 11
"""Draws each outcome: lines 15, 19, 6 and 2."""
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
    monkeypatch.setattr(mutants, "START", 10)
    project, before = Project(book.root), book.git("status", "--porcelain")
    mutants.mutants(project, "tools/code.py", count=4, seed=SEED)
    assert book.git("status", "--porcelain") == before + "?? results/"
    record = read_record(project.results / "measured" / "mutants.json")
    outcomes = {name: record[name] for name in ("killed", "survived", "timed_out", "not_covered")}
    assert (record["seed"], record["of"], record["count"]) == (SEED, ["tools/code.py"], sum(outcomes.values()))
    assert all(outcomes.values()), outcomes
    assert {"file": "tools/code.py", "line": 6, "change": ["-    return True", "+    return False"]} in record[
        "survivors"
    ]
    said = capsys.readouterr().out
    assert "left out, because it fails without a mutation: tests/test_code.py::test_what_fails" in said
    assert "killed: tools/code.py:2, 2 tests" in said and "timed out: tools/code.py:15, 1 tests" in said
    assert "not covered: tools/code.py:19, 0 tests" in said and "-    return True\n+    return False" in said


def test_an_unknown_file_is_refused(book):
    with pytest.raises(Problem, match="no file or folder of code is called tools/cod; did you mean tools/code.py"):
        mutants.mutants(Project(book.root), "tools/", "tools/cod")


@pytest.mark.parametrize(
    "code",
    ["def f(a: int | None) -> int | None:\n    b: int | None", '"""1 + 1"""', "if TYPE_CHECKING:\n    A = B | None\n"],
)
def test_what_python_does_not_run_is_not_mutated(code, tmp_path):
    (tmp_path / "code.py").write_text(code, encoding="utf-8")
    assert mutants.drawn(tmp_path / "code.py", random.Random(0)) is None
