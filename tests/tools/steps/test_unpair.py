"""Chapters and notebooks are a pair: what is edited in one comes to the other, and nothing else changes."""

import json
import os
import shutil
from pathlib import Path

import nbformat
import pytest
import yaml
from jupytext.cli import jupytext
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from scratch import ROOT, Book, edit

from tools.project import Problem, Project
from tools.steps.pair import notebook, pair
from tools.steps.unpair import chapter_text, unpair

REAL = Project(Path.cwd())


def as_colab_saves(text):
    """A notebook after Colab ran and saved it: cells without ids of their own, metadata and outputs of Colab's."""
    book = json.loads(text)
    book["nbformat_minor"] = 0
    book["metadata"] = {"colab": {"provenance": [], "toc_visible": True}, "kernelspec": {"name": "python3"}}
    badge = f'<a href="https://x"><img src="{"https://colab.research.google.com/assets/colab-badge.svg"}"/></a>'
    book["cells"].insert(0, {"cell_type": "markdown", "metadata": {"id": "view-in-github"}, "source": [badge]})
    for number, cell in enumerate(book["cells"]):
        cell.pop("id", None)
        cell["metadata"] |= {"id": f"aB{number}"}
        if cell["cell_type"] == "code":
            cell["metadata"] |= {"outputId": "5f", "colab": {"base_uri": "https://x"}, "executionInfo": {}}
            cell["execution_count"] = number
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    return json.dumps(book)


def with_outputs(text):
    book = nbformat.reads(text, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [new_output("stream", text="1\n")], 3
    return nbformat.writes(book)


@pytest.mark.parametrize("saved", [str, as_colab_saves, with_outputs])
def test_a_chapter_comes_back_from_its_notebook_byte_for_byte(saved):
    chapters = REAL.chapters if saved is str else REAL.chapters[::8]
    for chapter in chapters:
        before = chapter.read_text(encoding="utf-8")
        book = nbformat.reads(saved(notebook(REAL, chapter)), as_version=4)
        assert chapter_text(REAL, before, book) == before, chapter


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


@pytest.fixture
def book(tmp_path):
    book = Book(tmp_path / "book", {"one": ["x = 1", "print(x)"], "two": ["y = 2"]})
    edit(book.chapter("one"), "Words of one.", "See [the other page](two.md#the-page-two) and [this](one.md).")
    book.commit()
    return book


def saved(book, change, name="one.ipynb"):
    """The notebook of the page `one`, changed, in a file of its own."""
    found = nbformat.reads(notebook(Project(book.root), book.chapter("one")), as_version=4)
    change(found.cells)
    path = book.root / name
    path.write_text(nbformat.writes(found), encoding="utf-8")
    return path


def change_code(cells):
    cells[-1].source = "print(x + 1)\n"


def add(cells):
    cells.insert(4, new_markdown_cell("More [words](https://zero-or-nan.github.io/zero-or-nan/chapters/two.html)."))
    cells.append(new_code_cell("print(3)", metadata={"tags": ["hide-input"], "cellView": "form"}))


def tag(cells):
    cells[-1].metadata["tags"] = ["hide-cell"]


@pytest.mark.parametrize(
    "change, said, old, new",
    [
        (lambda cells: None, "no cell changed", "", ""),
        (change_code, "cells: 1 changed.", "print(x)", "print(x + 1)"),
        (tag, "cells: 1 changed.", "\nprint(x)", "\n:tags: [hide-cell]\n\nprint(x)"),
        (lambda cells: cells.pop(), "cells: 1 removed.", "\n```{code-cell} ipython3\nprint(x)\n```\n", ""),
    ],
)
def test_an_edited_notebook_changes_its_chapter_in_that_place_alone(book, change, said, old, new):
    before = book.chapter("one").read_text(encoding="utf-8")
    told = unpair(Project(book.root), saved(book, change))
    assert told.startswith(f"chapters/one.md: {said}")
    assert book.chapter("one").read_text(encoding="utf-8") == before.replace(old, new)


@pytest.mark.parametrize("name", ["one (1).ipynb", "Copy of one.ipynb", "one-Copy1.ipynb"])
def test_a_copy_belongs_to_the_chapter_of_the_original(book, name):
    assert "cells: 1 changed." in unpair(Project(book.root), saved(book, change_code, name))


def test_added_cells_have_links_and_tags_as_chapters_have_them(book):
    path = saved(book, add, "downloaded.ipynb")
    done = book.here("from-notebook", str(path), "one")
    assert done.stdout == "chapters/one.md: cells: 2 added. Now run make record, then make book\n", done.stderr
    text = book.chapter("one").read_text(encoding="utf-8")
    assert "\nMore [words](two.md).\n" in text and text.endswith(":tags: [hide-input]\n\nprint(3)\n```\n")
    assert "[the other page](two.md#the-page-two) and [this](one.md)" in text


def no_code(cells):
    cells[:] = [cell for cell in cells if cell.cell_type == "markdown"]


def picture(cells):
    cells[-2].attachments = {"image.png": {"image/png": "aGk="}}


def own_setup(cells):
    cells[2].source += "\nimport numpy"


@pytest.mark.parametrize(
    "change, name, said",
    [
        (no_code, "one.ipynb", "has no code cell left"),
        (own_setup, "one.ipynb", "the set-up cell was edited"),
        (picture, "one.ipynb", "contains the file image.png"),
        (lambda cells: None, "onee.ipynb", "did you mean one?"),
        (None, "one.ipynb", "No such file"),
        ("words", "one.ipynb", "is not a note"),
    ],
)
def test_what_is_no_edited_chapter_is_refused_and_nothing_is_written(book, change, name, said):
    before, path = book.chapter("one").read_text(encoding="utf-8"), book.root / name
    if callable(change):
        saved(book, change, name)
    elif change:
        path.write_text(change)
    with pytest.raises(Problem, match=said.replace("?", r"\?")):
        unpair(Project(book.root), path)
    assert book.chapter("one").read_text(encoding="utf-8") == before


def test_changes_of_a_chapter_that_git_does_not_hold_are_not_overwritten(book):
    path, chapter = saved(book, change_code), book.chapter("one")
    edit(chapter, "# The page one", "# My words")
    before = chapter.read_text(encoding="utf-8")
    with pytest.raises(Problem, match=r"one.md has changes that git does not hold.* git add chapters/one.md"):
        unpair(Project(book.root), path)
    assert chapter.read_text(encoding="utf-8") == before
    book.git("add", "chapters/one.md")
    unpair(Project(book.root), path)
    assert "print(x + 1)" in chapter.read_text(encoding="utf-8")


@pytest.mark.parametrize("change", [change_code, lambda cells: cells[-1].update(execution_count=3)])
def test_the_notebook_of_a_chapter_is_in_step_again_after_its_edits_were_written_back(book, change):
    project = Project(book.root)
    pair(project)
    saved(book, change, "notebooks/one.ipynb")
    with pytest.raises(Problem, match="make from-notebook NOTEBOOK=notebooks/one.ipynb"):
        pair(project)
    assert book.here("from-notebook", "notebooks/one.ipynb").returncode == 0
    assert pair(project) == []
    edit(book.chapter("one"), "# The page one", "# My words")
    assert pair(project) == [book.root / "notebooks" / "one.ipynb"]
