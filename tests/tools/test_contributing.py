"""Who follows CONTRIBUTING.md to the letter, from a new thread to a chapter, has a page that the build accepts."""

import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from jupyter_cache import get_cache
from scratch import ROOT, Book, copied, edit

from tools.project import Project
from tools.steps.environment import cache_folder
from tools.steps.read import read

NAME, QUERY = "log-under-a-mask", "loss is nan after log of zero in where"

TEMPLATE = "tools/chapter_template.md"
THREAD = f"""    Thread(
        "{NAME}",
        "PyTorch forum 1",
        "NaN gradient of log under torch.where",
        "https://discuss.pytorch.org/t/log-of-zero/1",
        "Answered: select before the logarithm.",
    ),
"""
LINE = "      - file: chapters/not-your-case\n"
EDITS = {
    "src/helpers/threads.py": {'\n)\n"""Every': f'\n{THREAD})\n"""Every'},
    "_toc.yml": {LINE: f"      - file: chapters/{NAME}\n        title: log under a mask\n{LINE}"},
    "chapters/welcome.md": {"|---|---|\n": f"|---|---|\n| The loss is NaN after `log` | [Log of zero]({NAME}.md) |\n"},
    "tests/site/test_search.py": {"\nQUERIES = {\n": f'\nQUERIES = {{\n    "{QUERY}": ("{NAME}", 8),\n'},
}
"""What is changed in every file that the text names, besides the page."""

KEY = {'Case("Fill in: the key of the thread")': f'Case("{NAME}")'}
PAGE = {
    "Fill in: the NaN symptom in the words that people search for (PyTorch and the number)": (
        "NaN gradient from the logarithm of 0 under torch.where, in PyTorch"
    ),
    "Fill in: the symptom, the cause and the fix, in one or two sentences. Search engines show them.": (
        "Why the logarithm of 0 gives a NaN gradient although torch.where discards it."
    ),
    "Fill in: error messages, names of nodes, and words that people search for": f"{QUERY}, LogBackward0",
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


def fill_in(path: Path, words: dict[str, str]) -> None:
    for old, new in words.items():
        edit(path, old, new)


@pytest.fixture
def checkout(site: Path, tmp_path: Path) -> Book:
    """A copy of this checkout, in which make finds an environment that is set up."""
    book = copied(ROOT, tmp_path / "checkout")
    shutil.copytree(ROOT / "tests", book.root / "tests", ignore=shutil.ignore_patterns("node_modules"))
    python = book.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    python.with_name(".ready").touch()
    return book


def run(book: Book, *command: str, status: int = 0) -> str:
    done = subprocess.run(command, cwd=book.root, env=book.environment, text=True, capture_output=True)
    assert done.returncode == status, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def keep_outputs(book: Book, before: Path, *pages: str) -> Path:
    """Take the outputs of all pages but these for new, to save their time: their sources did not change.

    Threads and claims are a part of what outputs depend on. So a build would run every page again.
    """
    folder = cache_folder(Project(book.root))
    assert folder != before
    before.rename(folder)
    cache = get_cache(folder)
    for name in pages:
        with suppress(KeyError):  # the new page, which was not run yet
            cache.remove_cache(cache.match_cache_notebook(read(book.chapter(name))).pk)
    return folder


@pytest.mark.timeout(3600)  # two builds: on a loaded machine many times their usual minutes
def test_a_new_chapter_by_the_steps_of_the_text_is_built_and_passes_the_tests_of_its_page(checkout):
    root = checkout.root
    outputs = cache_folder(Project(root))
    files = re.findall(r"`([\w/.<>-]+\.(?:py|md|yml))`", STEPS)
    assert set(files) == {"chapters/<name>.md", TEMPLATE, *EDITS}, "the text names other files than a chapter needs"
    commands = list(dict.fromkeys(re.findall(r"`make ([a-z-]+)(?: [A-Z]+=[\w-]+)?`", STEPS)))
    assert commands == ["check", "record", "book", "test"]
    page = checkout.chapter(NAME)
    shutil.copy(root / TEMPLATE, page)
    for path, words in EDITS.items():
        fill_in(root / path, words)
    # The page that lists the threads is run again, and after the record the new page too.
    outputs = keep_outputs(checkout, outputs, "references")
    fill_in(page, KEY)
    said = run(checkout, "make", "check", f"CHAPTER={NAME}", status=2)
    assert f"chapters/{NAME}.md, code cell 3 (case.claim(" in said
    assert "fill in what select first gives for x.grad" in said
    assert "4 later cells failed too" in said  # claims and the verdict: all other cells run
    fill_in(page, PAGE)
    page.write_text(page.read_text(encoding="utf-8").replace("Fill in: ", "As an example: "), encoding="utf-8")
    run(checkout, "make", "record")
    keep_outputs(checkout, outputs, "references", NAME)
    run(checkout, "make", "book")
    tests = ("tests/chapters", "tests/helpers/test_threads.py", "-k", f"{NAME} or thread")  # those about one page alone
    run(checkout, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests)


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "chapters/how-this-book-is-checked.md"]
)
def test_every_command_that_a_text_names_is_there(name):
    targets = re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"))
    named = re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert named and set(named) <= set(targets)
