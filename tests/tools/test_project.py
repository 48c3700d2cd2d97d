"""What is missing is named, and a wrong command is told so."""

import contextlib
import json
import random
import re
from pathlib import Path

import pytest
from scratch import FRONT, ROOT, Book

from tools.__main__ import main
from tools.project import Problem, Project, read_record, write, write_record


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})


@pytest.mark.parametrize(("command", "name"), [("book", "_config.yml"), ("check", "_toc.yml")])
def test_outside_a_checkout_the_error_says_what_is_missing(book, name, command):
    (book.root / name).unlink()
    done = book.here(command)
    assert done.returncode == 1
    assert done.stderr == f"error: {book.root} has no {name}: run the command in the top folder of the checkout\n"


def test_chapters_named_in_the_contents_that_do_not_exist_are_all_named(book):
    book.contents("one", "lost", "two", "gone")
    done = book.here("check")
    assert done.returncode == 1
    assert done.stderr == (
        "error: _toc.yml names files that do not exist: chapters/lost.md, chapters/gone.md; add the files, or remove "
        "their lines\n"
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("claims.json", None, "is missing"),
        ("claims.json", '{"runs": {', "is not valid JSON"),
        ("outputs.json", None, "is missing"),
        ("claims.json", {"runs": {"2.60.0 cpu": {}}, "outcomes": []}, "has no outcomes of PyTorch 2.6.0, which "),
        ("claims.json", '{"runs": {"2.6.0 cpu": {}}, "outcomes": []}', "was edited: "),
        ("measured/costs.json", "[1]", "is not valid JSON"),
    ],
)
def test_a_record_that_lacks_something_stops_the_build_before_any_work(book, name, content, said):
    results = book.root / "results"
    write_record(results / "measured" / "matrix.json", {"rows": [{"torch": "2.6.0"}]})
    write_record(results / "claims.json", {"runs": {"2.6.0 cpu": {}}, "outcomes": []})
    write_record(results / "outputs.json", {"made_with": {}, "pages": {}})
    (results / name).unlink(missing_ok=True)
    if content is not None:
        (write if isinstance(content, str) else write_record)(results / name, content)
    for command in (["book"], ["check", "one"]):
        done = book.here(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"error: {results / name} {said}")


@pytest.mark.parametrize("name", [path.name for path in (ROOT / "results").rglob("*.json") if path.stem != "schema"])
def test_every_edit_of_a_record_is_noticed_and_the_command_that_writes_it_is_named(tmp_path, name):
    (path,), copy = (ROOT / "results").rglob(name), tmp_path / name
    text = path.read_text(encoding="utf-8")
    for digit in random.Random(0).sample([*re.finditer(r"\d", text)], 10):
        changed = text[: digit.start()] + str(9 - int(digit[0])) + text[digit.end() :]
        with contextlib.suppress(ValueError):
            if json.loads(changed) == json.loads(text):
                continue  # a digit beyond those of a float
        copy.write_text(changed, encoding="utf-8")
        with pytest.raises(Problem, match=r"(digest does not fit|not valid JSON).* run `make (\S+)`") as told:
            read_record(copy)
    assert f"\n{re.search('make (.+)`', str(told.value))[1]}: " in (ROOT / "Makefile").read_text(encoding="utf-8")
    write_record(copy, read_record(path), indent=1 if name == "outputs.json" else None)
    assert copy.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["book", "one"], "book takes no names"),
    ],
)
def test_a_wrong_command_is_refused_with_the_usage(monkeypatch, capsys, arguments, told):
    monkeypatch.setattr("sys.argv", ["tools", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert said.startswith("usage: python -m tools") and told in said


BROKEN = {
    "in another encoding": ("# Wörter\n".encode("latin-1"), "not UTF-8: invalid start byte at byte 3"),
    "with a mark before it": (b"\xef\xbb\xbf# Words\n", "byte order mark"),
    "with front matter that is no YAML": (b"---\na: [1\nb: }\n---\n# Words\n", "expected"),
    "with front matter that does not end": (b"---\nkernelspec: x\n# Words\n", "does not end"),
    "with a kernel that is a word": (b"---\nkernelspec: python3\n---\n# Words\n", "a name and a display_name"),
    "with options of a cell that are no YAML": (
        f"{FRONT}\n# Words\n\n```{{code-cell}} ipython3\n---\na: [1\n---\n1\n```\n".encode(),
        "Code cell",
    ),
    "with a cell from another file": (
        f"{FRONT}\n# Words\n\n```{{code-cell}} ipython3\n:load: one.md\n```\n".encode(),
        "loads its code from another file",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_chapter_that_cannot_be_read_is_named_in_one_line_before_anything_runs(book, kind):
    content, told = BROKEN[kind]
    book.chapter("two").write_bytes(content)
    book.append("one", 'open("../ran", "w")')
    done = book.here("book")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "two.md" in done.stderr and told in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
    assert not (book.root / "ran").exists()


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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tow", "no chapter with code is called tow; did you mean two?"),
        ("x", "no chapter with code is called x; the known names are one, two"),
        ("three", "it is not in _toc.yml"),
    ],
)
def test_an_unknown_chapter_is_told_with_those_that_there_are(book, name, told):
    (book.root / "chapters" / "three.md").write_text("# Three\n", encoding="utf-8")
    done = book.here("check", name)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("error: ") and told in done.stderr
