"""What git holds can be restored from it, and nothing else counts as held."""

import subprocess

import pytest
from scratch import Book

from tools.project import Project
from tools.steps.git import holds

NAME = "notes/a [1].txt"
STAGED = 'echo other > "$F"; git add "$F"'
CONFLICT = (
    'git checkout -qb other; echo other > "$F"; git commit -qam x; git checkout -q main; echo my > "$F"; '
    'git commit -qam y; ! git merge -q other; grep -q "<<<<<<<" "$F"'
)


@pytest.fixture
def book(tmp_path):
    book = Book(tmp_path / "book", {"one": ["print(1)"]})
    (book.root / "notes").mkdir()
    for name in (NAME, "notes/a 1.txt"):  # the second name matches the first as a pattern
        (book.root / name).write_text(f"words of {name}\n", encoding="utf-8")
    book.commit()
    for setting in ("user.name A", "user.email a@example.org", "commit.gpgsign false"):
        book.git("config", *setting.split())
    return book


@pytest.mark.parametrize(
    "do, held",
    [
        ("true", True),
        (STAGED, True),
        (f'{CONFLICT}; git checkout -q --theirs -- "$F"', True),
        ('echo other > "$F"', False),
        (f'{STAGED}; echo more > "$F"', False),
        ('git update-index --assume-unchanged "$F"; echo other > "$F"', False),
        (f'{STAGED}; git rm -q --cached "$F"; git add --intent-to-add "$F"', False),
        ('ln -sf "a 1.txt" "$F"', False),
        (CONFLICT, False),
        ("mv .git elsewhere", False),
    ],
)
def test_a_file_is_held_if_it_is_as_the_last_commit_or_the_index_has_it(book, do, held):
    subprocess.run(["sh", "-ec", do], cwd=book.root, env={**book.environment, "F": NAME}, check=True)
    assert holds(Project(book.root), book.root / NAME) is held
