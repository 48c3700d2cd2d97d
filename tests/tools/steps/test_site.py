"""A build writes the whole site, reads only the pages that are new, and says which commit they are from."""

import os
import re
import subprocess

import pytest
from scratch import ROOT, Book, edit

from tools.project import Project
from tools.steps.git import origin
from tools.steps.site import site_digest


@pytest.fixture
def book(tmp_path):
    book = Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})
    (book.site / "chapters").mkdir(parents=True)
    (book.site / "chapters" / "one.html").write_text("one", encoding="utf-8")
    return book


def test_the_digest_is_what_the_readme_says_it_is(book):
    for name in (".buildinfo", "chapters/Ä b.html", "chapters-2.html", "chapters/.x"):
        (book.site / name).write_text(name, encoding="utf-8")
    (command,) = re.findall(r"^\$ (find .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    done = subprocess.run(["sh", "-c", command], cwd=book.site, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == site_digest(Project(book.root))


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


def test_the_pages_are_written_again_and_only_those_with_a_new_text_are_read(tmp_path):
    book = Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})
    first = book.commit()
    assert book.here("book").returncode == 0  # it also adds the addresses of the pages to results/
    assert f"{first[:10]}</code></a> of " in book.page("two")
    read = {path: path.stat().st_mtime_ns for path in (book.root / "_build" / ".doctrees").rglob("*.doctree")}
    assert len(read) == 2

    # Somebody spoilt the site, and the commit is another: no chapter is run or read ...
    spoilt = [book.site / name for name in ("index.html", "chapters/two.html", "search.json")]
    for path in spoilt:
        path.write_text("not ours", encoding="utf-8")
    second = book.commit()
    done = book.here("book").stdout
    assert done.count(" cached ") == 2 and "not ours" not in [path.read_text(encoding="utf-8") for path in spoilt]
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
    assert book.here("book").returncode == 0
    assert "<p>New.</p>" in book.page("two") and "An license" in book.page("two")
    for name in ("one", "two"):
        shown = book.page(name)
        assert f"{second[:10]}</code></a> of " in shown and ", with changes since." in shown
