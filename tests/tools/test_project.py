"""What is missing is named, and a wrong command is told so."""

from pathlib import Path

import pytest
import yaml
from scratch import ROOT, Book

from tools.project import Project, is_notebook, write


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})


@pytest.mark.parametrize("command", ["book", "check", "record", "notebooks"])
@pytest.mark.parametrize("name", ["_config.yml", "_toc.yml"])
def test_outside_a_checkout_the_error_says_what_is_missing(book, name, command):
    (book.root / name).unlink()
    done = book.run(command)
    assert done.returncode == 1
    assert done.stderr == f"error: {book.root} holds no {name}: run this from the top of the checkout\n"


def test_chapters_named_in_the_contents_that_do_not_exist_are_all_named(book):
    book.contents("one", "lost", "two", "gone")
    done = book.run("check")
    assert done.returncode == 1
    assert done.stderr == "error: _toc.yml names files that do not exist: chapters/lost.md, chapters/gone.md\n"


@pytest.mark.parametrize("arguments", [["bake"], [], ["check", "--timeout", "soon"]])
def test_a_wrong_command_is_refused_with_the_usage(book, arguments):
    done = book.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m tools")


def test_pages_come_in_the_order_of_the_contents_through_parts_and_sections(book):
    names = ["one", "two", "three", "four", "five"]
    for name in names[2:]:
        (book.root / "chapters" / f"{name}.md").write_text(f"# {name}\n", encoding="utf-8")
    toc = {
        "format": "jb-book",
        "root": "chapters/one",
        "parts": [
            {
                "caption": "A",
                "chapters": [{"file": "chapters/two", "sections": [{"file": "chapters/three"}]}],
            },
            {"caption": "B", "chapters": [{"file": "chapters/four"}, {"file": "chapters/five"}]},
        ],
    }
    (book.root / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    project = Project(book.root)
    assert [page.stem for page in project.pages] == names
    assert [page.stem for page in project.chapters] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nkernelspec:\n  name: python3\n---\n# Words\n", True),
        ("---\nmyst: {}\n---\nkernelspec\n", False),
        ("---\n---\n# Words\n", False),
        ("---\nkernelspec: a line, not front matter\n", False),
        ("# Words\n\n---\nkernelspec: x\n---\n", False),
        ("", False),
    ],
)
def test_a_page_is_a_notebook_when_its_front_matter_names_a_kernel(tmp_path, text, expected):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert is_notebook(page) is expected


def test_every_chapter_of_the_book_is_in_its_contents():
    assert sorted(Project(ROOT).pages) == sorted((ROOT / "chapters").glob("*.md"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file.txt"
    write(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write(path, "half \ud800")

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, "after")
    assert path.read_text(encoding="utf-8") == "before"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]
