"""A claim that holds but is not the recorded one stops the build, and so does a page that lacks what it had."""

import re
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers import Case
from tools.steps.claimed import Claimed
from tools.steps.collect import MIME, ChapterRun, collect
from tools.steps.record import record
from tools.steps.shape import COMPARED, lacking


def cell(*facts, tags=()):
    outputs = [new_output("display_data", data={MIME: fact}) for fact in facts]
    return new_code_cell("x", metadata={"tags": list(tags)}, outputs=outputs)


def run(*claims):
    case = Case("10729")
    for quantity, value, ulps in claims:
        case.claim("vanilla", quantity, value, value, ulps=ulps)
    notebook = new_notebook(cells=[cell(claim.json()) for claim in case.claims])
    return ChapterRun(Path("page.md"), notebook, 0.0, cached=False)


X, Y, AT = ("x.grad", 1.0, 0), ("y.grad", 2.5, 0), "page · claim · 10729 · vanilla"
ROUNDED = ("y.grad", 2.5000001, 0)  # what a page computes as its expectation may be rounded by another processor


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([Y, X], []),
        ([X, ROUNDED], []),
        ([X], [f"no longer states {AT} · y.grad"]),
        ([X, Y, ("z", 1, 0)], [f"not in the record: {AT} · z"]),
        ([X, Y, Y], [f"more than once: {AT} · y.grad"]),
        ([("x.grad", 1.0, 2), Y], [f'{AT} · x.grad has another tolerance: recorded "exactly", now "within 2 ulps"']),
        ([("x.grad", 3.0, 0), Y], [f"{AT} · x.grad has another expected: .* 1.*, now .* 3"]),
        ([X, ("y.grad", 2.50001, 0)], ["y.grad has another expected"]),
    ],
)
def test_claims_are_compared_with_the_recorded_claims(project, now, said):
    assert Claimed(project).differences(run(*now)) == []  # nothing is recorded
    record(project, collect([run(X, Y)]))
    found = Claimed(project).differences(run(*now))
    assert len(found) == len(said) and all(re.search(*pair) for pair in zip(said, found, strict=True)), found


SECTIONS = {heading: cell({"type": "verdict"}) for heading in ("At a glance", *COMPARED)}
PLAIN = cell({"type": "claim"})


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (SECTIONS, ""),
        ({"At a glance": PLAIN}, ""),
        ({"What happens": PLAIN}, "no section *At a glance*"),
        ({"At a glance": cell({"type": "claim"}, tags=["hide-cell"])}, "*At a glance* is not the fix"),
        ({"At a glance": cell()}, "*At a glance* is not the fix"),
        ({heading: each for heading, each in SECTIONS.items() if heading != "Why"}, "no section *Why*"),
        ({**SECTIONS, "Results compared": PLAIN}, "*Results compared* has no verdict"),
    ],
)
def test_a_page_about_a_case_has_its_fix_its_sections_and_its_verdict(sections, said):
    cells = [each for heading, code in sections.items() for each in (new_markdown_cell(f"## {heading}\n"), code)]
    found = lacking(new_notebook(cells=[cell(Case("10729").json()), *cells]))
    assert len(found) == bool(said) and said in "".join(found)
    assert lacking(new_notebook(cells=cells)) == []
