"""What readers find on the pages of this book."""

import gzip
import json
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup, Tag
from scratch import ROOT

from helpers import THREADS, recorded
from helpers.verdict import marked
from tools.pages.folded import prompt
from tools.project import Project
from tools.steps.collect import MIME, checked
from tools.steps.origin import origin
from tools.steps.setup_cell import SETUP

PROJECT = Project(ROOT)
CHAPTERS = [chapter.stem for chapter in PROJECT.chapters]

notebooks = pytest.mark.parametrize("name", CHAPTERS)
every = pytest.mark.parametrize("name", [page.stem for page in PROJECT.pages])


def page(pages: dict[str, BeautifulSoup], name: str) -> BeautifulSoup:
    return pages[PROJECT.path(f"chapters/{name}")]


def attribute(tag: Tag, name: str) -> str:
    return str(tag.get(name) or "")


def test_a_page_is_light_without_its_figures(site):
    """At most 30 KiB, compressed as a server does."""
    sizes = {}
    for name in PROJECT.names:
        text = (site / PROJECT.path(name)).read_text(encoding="utf-8")
        sizes[name] = len(gzip.compress(re.sub("<figure.*?</figure>", "", text, flags=re.DOTALL).encode()))
    assert {name: size for name, size in sizes.items() if size > 30 * 1024} == {}


def test_the_front_door_is_the_welcome_page_and_its_own_name_leads_there(site):
    assert "What do you see?" in (site / "index.html").read_text(encoding="utf-8")
    moved = BeautifulSoup((site / "chapters" / "welcome.html").read_text(encoding="utf-8"), "html.parser")
    assert attribute(moved.find("meta", attrs={"http-equiv": "refresh"}), "content") == "0; url=../index.html"
    assert attribute(moved.find("link", rel="canonical"), "href") == f"{PROJECT.site_url}/"
    assert attribute(moved.find("meta", attrs={"name": "robots"}), "content") == "noindex"
    assert attribute(moved.find("a"), "href") == "../index.html"


def test_no_link_of_the_site_leads_over_the_page_that_has_moved(pages):
    for path, soup in pages.items():
        assert [link for link in soup.find_all(href=True) if "welcome.html" in attribute(link, "href")] == [], path


def test_every_page_is_in_the_navigation_of_every_page(pages):
    paths = [*map(PROJECT.path, PROJECT.names)]
    for here in paths:
        links = pages[here].select("nav#contents a")
        wanted = ["#" if path == here else os.path.relpath(path, Path(here).parent) for path in paths]
        assert set(wanted) <= {link["href"] for link in links}, here
        assert [link["href"] for link in links if link.get("aria-current") == "page"] == ["#"], here


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
def test_the_executed_notebook_can_be_downloaded_with_its_claims(pages, site, facts, name):
    button = page(pages, name).select_one(".actions a.notebook")
    folder = (site / PROJECT.path(f"chapters/{name}")).parent
    content = json.loads((folder / attribute(button, "href")).resolve().read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code)
    # The build runs every cell but the first, which brings what a reader's machine lacks.
    assert [cell["execution_count"] for cell in code] == [None, *range(1, len(code))]
    bundles = [output.get("data", {}) for cell in code for output in cell["outputs"]]
    stated = [bundle[MIME] for bundle in bundles if MIME in bundle]
    assert [{**fact, "page": name} for fact in stated] == [fact for fact in facts if fact["page"] == name]


@notebooks
def test_the_downloaded_notebook_is_that_of_colab_with_outputs(site, name):
    books = (site / "_sources" / "chapters" / f"{name}.ipynb", ROOT / "notebooks" / f"{name}.ipynb")
    downloaded, colab = (nbformat.read(path, as_version=4) for path in books)
    nbformat.validate(downloaded)
    shown = [
        [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in book.cells] for book in (downloaded, colab)
    ]
    assert shown[0] == shown[1] and downloaded.metadata == colab.metadata
    first = next(cell for cell in downloaded.cells if cell.cell_type == "code")
    assert PROJECT.repository in first.source and first.outputs == []


@pytest.mark.parametrize(("name", "kind"), [("where-over-exp", "contaminated"), ("undefined", "undefined")])
def test_a_page_shows_what_explain_says_of_its_own_code(pages, name, kind):
    (cell,) = page(pages, name).select("article .cell.tag_explain")
    assert cell.select_one("summary .collapsed").get_text() == "What explain says"
    report = cell.select_one(".cell_output").get_text()
    assert report.strip().startswith(kind) and "Cell In[" in report


@notebooks
def test_what_a_page_asserts_is_folded_behind_a_line_that_counts_it(pages, name):
    soup = page(pages, name)
    for cell in soup.select("article .cell.tag_hide-cell"):
        (line,) = cell.select(":scope > details > summary .collapsed")
        stated = len(cell.select(".zn-stated"))
        assert line.get_text() == prompt({name.removeprefix("tag_") for name in cell["class"]}, stated)
        says = "tag_solution" in cell["class"] or "assert " in cell.get_text()
        says |= "tag_explain" in cell["class"] and "born in" in cell.select_one(".cell_output").get_text()
        assert stated or says, "a cell that asserts nothing is folded for no reason"
    assert [claim for claim in soup.select("article .zn-stated") if not claim.find_parent("details")] == []


def test_the_overview_has_every_verdict_and_counts_the_claims(pages, facts):
    (table,) = (table for table in page(pages, "welcome").select(".zn table") if "claims and" in str(table.caption))
    count = len(checked(facts))
    assert table.caption.get_text().startswith(f"{count} of {count} claims and verdicts hold on torch ")
    verdicts = [fact for fact in facts if fact["type"] == "verdict"]
    # The other pages compare no methods element by element: they have claims alone.
    compared = "10729 52248 67180 4132 slicing-nan gradient-argument 6394 round-off 40497 41508".split()
    assert set(compared) <= {fact["case"] for fact in verdicts} <= set(THREADS)
    for row, verdict in zip(table.select("tbody tr"), verdicts, strict=True):
        link = row.find("a")
        assert page(pages, verdict["page"]).h1.get_text().startswith(link.get_text()) and len(link.get_text()) > 12
        assert attribute(link, "href") == f"chapters/{verdict['page']}.html"
        assert verdict["quantity"] in row.find("th").get_text()
        words = [word.get_text() for word in row.select(".zn-word")]
        assert sorted(words) == sorted(map(marked, verdict["observed"].values()))


def test_the_recorded_versions_are_on_the_page_of_releases_and_on_the_card_of_a_case(pages):
    runs = recorded.records()
    heads = {head.get_text() for head in page(pages, "which-pytorch").select(".zn-releases th[scope=col]")}
    for run in runs:
        assert run["torch"].removesuffix(".0") in heads
    card = page(pages, "where-over-exp").select_one(".zn-claim").get_text(" ")
    oldest, *_, newest = sorted({tuple(map(int, run["torch"].split(".")[:2])) for run in runs})
    assert f"recorded on PyTorch {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))} (CPU)" in card


def test_every_figure_says_in_words_what_it_shows(pages):
    figures = 0
    for path, soup in pages.items():
        for figure in soup.select("article figure"):
            (image,) = figure.select("[role=img]")
            assert len(attribute(image, "aria-label")) > 20, path
            assert all(svg.get("aria-hidden") == "true" for svg in image.select("svg")), path
            figures += 1
        for image in soup.select("article img"):
            assert attribute(image, "alt").strip(), path
    assert figures >= 3


def test_every_table_of_ours_has_a_caption_and_scoped_headers(pages):
    tables = 0
    for path, soup in pages.items():
        for table in soup.select(".zn table"):
            assert (table.caption.get_text() if table.caption else attribute(table, "aria-label")).strip(), path
            assert table.find_all("th")
            columns = {header.get("scope") for header in table.select("thead th")}
            assert columns <= {"col", "colgroup"} and ("col" in columns or not table.thead), path
            rows = {header.get("scope") for header in table.select("tbody th, tfoot th")}
            assert "row" in rows <= {"row", "rowgroup"}, path
            tables += 1
    assert tables >= 10


def test_every_page_has_a_language_one_main_heading_and_each_id_once(pages):
    for path in map(PROJECT.path, PROJECT.names):
        soup = pages[path]
        assert soup.html.get("lang") == "en" and len(soup.select("article h1")) == 1 and not soup.select(".math"), path
        assert SETUP.splitlines()[0] not in soup.get_text(), path  # it is for notebooks alone
        ids = [tag["id"] for tag in soup.select("article [id]")]
        assert len(ids) == len(set(ids)), path


def test_a_page_runs_the_scripts_of_the_site_and_no_other(pages):
    for path, soup in pages.items():
        policy = soup.select_one('meta[http-equiv="Content-Security-Policy"]')["content"].split("; ")
        assert "default-src 'none'" in policy and "script-src 'self'" in policy, path
        inline = [script for script in soup.find_all("script") if not script.get("src")]
        assert {script["type"] for script in inline} <= {"application/ld+json"}, path


@every
def test_the_foot_of_a_page_leads_to_its_editor_and_to_a_report_that_names_it(pages, name):
    main = page(pages, name).select_one("main")
    edit, report = (main.select_one(f".feedback a.{kind}") for kind in ("edit", "report"))
    assert attribute(edit, "href") == f"{PROJECT.repository}/edit/{PROJECT.branch}/chapters/{name}.md"
    assert (ROOT / "chapters" / f"{name}.md").is_file()
    address = urlsplit(attribute(report, "href"))
    asked = parse_qs(address.query)
    heading = main.h1.get_text().removesuffix("#").strip()
    assert f"{address.scheme}://{address.netloc}{address.path}" == f"{PROJECT.repository}/issues/new"
    assert asked["title"] == [f"{heading}: "]
    assert f"\n{attribute(report, 'data-page')}\n" in asked["body"][0]  # where site.js puts in the place on the page
    assert attribute(report, "data-page") == PROJECT.address(f"chapters/{name}")
    assert f"torch {version('torch')}, Python {platform.python_version()}" in asked["body"][0]
    found = origin(PROJECT)
    assert found is None or f"commit {found.commit}" in asked["body"][0]
    # Not before the text: the first screen is for the answer.
    assert main.find("article").find_next(class_="feedback") is not None


@every
def test_the_foot_of_a_page_says_from_which_commit_and_with_what_it_was_made(pages, name):
    foot = page(pages, name).select_one("main > p.made")
    found = origin(PROJECT)
    text = foot.get_text() if foot else ""
    if found is not None:
        link = foot.find("a")
        assert attribute(link, "href") == f"{PROJECT.repository}/tree/{found.commit}"
        assert link.get_text() == found.commit[:10]
        assert ("with changes since" in text) is found.changed
    versions = (
        f"torch {version('torch')}, Python {platform.python_version()}. Run this page alone: make check CHAPTER={name}"
    )
    assert text.endswith(versions) is (name in CHAPTERS), text
