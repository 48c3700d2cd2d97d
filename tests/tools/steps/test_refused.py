"""What differs from the record, or is said without being shown, stops every command that would pass over it."""

import json

import pytest
from scratch import Book, copied, edit

from tools.project import write_record
from tools.versions.jax import BOX


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A book whose claims, outputs and numbers are as recorded."""
    claim = "from helpers import Case\n\ncase = Case('10729')\ncase.claim('vanilla', 'x', 1.0, 1.0)"
    chapters = {"one": ["print(6 * 7.5)\n6 / 3"], "two": ["print(1)", "import math\nmath.pi"], "claim": [claim]}
    book = Book(tmp_path_factory.mktemp("made") / "book", chapters)
    words = "# Words\n\nNo number.\n\n[torch#77](https://github.com/pytorch/torch/issues/77)\n\n"
    box = {"code": "print(2)\n", "jax": "1.2", "printed": "2\n"}
    (book.root / "chapters" / "words.md").write_text(words + BOX.format(**box), encoding="utf-8")
    write_record(book.root / "results" / "measured" / "jax.json", {"words": box})
    book.contents("one", "two", "claim", "words")
    for command in ("record", "check"):  # with what is recorded the environment is another, whose outputs are cached
        done = book.here(command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 claims and verdicts held, 3 outputs as recorded" in done.stdout
    return book


OUTPUT = [
    "code cell 1 (print(6 * 8))",
    "  - 45.0\n  + 48\n    2.0\n",
    "1 difference from the record, in one.",
    "make r",
]
CODE = [
    ("one", "6 * 7.5", "6 * 8", OUTPUT),
    ("claim", "case.claim(", "if False: case.claim(", ["no longer states claim · claim"]),
]
WORDS = [
    ("chapters/one.md", "Words of one", "It is 46.0", "check one", "one.md, line 15: 46.0 (It is 46.0.)\n\n1 num"),
    ("chapters/words.md", "No number", "It is 31", "check", "words.md, line 3: 31 ("),
    ("chapters/two.md", "kernelspec:", "kernel:", "notebooks", "these pages are no longer run: two"),
    ("chapters/words.md", "issues/77", "issues/78", "check", "words.md: the text of a link is torch#77, but"),
    ("chapters/words.md", "No number", "See torch#78", "check", "words.md: torch#78 is not in results/threads.txt\n"),
    ("chapters/words.md", "print(2)", "print(3)", "check", "of these pages do not show what was recorded: words;"),
    ("chapters/words.md", "text\n2", "text\n3", "check", "of these pages do not show what was recorded: words;"),
    ("_toc.yml", "  - file: chapters/two\n", "", "notebooks", "these pages are no longer run: two"),
    ("_toc.yml", "two\n  - file: chapters/claim", "claim\n  - file: chapters/two", "notebooks", "have another order"),
]


def assert_refused(made, path, old, new, said, command, *runs):
    path = made.root / path
    before = path.read_bytes()
    edit(path, old, new)
    for run in runs:
        done = run(*command.split())
        assert done.returncode == 1 and all(text in done.stderr for text in said), done.stdout + done.stderr
    path.write_bytes(before)
    assert not made.site.exists()


@pytest.mark.parametrize(("name", "old", "new", "said"), CODE)
def test_other_results_of_a_page_are_refused_also_if_they_come_from_the_cache(made, name, old, new, said):
    assert_refused(made, f"chapters/{name}.md", old, new, said, f"check {name}", made.here, made.here)


@pytest.mark.parametrize(("path", "old", "new", "command", "said"), WORDS)
def test_other_words_than_recorded_are_refused(made, path, old, new, command, said):
    assert_refused(made, path, old, new, [said], command, made.here)


def test_a_change_is_recorded_on_request_unless_a_claim_fails(made, tmp_path):
    book = copied(made.root, tmp_path / "book")
    record = book.root / "results" / "outputs.json"
    before = record.read_bytes()
    book.edit("chapters/two.md", "print(1)", "print(2)")
    book.edit("chapters/claim.md", "'x', 1.0, 1.0", "'x', 1.0, 2.0")
    assert book.here("record").returncode == 1 and record.read_bytes() == before
    book.edit("chapters/claim.md", "'x', 1.0, 2.0", "'x', 1.0, 1.0")
    assert book.here("record").returncode == 0
    assert json.loads(record.read_text(encoding="utf-8"))["pages"]["two"][0]["output"] == ["2"]


def test_a_build_on_another_release_says_that_outputs_were_not_compared(made, tmp_path):
    book = copied(made.root, tmp_path / "book")
    record = book.root / "results" / "outputs.json"
    content = json.loads(record.read_text(encoding="utf-8"))
    content.pop("digest")
    content["made_with"]["torch"] = "2.0.0"
    write_record(record, content)
    book.edit("chapters/two.md", "print(1)", "print(2)")
    book.edit("chapters/two.md", "Words of two.", "It is 99.")
    done = book.here("check")
    assert done.returncode == 0
    said = "outputs and numbers in the text were NOT compared, because they were recorded with {'torch': '2.0.0'"
    assert done.stdout.splitlines()[-1].startswith(said)
