"""The addresses at the foot of a page."""

from urllib.parse import parse_qs, urlsplit

import pytest
from scratch import ROOT

from tools.pages.feedback import report, versions
from tools.project import Project
from tools.steps.origin import Repository
from zero_or_nan.ignoring.engine.problems import REPORT

PROJECT = Project(ROOT)
NAME = "chapters/where-over-exp"


def body(made):
    return parse_qs(urlsplit(report(PROJECT, NAME, "a & b", made)).query)["body"][0]


def test_a_report_goes_where_those_of_the_library_go_and_has_the_page_in_it():
    address = report(PROJECT, NAME, "a & b", None)
    assert address.startswith(f"{REPORT}/new?")
    assert parse_qs(urlsplit(address).query)["title"] == ["a & b: "]
    assert f"\n{PROJECT.address(NAME)}\n" in body(None)


@pytest.mark.parametrize(
    ("made", "end"),
    [
        (None, ""),
        (Repository("0a1b", False), ", commit 0a1b"),
        (Repository("0a1b", True), ", commit 0a1b with changes since"),
    ],
)
def test_a_report_says_what_the_page_was_built_of(made, end):
    assert body(made).endswith(f"\nBuilt with {versions()}{end}\n")
