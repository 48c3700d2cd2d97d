"""The site is rendered strictly, and only when there is something to render."""

import psutil
import pytest
from scratch import Book, wait_for

from tools.project import Project
from tools.steps.render import Renderer


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})


BROKEN = {
    "[a page](nowhere.md)": "nowhere.md",
    "[a section](one.md#no-such-section)": "no-such-section",
    "{py:func}`helpers.no_such_name`": "helpers.no_such_name",
    "![no such picture](nothing.png)": "nothing.png",
}


def test_every_broken_reference_is_named_and_stops_the_build(book):
    with book.chapter("two").open("a", encoding="utf-8") as file:
        file.write("\n" + "\n\n".join(BROKEN) + "\n")
    done = book.run("book")
    assert done.returncode == 1
    assert "All results reproduce, but Sphinx could not render the site" in done.stderr
    assert "FutureWarning" not in done.stderr
    complaints = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert all("chapters/two.md" in line for line in complaints)
    for name in BROKEN.values():
        assert sum(name in line for line in complaints) == 1, name


def test_a_renderer_that_is_not_needed_goes_away(book):
    with Renderer(Project(book.root)) as renderer:
        process = psutil.Process(renderer._process.pid)
        assert process.is_running()
    assert wait_for(lambda: not process.is_running(), 5)
    assert not book.site.exists()
