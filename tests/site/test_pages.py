"""What readers find on the pages of this book."""

import json
import os
from pathlib import Path

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup, Tag
from scratch import ROOT

from tools.pages.theme import edit, versions
from tools.pages.theme import report as feedback
from tools.project import Project
from tools.steps.collect import MIME
from tools.steps.git import origin
from zero_or_nan.explain.report.remedies import PAGES

PROJECT = Project(ROOT)
CHAPTERS = [chapter.stem for chapter in PROJECT.chapters]

notebooks = pytest.mark.parametrize("name", CHAPTERS)
every = pytest.mark.parametrize("name", [page.stem for page in PROJECT.pages])


def page(pages: dict[str, BeautifulSoup], name: str) -> BeautifulSoup:
    return pages[PROJECT.path(f"chapters/{name}")]


def attribute(tag: Tag, name: str) -> str:
    return str(tag.get(name) or "")


def test_the_front_door_is_the_welcome_page_and_its_own_name_leads_there(site):
    assert "What do you see?" in (site / "index.html").read_text(encoding="utf-8")
    moved = BeautifulSoup((site / "chapters" / "welcome.html").read_text(encoding="utf-8"), "html.parser")
    assert attribute(moved.find("meta", attrs={"http-equiv": "refresh"}), "content") == "0; url=../index.html"
    assert attribute(moved.find("link", rel="canonical"), "href") == f"{PROJECT.site_url}/"
    assert attribute(moved.find("meta", attrs={"name": "robots"}), "content") == "noindex"
    assert attribute(moved.find("a"), "href") == "../index.html"


def test_every_page_is_in_the_navigation_of_every_page(pages):
    paths = [*map(PROJECT.path, PROJECT.names)]
    for here in paths:
        links = pages[here].select("nav#contents a")
        wanted = ["#" if path == here else os.path.relpath(path, Path(here).parent) for path in paths]
        assert set(wanted) <= {link["href"] for link in links}, here
        assert [link["href"] for link in links if link.get("aria-current") == "page"] == ["#"], here


def test_a_link_of_a_report_or_a_table_stays_in_this_copy_of_the_site(pages):
    links = [link["href"] for page in pages.values() for link in page.select("article a[href]")]
    assert "./undefined.html#eigenvectors-of-equal-eigenvalues" in links
    assert [link for link in links if link.startswith(PAGES)] == []


def test_the_page_about_the_checks_shows_the_bibtex_entry_with_what_the_citation_file_says(pages):
    shown = page(pages, "how-this-book-is-checked").select_one("#how-to-cite-it pre").get_text()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert f"{{{cited['title']}}}" in shown and f"version = {{{cited['version']}}}" in shown and versions() in shown


def test_a_page_has_one_name_in_the_contents_in_its_heading_and_in_the_table_of_symptoms(pages):
    front = pages["index.html"]
    names = {link["href"]: link.get_text() for link in front.select("nav#contents a[href^=chapters]")}
    assert len(names) == len(PROJECT.pages) - 1 and len(set(names.values())) == len(names)
    headings = {path: pages[path].select_one("main h1").get_text() for path in names}
    assert {path: headings[path] for path, name in names.items() if not headings[path].startswith(name)} == {}
    led_to = {link["href"]: link.get_text() for link in front.select("#what-do-you-see td:last-child a[href$=html]")}
    assert len(led_to) > 20 and {path: name for path, name in led_to.items() if name != names[path]} == {}


@every
def test_a_page_links_to_its_source_and_a_notebook_to_colab(pages, name):
    soup, notebook = page(pages, name), name in CHAPTERS
    source = soup.select_one(".actions a.source")
    assert attribute(source, "href") == f"{PROJECT.repository}/blob/{PROJECT.branch}/chapters/{name}.md"
    loaded = [attribute(tag, key) for tag in soup.find_all(["a", "img"]) for key in ("href", "src")]
    slug = PROJECT.repository.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{slug}/blob/{PROJECT.branch}/notebooks/{name}.ipynb"
    assert {address for address in loaded if "colab" in address.lower()} == ({colab} if notebook else set())
    assert bool(soup.select(".actions a.notebook")) is notebook
    if notebook:
        first = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"][0]
        assert "".join(first["source"]).endswith(f"]({colab})")


@notebooks
def test_the_notebook_to_download_is_that_of_colab_with_the_executed_outputs(pages, site, facts, name):
    button = page(pages, name).select_one(".actions a.notebook")
    path = (site / PROJECT.path(f"chapters/{name}")).parent / attribute(button, "href")
    downloaded, colab = (nbformat.read(file, as_version=4) for file in (path, ROOT / "notebooks" / f"{name}.ipynb"))
    nbformat.validate(downloaded)
    shown = [
        [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in book.cells] for book in (downloaded, colab)
    ]
    assert shown[0] == shown[1] and downloaded.metadata == colab.metadata
    code = [cell for cell in downloaded.cells if cell.cell_type == "code"]
    # The build runs every cell but the first, which brings what a reader's machine lacks.
    assert [cell.execution_count for cell in code] == [None, *range(1, len(code))]
    stated = [output.data[MIME] for cell in code for output in cell.outputs if MIME in output.get("data", {})]
    assert [{**fact, "page": name} for fact in stated] == [fact for fact in facts if fact["page"] == name]


@notebooks
def test_what_a_page_asserts_is_folded_behind_a_line_that_counts_it(pages, name):
    soup = page(pages, name)
    for cell in soup.select("article .cell.tag_hide-cell"):
        (line,) = cell.select(":scope > details > summary .collapsed")
        stated = len(cell.select(".zn-stated"))
        told = {"tag_solution": "A solution", "tag_explain": "What explain says"}
        checked = f"Checked: {stated} result" if stated else "Checked by the page"
        wanted = next((text for tag, text in told.items() if tag in cell["class"]), checked)
        assert line.get_text().startswith(wanted)
        says = "tag_solution" in cell["class"] or "assert " in cell.get_text()
        says |= "tag_explain" in cell["class"] and "born in" in cell.select_one(".cell_output").get_text()
        assert stated or says, "a cell that asserts nothing is folded for no reason"
    assert [claim for claim in soup.select("article .zn-stated") if not claim.find_parent("details")] == []


def test_a_page_runs_the_scripts_of_the_site_and_no_other(pages):
    for path, soup in pages.items():
        policy = soup.select_one('meta[http-equiv="Content-Security-Policy"]')["content"].split("; ")
        assert "default-src 'none'" in policy and "script-src 'self'" in policy, path
        inline = [script for script in soup.find_all("script") if not script.get("src")]
        assert {script["type"] for script in inline} <= {"application/ld+json"}, path


@every
def test_the_foot_of_a_page_leads_to_its_editor_and_to_a_report_and_says_with_what_it_was_made(pages, name):
    main = page(pages, name).select_one("main")
    report = main.select_one(".feedback a.report")
    assert attribute(main.select_one(".feedback a.edit"), "href") == edit(PROJECT, f"chapters/{name}")
    heading = main.h1.get_text().removesuffix("#").strip()
    assert attribute(report, "href") == feedback(PROJECT, f"chapters/{name}", heading, origin(PROJECT))
    assert attribute(report, "data-page") == PROJECT.address(f"chapters/{name}")
    # Not before the text: the first screen is for the answer.
    assert main.find("article").find_next(class_="feedback") is not None
    made = main.select_one(":scope > p.made")
    said = made.get_text().strip() if made else ""
    lead = "Last" if name in CHAPTERS else "All results of this book were last"
    assert said.startswith(f"{lead} verified with {versions()}")
    assert said.endswith(f". Run this page alone: make check CHAPTER={name}") is (name in CHAPTERS)
