"""What tests reach and what they notice, on a small project: each command is run as a user runs it."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from scratch import ROOT, edit

from tools.measure.coverage import folder_of, report
from tools.measure.mutants import _reason
from tools.measure.parts import PARTS, chosen
from tools.measure.reached import Reached
from tools.project import Problem, Project

SOURCE = '''\
"""A module."""

LIMIT = 3


def larger(a, b):
    return a if a > b else b


def limited(a):
    if a > LIMIT:
        return LIMIT
    return a


def in_a_process():
    return 7


def not_reached():
    return 1
'''

TESTS = """\
import subprocess
import sys

import pytest

from helpers import code


@pytest.fixture(scope="module")
def seven():
    done = subprocess.run([sys.executable, "-c", "from helpers.code import *; print(in_a_process())"],
                          capture_output=True, text=True)
    return done.stdout


def test_larger():
    assert code.larger(1, 2) == code.larger(2, 1) == 2


def test_limited():
    assert code.limited(2) == 2


def test_another():
    assert code.LIMIT


def test_seven(seven):
    assert seven == "7\\n"


def test_seven_again(seven):
    assert "7" in seven
"""


class Small:
    """A checkout with one part."""

    def __init__(self, root):
        self.root = root
        for path, text in {
            "_config.yml": "",
            "_toc.yml": "",
            ".gitignore": "/_build/\n__pycache__/\n.hypothesis/\n",
            "src/helpers/__init__.py": "",
            "src/helpers/code.py": SOURCE,
            "tests/helpers/test_code.py": TESTS,
            "tests/mutants.toml": "",
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        shutil.copy(ROOT / "pyproject.toml", root)
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)

    def run(self, *arguments):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
        environment["PYTHONPATH"] = f"{self.root / 'src'}{os.pathsep}{ROOT}"
        return subprocess.run(
            [sys.executable, "-m", "tools", *arguments],
            cwd=self.root, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def mutants(self, *arguments):
        done = self.run("mutants", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        tried = [line for line in done.stdout.splitlines() if re.match(r"\d+/\d+ ", line)]
        return tried, json.loads((self.root / "results/measured/mutants.json").read_text())["parts"]["helpers"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    small = Small(tmp_path_factory.mktemp("small"))
    done = small.run("coverage", "helpers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not recorded, because their tests have not been run: library, tools" in done.stdout
    assert json.loads((small.root / "results/measured/coverage.json").read_text()) == report(Project(small.root))
    return small


@pytest.fixture(scope="module")
def first(small):
    """The first run, of all mutants."""
    return small.mutants("helpers")


def ids(*names):
    return {f"tests/helpers/test_code.py::test_{name}" for name in names}


def test_coverage_tells_what_is_missing(small):
    found = report(Project(small.root))
    row = found["files"]["src/helpers/code.py"]
    assert row["missing_lines"] == [12, 21] and row["not_taken"] == ["11->12"]
    counts = ("statements", "missing_statements", "branches", "missing_branches")
    assert [row[name] for name in counts] == [11, 2, 2, 1] and row["covered"] == round(1000 * 10 / 13) / 10
    assert found["totals"]["helpers"] == {name: row[name] for name in (*counts, "covered")}


def test_the_tests_that_reach_a_line_are_known(small):
    project = Project(small.root)
    reached = Reached(project, folder_of(project, PARTS[0]))
    assert reached.tests("src/helpers/code.py", 7, 7) == ids("larger")
    assert reached.tests("src/helpers/code.py", 13, 13) == ids("limited")
    assert reached.tests("src/helpers/code.py", 21, 21) == set()
    # In a process that a fixture started: all that use the fixture.
    assert reached.tests("src/helpers/code.py", 17, 17) == ids("seven", "seven_again")
    assert reached.tests("src/helpers/code.py", 3, 3) is None
    assert Reached(project, small.root).tests("src/helpers/code.py", 7, 7) is None


def test_each_mutant_is_noticed_or_listed(first):
    tried, found = first
    assert len(tried) == found["mutants"] == found["run"] and found["left_out"] == []
    assert found["killed"] + found["survived"] == found["run"] and found["timed_out"] == 0
    survivors = {(row["line"], row["after"]) for row in found["survivors"]}
    assert survivors >= {(7, "return a if a >= b else b"), (11, "if a >= LIMIT:"), (21, "return 2")}
    assert {line for line, _ in survivors} <= {3, 7, 11, 21}
    assert any(re.search(r"code.py:17 killed by tests/helpers/test_code.py::test_seven", line) for line in tried)


def test_the_checkout_is_left_as_it_was(small, first):
    assert (small.root / "src/helpers/code.py").read_text(encoding="utf-8") == SOURCE


def test_what_is_known_is_not_tried_again_until_a_test_is_new(small, first):
    assert small.mutants("helpers") == ([], first[1])
    (small.root / "tests/helpers/test_new.py").write_text(
        "from helpers import code\n\n\ndef test_not_reached():\n    assert code.not_reached() == 1\n", encoding="utf-8"
    )
    tried, found = small.mutants("helpers")
    assert len(tried) == first[1]["survived"]
    assert not any(row["line"] == 21 for row in found["survivors"]) and found["killed"] > first[1]["killed"]


def test_a_survivor_can_be_explained_until_its_line_changes(small, first):
    (small.root / "tests/mutants.toml").write_text(
        '[[mutant]]\nfile = "src/helpers/code.py"\nbefore = "return a if  a > b else b"\n'
        'after = ["return a if a >= b else b"]\nwhy = "Equal ones are equal."\n',
        encoding="utf-8",
    )
    _, found = small.mutants("helpers")
    assert found["explained"] == 1 and found["reasons"][0]["why"] == "Equal ones are equal."
    assert not any(row["after"] == "return a if a >= b else b" for row in found["survivors"])
    edit(small.root / "tests/mutants.toml", "else b", "else c")
    done = small.run("mutants", "helpers")
    assert done.returncode == 1 and "no longer contains 'return a if  a > b else c'" in done.stderr
    (small.root / "tests/mutants.toml").write_text("", encoding="utf-8")


def test_a_sample_of_one_file_is_told_and_not_recorded(small, first):
    path = small.root / "results/measured/mutants.json"
    before = path.read_text(encoding="utf-8")
    done = small.run("mutants", "src/helpers/code.py", "--sample", "2")
    assert done.returncode == 0 and re.search(r"helpers: 2 of \d+ mutants were run", done.stdout)
    assert path.read_text(encoding="utf-8") == before


def test_a_name_of_nothing_is_refused(small):
    done = small.run("mutants", "src/nothing.py", "--sample", "1")
    assert done.returncode == 1 and done.stderr.startswith("error: src/nothing.py: neither a part of the code")
    with pytest.raises(Problem, match="no part of the code is called nothing; the parts are helpers, library, tools"):
        chosen(("helpers", "nothing"))


def test_names_and_samples_are_refused_where_they_mean_nothing(small):
    for arguments, error in (
        (("record", "helpers"), "record takes no names"),
        (("coverage", "--sample", "3"), "--sample works only with mutants and noticed, and must be at least 1"),
        (("mutants", "--sample", "0"), "--sample works only with mutants and noticed, and must be at least 1"),
    ):
        done = small.run(*arguments)
        assert done.returncode == 2 and error in done.stderr


@pytest.mark.parametrize(
    "before, after, reason",
    [
        ("zip(a, b, strict=True)", "zip(a, b)", "strict"),
        ("zip(a, b, strict=True)", "zip(a, b, )", "strict"),
        ("zip(a, b, strict=True)", "zip(a, strict=True)", ""),
        ('print("one two")', 'print("ONE TWO")', "wording"),
        ('print("one two")', 'print("XXone twoXX")', "wording"),
        ('print("one")', 'print("ONE")', ""),
        ('print("one", 1)', 'print("XXoneXX", 1)', ""),
        ("a < b", "a <= b", ""),
    ],
)
def test_a_rule_explains_guards_and_wordings_alone(before, after, reason):
    assert reason in _reason(before, after) and bool(reason) == bool(_reason(before, after))
