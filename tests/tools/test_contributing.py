"""Who follows CONTRIBUTING.md to the letter, from a new thread to a chapter, has a page that the build accepts."""

import re
import shutil
from pathlib import Path

import pytest
from scratch import ROOT, Book

NAME = "log-under-a-mask"
TEMPLATE = "tools/chapter_template.md"
OTHERS = {
    "src/helpers/data/threads.toml",
    "_toc.yml",
    "chapters/welcome.md",
    "chapters/messages.toml",
    "tests/site/searches.toml",
}
"""The files that the text names beside the page and its template."""

THREAD = f"""
[[cases]]
key = "{NAME}"
label = "PyTorch forum 1"
url = "https://discuss.pytorch.org/t/log-of-zero/1"
title = "NaN gradient of log under torch.where"
state = "Answered: select before the logarithm."
"""
KEY = {'Case("Fill in: the key of the thread")': f'Case("{NAME}")'}
PAGE = {
    "Fill in: the NaN symptom in the words that people search for (PyTorch and the number)": (
        "NaN gradient from the logarithm of 0 under torch.where, in PyTorch"
    ),
    "Fill in: the symptom, the cause and the fix, in one or two sentences. Search engines show them.": (
        "Why the logarithm of 0 gives a NaN gradient although torch.where discards it."
    ),
    "Fill in: error messages, names of nodes, and words that people search for": (
        "loss is nan after log of zero in where, LogBackward0"
    ),
    "# Fill in: the symptom · the number of the thread": (
        "# NaN gradient from the logarithm of 0 under torch.where · forum 1"
    ),
    'case.claim("select first", "x.grad", x.grad, ...)': 'case.claim("select first", "x.grad", x.grad, [1, 0])',
    'case.claim("vanilla", "x.grad", x.grad, ...)': 'case.claim("vanilla", "x.grad", x.grad, [1, nan])',
    'case.claim("masked", "x.grad", mx.grad, ...)': 'case.claim("masked", "x.grad", mx.grad, [1, MASKED])',
    'case.claim("ignoring", "x.grad", x.grad, ...)': 'case.claim("ignoring", "x.grad", x.grad, [1, 0])',
    '{"vanilla": ..., "masked": ..., "ignoring": ...}': (
        '{"vanilla": "contaminated", "masked": "right", "ignoring": "right"}'
    ),
}
"""What is filled in: the code of the page stays as it was begun, and so do the words that are not listed."""


def section(title: str) -> str:
    """The text below a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


STEPS = section("A chapter")


def fill_in(book: Book, words: dict[str, str]) -> None:
    for old, new in words.items():
        book.edit(f"chapters/{NAME}.md", old, new)


def test_a_new_chapter_by_the_steps_of_the_text_is_built(tmp_path: Path) -> None:
    files = re.findall(r"`([\w/.<>-]+\.(?:py|md|yml|toml))`", STEPS)
    assert set(files) == {"chapters/<name>.md", TEMPLATE, *OTHERS}, "the text names other files than a chapter needs"
    assert all((ROOT / name).is_file() for name in OTHERS)
    commands = list(dict.fromkeys(re.findall(r"`make ([a-z-]+)(?: [A-Z]+=[\w-]+)?`", STEPS)))
    assert commands == ["check", "record", "book", "test"]
    book = Book(tmp_path / "book", {"one": ["print(1)"]})
    shutil.copy(ROOT / TEMPLATE, book.chapter(NAME))
    book.contents("one", NAME)
    book.edit("src/helpers/data/threads.toml", '\n[[points]]\nkey = "notes"', f'{THREAD}\n[[points]]\nkey = "notes"')
    fill_in(book, KEY)
    done = book.here("check", NAME)
    assert done.returncode == 1 and f"chapters/{NAME}.md, code cell 3 (case.claim(" in done.stderr
    assert "fill in what select first gives for x.grad" in done.stderr
    assert "4 later cells failed too" in done.stderr  # claims and the verdict: all other cells run
    fill_in(book, PAGE | {"Fill in: ": "As an example: "})
    for command in ("record", "book"):
        done = book.here(command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "chapters/how-this-book-is-checked.md"]
)
def test_every_command_that_a_text_names_is_there(name):
    targets = re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"))
    named = re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert named and set(named) <= set(targets)
