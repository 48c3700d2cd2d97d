"""The whole book as an EPUB: valid, complete, and readable where no script runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import ZIP_STORED, ZipFile

import pytest
from scratch import ROOT

from tools import epub as writing
from tools.pages.epub import readable
from tools.project import Problem, Project

PROJECT = Project(ROOT)
HTML = "{http://www.w3.org/1999/xhtml}"


@pytest.fixture(scope="module")
def book(site):
    subprocess.run([sys.executable, "-m", "tools", "epub"], cwd=ROOT, check=True)
    with ZipFile(PROJECT.epub) as book:
        yield book


@pytest.fixture(scope="module")
def texts(book):
    """Every page of the book by its file, parsed as the XML that it has to be."""
    return {name: ElementTree.fromstring(book.read(name)) for name in book.namelist() if name.endswith(".xhtml")}


@pytest.fixture(scope="module")
def epubcheck():
    """The command that checks a book. Debian's is a Java archive, which not every system runs by itself."""
    found, java = shutil.which("epubcheck"), shutil.which("java")
    if not (found and java):
        reason = "epubcheck is not installed; `make browser` installs it"
        (pytest.fail if os.environ.get("BROWSER_TESTS") == "required" else pytest.skip)(reason)
    path = Path(found).resolve()
    return [java, "-XX:TieredStopAtLevel=1", "-jar", path] if path.suffix == ".jar" else [path]


def text(element):
    return " ".join("".join(element.itertext()).split())


def test_epubcheck_has_nothing_to_say(book, epubcheck):
    done = subprocess.run([*epubcheck, "--failonwarnings", PROJECT.epub], capture_output=True, text=True)
    assert done.returncode == 0 and "0 errors / 0 warnings" in done.stdout, done.stdout + done.stderr


def test_every_page_of_the_book_is_in_it_in_order_and_in_its_part(texts, book):
    pages = [f"{name}.xhtml" for name in PROJECT.names]
    package = ElementTree.fromstring(book.read("content.opf"))
    opf = "{http://www.idpf.org/2007/opf}"
    files = {item.get("id"): item.get("href") for item in package.iter(f"{opf}item")}
    spine = [files[item.get("idref")] for item in package.iter(f"{opf}itemref")]
    assert spine == ["title.xhtml", "nav.xhtml", *pages, "genindex.xhtml"]
    contents = texts["nav.xhtml"].find(f".//{HTML}nav")
    assert [link.get("href") for link in contents.iter(f"{HTML}a")] == [*pages, "genindex.xhtml"]
    parts = [text(part) for part in contents.iter(f"{HTML}span")]
    assert parts == ["Zero or NaN", "In training", "Undefined", "Only rounded", "The library", "Teach and look up"]


def test_it_says_what_it_is(texts, book):
    package = book.read("content.opf").decode()
    home = re.escape(f"{PROJECT.site_url}/")
    for element, content in {
        "identifier": home,
        "title": re.escape("Zero or NaN?"),
        "language": "en",
        "creator": "The Zero or NaN authors",
        "rights": "MIT licence, .*",
    }.items():
        assert re.search(rf"<dc:{element}[^>]*>{content}</dc:{element}>", package), element
    assert 'properties="cover-image"' in package and book.read("cover.png").startswith(b"\x89PNG")
    assert book.infolist()[0].filename == "mimetype" and book.infolist()[0].compress_type == ZIP_STORED
    assert "MIT licence" in text(texts["title.xhtml"]) and "unknown" not in package


def test_every_claim_table_figure_and_step_of_the_site_is_in_it(texts, pages):
    seen = 0
    for name in PROJECT.names:
        here, there = list(texts[f"{name}.xhtml"].iter()), pages[PROJECT.path(name)].article
        claims = [tag.get("id") for tag in here if tag.get("id", "").startswith("claim-")]
        assert claims == [tag["id"] for tag in there.find_all(id=re.compile("^claim-"))], name
        for kind in ("table", "figure", "svg", "section"):
            on_site = there.select(f"{kind}:not(.zn-narrow *)")  # of a chart, the layout for a phone is left out
            assert sum(tag.tag.endswith(f"}}{kind}") for tag in here) == len(on_site), (name, kind)
        steps = [tag.get("data-step") for tag in here if tag.get("data-step")]
        assert steps == [tag["data-step"] for tag in there.find_all(attrs={"data-step": True})], name
        outputs = [tag for tag in here if "cell_output" in tag.get("class", "").split()]
        assert len(outputs) == len(there.select(".cell_output")), name
        seen += len(claims)
    assert seen > 500


def test_nothing_is_folded_and_nothing_waits_for_a_script(texts):
    dead = {f"{HTML}{tag}" for tag in ("script", "form", "button", "input", "textarea", "select", "iframe", "noscript")}
    boxes = 0
    for name, page in texts.items():
        tags = {element.tag for element in page.iter()}
        assert not tags & dead, name
        assert not re.search(r"Show the code|Hide the code|Toggle hidden", text(page)), name
        for box in page.iter(f"{HTML}details"):
            boxes += 1
            assert box.get("open") and text(box[0]), name
        assert all(image.get("alt") for image in page.iter(f"{HTML}img")), name
    assert boxes > 100
    solution = texts["chapters/where-over-exp.xhtml"].findall(f".//*[@class]/{HTML}details")
    assert any(text(box[0]) == "A solution" and len(text(box)) > 40 for box in solution)


def test_links_inside_resolve_and_those_to_the_book_lead_nowhere_else(texts):
    anchors = {name: {tag.get("id") for tag in page.iter() if tag.get("id")} for name, page in texts.items()}
    site = {PROJECT.address(name) for name in PROJECT.names}
    inside = outside = 0
    for name, page in texts.items():
        # Their own pages on the site: one at the end of each page, and that of a form.
        for paragraph in page.iter(f"{HTML}p"):
            if text(paragraph) in ("This page on the site", "The form is on the site."):
                paragraph.clear()
        for link in page.iter(f"{HTML}a"):
            href = link.get("href", "")
            if "://" in href:
                outside += 1
                assert href.partition("#")[0] not in site or name == "title.xhtml", (name, href)
                continue
            inside += 1
            path, _, anchor = href.partition("#")
            file = normpath(join(dirname(name), unquote(path))) if path else name
            assert file in texts and (not anchor or unquote(anchor) in anchors[file]), (name, href)
    assert inside > 500 and outside > 100


def test_only_the_package_says_when_the_book_was_made(book):
    assert {entry.date_time for entry in book.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    year = re.search(r'"dcterms:modified">(\d{4})-', book.read("content.opf").decode())[1]
    assert f"{year}-" not in book.read("title.xhtml").decode() + book.read("nav.xhtml").decode()


def test_html_becomes_xml_with_the_names_of_drawings():
    drawing = '<svg viewBox="0 0 1 1"><clipPath id="a"></clipPath></svg>'
    body = (
        f'<p hidden>a<br>b&nbsp;</p><script>a < b</script>{drawing}<p>a<br>b&nbsp;<a href="b.html" download>c</a></p>'
    )
    page = ElementTree.fromstring(f"<body>{readable(body, str.upper, '')}</body>")
    assert [element.tag for element in page] == ["svg", "p"]
    assert page[0].get("viewBox") == "0 0 1 1" and page[0][0].tag == "clipPath"
    assert page[1][1].get("href") == "B.HTML" and text(page[1]) == "ab c"


def test_a_form_leads_to_the_site():
    page = readable("<section><form><input name=a></form></section>", str, "https://there")
    assert page == '<section><p><a href="https://there">The form is on the site.</a></p></section>'


def test_without_a_site_it_says_what_to_do(tmp_path):
    for name in ("_config.yml", "_toc.yml"):
        (tmp_path / name).touch()
    with pytest.raises(Problem, match="run `make book` first"):
        writing.epub(Project(tmp_path))


def test_of_a_site_whose_sources_changed_no_book_is_made(checkout):
    site = checkout.root / "_build" / "html"
    site.mkdir(parents=True, exist_ok=True)
    (site / "index.html").touch()
    with pytest.raises(Problem, match="the site is missing, or its sources have changed.*run `make book` first"):
        writing.epub(Project(checkout.root))
    assert not Project(checkout.root).epub.exists()
