"""The whole book as a PDF: every page in order, its figures in all steps, its links inside of the file."""

import subprocess
import sys

import pytest
from pypdf import PdfReader
from scratch import ROOT

from tools import pdf as printing
from tools.project import Problem, Project

PROJECT = Project(ROOT)
CASE, THREADS = "chapters/where-over-exp", "chapters/losses-and-geometry"
# Every eighth page, a case, and a page with a box of threads: to print all pages takes half a minute.
NAMES = [name for number, name in enumerate(PROJECT.names) if number % 8 == 0 or name in (CASE, THREADS)]
PRINT = """
import sys
from pathlib import Path
from tools.pdf import pdf
from tools.project import Project

class Some(Project):
    names = sys.argv[2:]

some = Some(Path.cwd())
some.pdf = Path(sys.argv[1])
pdf(some)
"""


@pytest.fixture(scope="module")
def book(site, browser):
    # `browser` skips the tests where there is none. The printing opens another one: two can't be in one process.
    path = PROJECT.build / "some.pdf"
    subprocess.run([sys.executable, "-c", PRINT, path, *NAMES], cwd=ROOT, check=True)
    return PdfReader(path)


def test_every_page_of_the_book_has_a_bookmark_in_order(book):
    titles = [entry.title for entry in book.outline]
    begins = [book.get_destination_page_number(entry) for entry in book.outline]
    assert len(titles) == len(NAMES) and titles[0] == "Zero or NaN?"
    assert begins == sorted(set(begins)) and begins[0] == 0 and len(book.pages) > begins[-1]
    for title, page in zip(titles, begins, strict=True):
        assert title.split(" · ")[0].split()[0] in book.pages[page].extract_text()


def test_links_between_pages_lead_inside_of_the_file(book):
    links = [link.get_object() for page in book.pages for link in page.get("/Annots", [])]
    addresses = [str(link["/A"]["/URI"]) for link in links if "/URI" in link.get("/A", {})]
    assert addresses and not [each for each in addresses if "127.0.0.1" in each]
    assert len(links) - len(addresses) > 20


def test_figures_have_all_their_steps_solutions_and_threads_are_open_and_checks_are_left_out(book):
    # Of the front page and two others, which have all of this.
    begins = [book.get_destination_page_number(entry) for entry in book.outline]
    text = "\n".join(
        book.pages[number].extract_text()
        for at in (0, NAMES.index(CASE), NAMES.index(THREADS))
        for number in range(begins[at], begins[at + 1])
    )
    for step in ("1. sum", "2. where", "3. exp", "4. x.grad"):
        assert step in text
    assert "A solution" in text and "What was decided" in text and "Step 1 of" not in text
    assert "results are as stated" not in text and "Open in Colab" not in text


def test_without_a_site_or_a_browser_it_says_what_to_do(site, project, monkeypatch):
    with pytest.raises(Problem, match="run `make book` first"):
        printing.pdf(project)
    monkeypatch.setattr("tools.measure.browser.executable", lambda: None)
    with pytest.raises(Problem, match="run `make browser` first"):
        printing.pdf(PROJECT)
