"""A site is left as it is when nothing that it is made from has changed; and it says which commit that is."""

import os
import re
import subprocess

import pytest
from scratch import ROOT, Book, edit

from tools.project import Project
from tools.steps.git import origin
from tools.steps.site import Site


@pytest.fixture
def book(tmp_path):
    book = Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})
    (book.site / "chapters").mkdir(parents=True)
    (book.site / "chapters" / "one.html").write_text("one", encoding="utf-8")
    return book


def test_a_site_is_made_from_the_files_that_a_page_could_show_and_from_the_commit(book):
    matters = [
        "chapters/one.md",
        "src/helpers/show.py",
        "theme/static/site.css",
        "tools/pages/search.py",
        "_config.yml",
    ]
    matters += ["_config.yml", "README.md", "_build/html/chapters/one.html"]  # a page could include any file
    others = ["notebooks/one.ipynb", "_build/html/.buildinfo", "_build/other", ".venv/x.py"]
    for name in [*matters, *others]:
        Site(Project(book.root)).remember()
        assert Site(Project(book.root)).is_current()
        path = book.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
        assert Site(Project(book.root)).is_current() is (name in others), name
    Site(Project(book.root)).remember()
    book.commit()
    assert not Site(Project(book.root)).is_current()


def test_the_digest_is_what_the_readme_says_it_is(book):
    for name in (".buildinfo", "chapters/Ä b.html", "chapters-2.html", "chapters/.x"):
        (book.site / name).write_text(name, encoding="utf-8")
    (command,) = re.findall(r"^\$ (find .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    done = subprocess.run(["sh", "-c", command], cwd=book.site, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == Site(Project(book.root)).digest()


def test_the_origin_is_the_commit_and_whether_a_source_was_changed_since(book):
    project = Project(book.root)
    assert origin(project) is None
    at = book.commit()
    assert origin(project) == (at, book.git("show", "--no-patch", "--format=%cs").strip(), False)
    (book.root / "notebooks").mkdir()
    (book.root / "notebooks" / "one.ipynb").touch()
    (book.root / "README.md").touch()
    assert not origin(project).changed
    (book.root / "chapters" / "new.md").touch()
    assert origin(project).changed
    assert book.commit() != at
    edit(book.chapter("one"), "print(1)", "print(2)")
    assert origin(project).changed


def test_the_pages_are_written_again_exactly_when_something_that_they_show_is_new(tmp_path):
    book = Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})
    book.run("book")  # adds the addresses of the pages to results/
    first = book.commit()
    built = book.run("book").stdout.splitlines()[-1]
    assert f"{first[:10]}</code></a> of " in book.page("two")
    read = {path: path.stat().st_mtime_ns for path in (book.root / "_build" / ".doctrees").rglob("*.doctree")}
    assert len(read) == 2

    # Nothing is new ...
    before = {path: path.stat().st_mtime_ns for path in book.site.rglob("*")}
    again = book.run("book").stdout
    assert "2 pages are up to date" in again and again.splitlines()[-1] == built
    assert {path: path.stat().st_mtime_ns for path in book.site.rglob("*")} == before

    # ... or somebody spoilt the site ...
    for spoilt in ("index.html", "chapters/two.html", "search.json"):
        (book.site / spoilt).write_text("not ours", encoding="utf-8")
    repaired = book.run("book").stdout
    assert "rendered 2 pages" in repaired and repaired.splitlines()[-1] == built

    # ... or the commit is another: no chapter is run or read ...
    second = book.commit()
    done = book.run("book").stdout
    assert done.count(" cached ") == 2 and "rendered 2 pages" in done
    assert f"{second[:10]}</code></a> of " in book.page("two") and first[:10] not in book.page("two")
    assert {path: path.stat().st_mtime_ns for path in read} == read

    # ... or sources were edited, also where the times of their files say otherwise.
    for path, old, new in (
        (book.chapter("two"), "Words of two", "New"),
        (book.root / "theme/layout.html", "MIT", "An"),
    ):
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        edit(path, old, new)
        os.utime(path, ns=times)
    assert book.run("book").returncode == 0
    assert "<p>New.</p>" in book.page("two") and "An license" in book.page("two")
    for name in ("one", "two"):
        shown = book.page(name)
        assert f"{second[:10]}</code></a> of " in shown and ", with changes since." in shown
