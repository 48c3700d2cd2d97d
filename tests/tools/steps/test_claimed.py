"""What a page states, compared with the record: a claim that holds but is not the recorded one stops the build."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from scratch import Book

from helpers import Case
from tools.project import Project
from tools.steps.claimed import Claimed
from tools.steps.collect import MIME, collect
from tools.steps.ran import ChapterRun
from tools.steps.record import record
from tools.steps.shape import COMPARED, lacking


def run(*statements, page="page"):
    shown = [new_output("display_data", data={MIME: each.json()}) for each in statements]
    notebook = new_notebook(cells=[new_code_cell("x", outputs=shown)])
    return ChapterRun(Path(f"{page}.md"), json.loads(nbformat.writes(notebook)), 0.0, cached=False)


def claims(*stated):
    case = Case("10729")
    for quantity, observed, expected, options in stated:
        case.claim("vanilla", quantity, observed, expected, **options)
    return case.claims


X, Y = ("x.grad", 1.0, 1.0, {}), ("y.grad", 2.5, 2.5, {})
AT = "page · claim · 10729 · vanilla"


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([X, Y], []),
        ([Y, X], []),
        ([X], [f"no longer states {AT} · y.grad"]),
        ([], ["no longer states .*x.grad", "no longer states .*y.grad"]),
        ([X, Y, ("z", 1, 1, {})], [f"not in the record: {AT} · z"]),
        ([X, ("Y.grad", 2.5, 2.5, {})], ["no longer states .* y.grad", "not in the record: .* Y.grad"]),
        ([X, Y, Y], [f"more than once: {AT} · y.grad"]),
        (
            [("x.grad", 1.0, 1.0, {"ulps": 2}), Y],
            [f'{AT} · x.grad has another tolerance: recorded "exactly", now "within 2 ulps"'],
        ),
        ([("x.grad", 3.0, 3.0, {}), Y], [f"{AT} · x.grad has another expected: .* 1.*, now .* 3"]),
        (
            [X, ("y.grad", 2.5000001, 2.5000001, {})],
            [],
        ),  # expectations that a page computes are rounded on other processors
        ([X, ("y.grad", 2.50001, 2.50001, {})], ["y.grad has another expected"]),
    ],
)
def test_claims_are_compared_with_the_recorded_claims(tmp_path, capsys, now, said):
    for name in ("_config.yml", "_toc.yml"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    project = Project(tmp_path)
    assert Claimed(project).differences(run(*claims(*now))) == []  # nothing is recorded
    record(project, collect([run(*claims(X, Y))]))
    found = Claimed(project).differences(run(*claims(*now)))
    assert len(found) == len(said) and all(re.search(*pair) for pair in zip(said, found, strict=True)), found


def page(*sections, card=True):
    """A notebook with a section for each heading, and the outputs below it."""
    case = Case("10729")
    cells = [new_code_cell("case", outputs=[new_output("display_data", data={MIME: case.json()})])] if card else []
    for heading, tags, *outputs in sections:
        shown = [new_output("display_data", data={MIME: fact}) for fact in outputs]
        cells += [
            nbformat.v4.new_markdown_cell(f"## {heading}\n"),
            new_code_cell("x", metadata={"tags": tags}, outputs=shown),
        ]
    return new_notebook(cells=cells)


FIX, VERDICT = ("At a glance", [], {"type": "claim"}), {"type": "verdict"}
WHOLE = [FIX, *((heading, [], VERDICT) for heading in COMPARED)]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ([FIX], []),
        (WHOLE, []),
        ([], ["no section *At a glance*"]),
        ([("At a glance", ["hide-cell"], {"type": "claim"})], ["*At a glance* is not the fix"]),
        ([("At a glance", [])], ["*At a glance* is not the fix"]),
        ([each for each in WHOLE if each[0] != "Why"], ["no section *Why*"]),
        ([*WHOLE[:4], ("Results compared", [], {"type": "claim"}), *WHOLE[5:]], ["*Results compared* has no verdict"]),
    ],
)
def test_a_page_about_a_case_has_its_fix_its_sections_and_its_verdict(sections, said):
    found = lacking(page(*sections))
    assert len(found) == len(said) and all(text in fault for text, fault in zip(said, found, strict=True)), found
    assert lacking(page(*sections, card=False)) == []


CELL = "from helpers import Case\n\ncase = Case('10729')\ncase.claim('vanilla', 'x.grad', 1.0, 1.0)\ncase"
KERNEL = "kernelspec:\n  display_name: Python 3\n  language: python\n  name: python3\n"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    book = Book(
        tmp_path_factory.mktemp("recorded") / "book", {"one": ["print(1)"], "two": [CELL.removesuffix("\ncase")]}
    )
    assert book.run("record").returncode == 0
    return book


CHANGES = {
    "a claim never reached": (
        "chapters/two.md",
        "case.claim(",
        "if False: case.claim(",
        "no longer states two · claim",
    ),
    "a thread's number": ("src/helpers/threads.py", "    10729,", "    10728,", "KeyError"),
    "no kernel": ("chapters/two.md", KERNEL, "", "these pages are no longer run: two"),
    "another order": ("_toc.yml", "root: chapters/one", "root: chapters/two", "have another order"),
}


def test_what_a_record_lacks_stops_every_command_that_would_pass_over_it(recorded):
    book = recorded
    for path, old, new, said in CHANGES.values():
        before = (book.root / path).read_text(encoding="utf-8")
        text = before.replace(old, new)
        (book.root / path).write_text(
            text.replace("file: chapters/two", "file: chapters/one") if "toc" in path else text
        )
        done = book.run("check")
        assert done.returncode == 1 and said in done.stderr, done.stdout + done.stderr
        if "kernel" in said or "no longer run" in said:
            assert said in book.here("notebooks").stderr and (book.root / "notebooks").exists() is False
        (book.root / path).write_text(before, encoding="utf-8")
    assert book.run("check").returncode == 0
