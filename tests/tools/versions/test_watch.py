"""A PyTorch that gives something else is told of as what it is; one that stops on the way is not taken for fine."""

import json
import shutil

import pytest
import torch
from scratch import Book

from tools.versions import watch as module
from tools.versions.differences import Difference
from tools.versions.watch import checked_itself

CLAIM = 'from helpers import Case\ncase = Case("4132")\ncase.claim("{}", "x.grad", [1.0], {})'
SAID = {"cases": [{}, {}], "operators": [{}], "operators_left_out": None, "differences": []}


@pytest.fixture
def selfcheck(monkeypatch):
    """Let the self-check be a program."""

    def become(program):
        monkeypatch.setattr(module, "SELFCHECK", (module.sys.executable, "-c", program))

    become(f"print({json.dumps(json.dumps(SAID))})")
    return become


def test_what_differs_is_written_down_with_the_version(tmp_path):
    cells = [CLAIM.format("vanilla", [1.0]), CLAIM.format("ignoring", [2.0]), "1 / 0", "2 / 0"]
    book = Book(tmp_path / "book", {"broken": cells})
    shutil.rmtree(book.root / "src" / "zero_or_nan" / "selfcheck", ignore_errors=True)
    program = f"print({json.dumps(json.dumps(SAID))})\n"
    (book.root / "src" / "zero_or_nan" / "selfcheck.py").write_text(program, encoding="utf-8")
    done = book.run("watch")
    assert done.returncode == 1, done.stderr
    assert f"## 2 differences from the record on torch {torch.__version__}, Python " in done.stdout
    assert "2 claims, and 3 cases and operators were compared." in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith(("###", "-"))] == [
        "### Broken here: 1",
        "- broken: 4132 · ignoring · x.grad: recorded `2`, observed `1`",
        "### Could not be run: 1",
        "- broken: code cell 3 (1 / 0): recorded `runs`, observed `raises ZeroDivisionError`",
    ]


def test_what_the_selfcheck_finds_is_taken_over(selfcheck):
    one = {
        "kind": "fixed upstream",
        "name": "nansum",
        "method": "plain",
        "observed": "right",
        "recorded": "contaminated",
    }
    # It ends with 1 where something differs; what it says counts.
    selfcheck(f"print({json.dumps(json.dumps({**SAID, 'differences': [one]}))}); exit(1)")
    said, found = checked_itself()
    assert len(said["cases"]) == 2
    assert found == [Difference("fixed upstream", "self-check", "nansum · plain", "contaminated", "right")]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("exit(3)", "exits 3 and gives no result"),
        ("print('fine')", "exits 0 and gives no result"),
        ("print('{}')", "exits 0 and gives no result"),
        ("import os; os.kill(os.getpid(), 11)", "exits -11 and gives no result"),
        ("import time; time.sleep(60)", "does not end: still running after 1 s"),
    ],
)
def test_a_selfcheck_that_gives_no_result_is_a_difference(selfcheck, monkeypatch, program, why):
    monkeypatch.setattr(module, "PATIENCE", 1)
    selfcheck(program)
    said, (found,) = checked_itself()
    assert said == {} and (found.kind, found.where, found.observed) == ("could not be run", "self-check", why)
