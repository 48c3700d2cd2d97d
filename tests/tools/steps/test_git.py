"""What git holds can be restored from it, and nothing else counts as held."""

import pytest
from scratch import Book, edit

from tools.project import Project
from tools.steps.git import holds

NAME = "notes/a [1].txt"


@pytest.fixture
def book(tmp_path):
    book = Book(tmp_path / "book", {"one": ["print(1)"]})
    (book.root / "notes").mkdir()
    for name in (NAME, "notes/a 1.txt"):  # the second name matches the first as a pattern
        (book.root / name).write_text(f"words of {name}\n", encoding="utf-8")
    book.commit()
    return book


def change(book, path):
    path.write_text("other words\n", encoding="utf-8")


def change_and_stage(book, path):
    change(book, path)
    book.git("add", NAME)


def stage_and_change(book, path):
    change_and_stage(book, path)
    edit(path, "other", "my")


def stage_and_go_back(book, path):
    before = path.read_bytes()
    change_and_stage(book, path)
    path.write_bytes(before)


def hide_and_change(book, path):
    book.git("update-index", "--assume-unchanged", NAME)
    change(book, path)


def no_longer_track(book, path):
    change_and_stage(book, path)
    book.git("rm", "--quiet", "--cached", NAME)


def link(book, path):
    path.unlink()
    path.symlink_to("a 1.txt")


def forget_git(book, path):
    (book.root / ".git").rename(book.root / "elsewhere")


def conflict(book, path):
    book.git("checkout", "--quiet", "-b", "other")
    change(book, path)
    book.commit()
    book.git("checkout", "--quiet", "main")
    path.write_text("my words\n", encoding="utf-8")
    book.commit()
    with pytest.raises(Exception, match="merge"):
        book.git("merge", "other")
    assert "<<<<<<<" in path.read_text(encoding="utf-8")


def take_a_side(book, path):
    conflict(book, path)
    book.git("checkout", "--theirs", "--", NAME)


@pytest.mark.parametrize(
    "do, held",
    [
        (lambda book, path: None, True),
        (change_and_stage, True),
        (stage_and_go_back, True),
        (take_a_side, True),
        (change, False),
        (stage_and_change, False),
        (hide_and_change, False),
        (no_longer_track, False),
        (link, False),
        (conflict, False),
        (forget_git, False),
        (lambda book, path: path.unlink(), False),
    ],
)
def test_a_file_is_held_if_it_is_as_the_last_commit_or_the_index_has_it(book, do, held):
    path = book.root / NAME
    do(book, path)
    assert holds(Project(book.root), path) is held


def test_before_the_first_commit_what_is_staged_is_held(book):
    (book.root / ".git").rename(book.root / "elsewhere")
    book.git("init", "--quiet")
    assert not holds(Project(book.root), book.chapter("one"))
    book.git("add", "chapters")
    assert holds(Project(book.root), book.chapter("one"))
