"""Step 1: notebooks that say what their chapters say, and nothing of when or where they were made."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from jupytext.cli import jupytext
from scratch import ROOT, Book, edit

from tools.project import Problem, Project, write
from tools.steps.pair import out_of_step, pair

TEXT = """\
See [the other](two.md), [a part of it](two.md#some-part), [here](#below), [elsewhere](https://example.org/two.md)
and ![a picture](picture.png).
"""


@pytest.fixture
def book(tmp_path: Path) -> Book:
    book = Book(tmp_path / "book", {"one": ["print(1)", "print(2)", "print(2)"], "two": ["print(3)"]})
    with book.chapter("one").open("a", encoding="utf-8") as file:
        file.write(f"\n{TEXT}")
    return book


def cells(book: Book, name: str = "one") -> list[dict]:
    return json.loads((book.root / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def test_notebooks_of_this_checkout_are_in_step_with_the_chapters(behind):
    assert behind == [], "run `make notebooks`, and commit what it writes"


def test_every_chapter_with_a_kernel_gets_a_notebook_without_outputs(book):
    (book.root / "chapters" / "words.md").write_text("# Words\n", encoding="utf-8")
    book.contents("one", "two", "words")
    assert sorted(path.name for path in pair(Project(book.root))) == ["one.ipynb", "two.ipynb"]
    code = [cell for cell in cells(book) if cell["cell_type"] == "code"]
    assert [source(cell) for cell in code[1:]] == ["print(1)", "print(2)", "print(2)"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_each_cell_has_an_id_that_changes_with_its_text_alone(book):
    pair(Project(book.root))
    before = [cell["id"] for cell in cells(book)]
    assert len(set(before)) == len(before) and all(re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", name) for name in before)
    book.edit("chapters/one.md", "print(1)", "print(10)")
    pair(Project(book.root))
    changed = [source(cell) for cell, name in zip(cells(book), before, strict=True) if cell["id"] != name]
    assert changed == ["print(10)"]


def test_another_repository_in_the_configuration_reaches_badge_set_up_and_links(book):
    project = Project(book.root)
    config = book.root / "_config.yml"
    edit(config, project.site_url, "https://book.example.org/zero/")
    edit(config, project.repository, "https://github.com/someone/else/")
    edit(config, "branch: main", "branch: stable")
    pair(Project(book.root))
    text = (book.root / "notebooks" / "one.ipynb").read_text(encoding="utf-8")
    assert "(https://colab.research.google.com/github/someone/else/blob/stable/notebooks/one.ipynb)" in text
    assert "--branch stable https://github.com/someone/else" in text
    assert "(https://book.example.org/zero/chapters/two.html)" in text
    assert project.repository not in text and project.site_url not in text


def test_links_to_pages_become_absolute_with_their_anchors_and_others_stay(book):
    book.append("one", 'print("[x](two.md)")')
    pair(Project(book.root))
    *_, text, code = map(source, cells(book))
    site = Project(book.root).site_url
    assert f"[the other]({site}/chapters/two.html)" in text
    assert f"[a part of it]({site}/chapters/two.html#some-part)" in text
    assert "[here](#below)" in text
    assert "[elsewhere](https://example.org/two.md)" in text and code == 'print("[x](two.md)")'


def test_out_of_step_names_what_is_missing_edited_behind_or_without_a_chapter(book):
    project = Project(book.root)
    one, two = (book.root / "notebooks" / name for name in ("one.ipynb", "two.ipynb"))
    assert out_of_step(project) == [one, two]
    pair(project)
    assert out_of_step(project) == []
    edit(one, "print(1)", "print(0)")
    assert out_of_step(project) == [one]
    edit(book.chapter("two"), "Words of two.", "Other words.")
    assert out_of_step(project) == [one, two]
    one.unlink()
    book.contents("one")
    assert pair(Project(book.root)) == [one, two] and not two.exists()


def notebooks(book: Book) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (book.root / "notebooks").rglob("*") if path.is_file()}


@pytest.mark.parametrize("has_git", [True, False])
def test_a_notebook_with_changes_that_git_does_not_hold_stops_the_build_before_anything_is_written(book, has_git):
    project, one = Project(book.root), book.root / "notebooks" / "one.ipynb"
    pair(project)
    if has_git:
        book.commit()
    edit(one, '"outputs": []', '"outputs": [ ]')
    edit(book.chapter("two"), "Words of two.", "Other words.")
    before = notebooks(book)
    refused = r"overwrite notebooks/one.ipynb\. .*make the change in its chapter"
    with pytest.raises(Problem, match=refused):
        pair(project)
    done = book.here("book")
    assert done.returncode == 1 and done.stderr.startswith("error: the command stopped, because work that git does")
    assert notebooks(book) == before
    if has_git:
        book.git("add", "notebooks/one.ipynb")
    else:
        one.unlink()
    assert pair(project) == [one, book.root / "notebooks" / "two.ipynb"]
    assert out_of_step(project) == []


def test_a_notebook_without_a_chapter_is_deleted_only_if_git_holds_it(book):
    project, mine = Project(book.root), book.root / "notebooks" / "mine.ipynb"
    pair(project)
    book.commit()
    mine.write_text("{}", encoding="utf-8")
    with pytest.raises(Problem, match=r"would delete notebooks/mine.ipynb, because no chapter has this name\. To keep"):
        pair(project)
    assert mine.read_text(encoding="utf-8") == "{}"
    book.git("add", "notebooks/mine.ipynb")
    assert book.here("notebooks").stdout == (
        "notebooks deleted, because no chapter has their name: mine.ipynb\n0 of 2 notebooks rewritten\n"
    )
    assert not mine.exists()


def test_after_an_interruption_the_next_build_recognizes_what_was_written(book, monkeypatch):
    project = Project(book.root)
    pair(project)

    def interrupted(path, content):
        if path.name == "two.ipynb":
            raise KeyboardInterrupt
        write(path, content)

    for _ in range(2):
        for name in ("one", "two"):
            edit(book.chapter(name), f"Words of {name}.", f"More: Words of {name}.")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("tools.steps.pair.write", interrupted)
            pair(project)
    edit(book.chapter("one"), "Words of one.", "Other words.")
    assert [path.name for path in pair(project)] == ["one.ipynb", "two.ipynb"]


def test_jupytext_changes_neither_chapters_nor_notebooks_and_keeps_a_front_matter(tmp_path, monkeypatch):
    """In a folder with a few chapters, their notebooks, and every file that could configure Jupytext."""
    for path in [*ROOT.glob("*.toml"), *ROOT.glob("chapters/*.toml"), *ROOT.glob("*/s*-nan.*"), *ROOT.glob("*/api.*")]:
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    monkeypatch.chdir(tmp_path)
    pages = [str(path) for ending in ("*/*.md", "*/*.ipynb") for path in tmp_path.glob(ending)]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(pages) == 3
    for newer in ("chapters", "notebooks"):
        for path in tmp_path.glob(f"{newer}/*"):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 60))
        jupytext(["--sync", *pages])
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    path = tmp_path / "chapters" / "slicing-nan.md"
    front, body = path.read_text(encoding="utf-8")[4:].split("\n---\n", 1)
    jupytext(["--to", "md:myst", str(path)])
    new, same = path.read_text(encoding="utf-8")[4:].split("\n---\n", 1)
    assert same == body and yaml.safe_load(new) == yaml.safe_load(front) and "jupytext_version" not in new
