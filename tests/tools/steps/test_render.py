"""The site is rendered strictly."""

from scratch import Book

BROKEN = {
    "[a page](nowhere.md)": "nowhere.md",
    "[a section](one.md#no-such-section)": "no-such-section",
    "{py:func}`helpers.no_such_name`": "helpers.no_such_name",
    "![no such picture](nothing.png)": "nothing.png",
}


def test_every_broken_reference_is_named_and_stops_the_build(tmp_path):
    book = Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})
    with book.chapter("two").open("a", encoding="utf-8") as file:
        file.write("\n" + "\n\n".join(BROKEN) + "\n")
    done = book.here("book")
    assert done.returncode == 1
    assert "All results reproduce, but Sphinx could not render the site" in done.stderr
    assert "FutureWarning" not in done.stderr
    complaints = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert all("chapters/two.md" in line for line in complaints)
    for name in BROKEN.values():
        assert sum(name in line for line in complaints) == 1, name
