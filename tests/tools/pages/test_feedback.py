"""The address at which a reader reports an error of a page."""

from urllib.parse import parse_qs, urlsplit

from scratch import ROOT

from tools.pages.theme import report, versions
from tools.project import Project
from tools.steps.git import Repository
from zero_or_nan.ignoring.engine.problems import REPORT


def test_a_report_goes_where_those_of_the_library_go_and_says_what_the_page_was_built_of():
    project = Project(ROOT)
    for made, end in ((None, ""), (Repository("0a1b", True), ", commit 0a1b with changes since")):
        address = report(project, "chapters/where-over-exp", "a & b", made)
        query = parse_qs(urlsplit(address).query)
        assert address.startswith(f"{REPORT}/new?") and query["title"] == ["a & b: "]
        assert f"\n{project.address('chapters/where-over-exp')}\n" in query["body"][0]
        assert query["body"][0].endswith(f"\nBuilt with {versions()}{end}\n")
