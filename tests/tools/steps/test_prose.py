"""A number in the text of a page is found where the page shows it, or named with its line."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from scratch import Book

from tools.steps.collect import MIME
from tools.steps.prose import unfound


def shows(output: str = "", **data: object) -> dict:
    """An executed code cell."""
    shown = {"output_type": "display_data", "data": data} if data else {"output_type": "stream", "text": output}
    return {"cell_type": "code", "outputs": [shown]}


def numbers(folder: Path, text: str, *cells: dict) -> list[str]:
    """The numbers of a page that are not found, each after its line."""
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    found = unfound(SimpleNamespace(), page, {"cells": [{"cell_type": "markdown"}, *cells]})
    return [each.partition(" (")[0].removeprefix("line ") for each in found]


@pytest.mark.parametrize(
    ("prose", "source"),
    [
        ("It gives 3.9012.", "3.90123"),
        ("It gives 3.9012.", "tensor([3.90116, 1.])"),
        ("It is 19 % too large.", "0.1876"),
        ("It is 19 % too large.", "19.0 %"),
        ("At −1.6w.", "-1.6"),
        ("By 1.6.", "-1.6"),
        ("Above 3 × 10³⁸.", "3.4e+38"),
        ("An eps of 10⁻⁷.", "1e-07"),
        ("In 120,000 steps.", "120000"),
        ("About 537 million.", "536870912.0"),
        ("The fourteen remedies.", "14 columns"),
        ("In 2,000 steps.", "2_000"),
        ("With 2⁻¹²⁸.", "2**-128"),
        ("Nearly 1.25.", "1.245"),
    ],
)
def test_a_number_is_found_to_the_digits_that_it_has(tmp_path, prose, source):
    page = f"# Page\n\n{prose}\n\n```{{code-cell}}\nrun()\n```\n"
    assert numbers(tmp_path, page, shows(source)) == []
    assert len(numbers(tmp_path, page, shows("0"))) == 1


@pytest.mark.parametrize(
    ("prose", "source"),
    [
        ("It gives 3.9112.", "3.90123"),
        ("It is 91 % too large.", "0.19 19"),
        ("It is 19 % too large.", "1.19"),
        ("At −1.6.", "1.6"),
        ("It takes 14 steps.", "14.3 140 1.4"),
        ("Above 3 × 10³⁸.", "3.4e+37"),
        ("In float16 the 17th.", "float17 x17"),
        ("A gradient of 0.0.", "1.0"),
        ("About 5 % of them.", "6"),
        ("About 2.5 %.", "2.6"),  # and no release
    ],
)
def test_another_number_is_not_found(tmp_path, prose, source):
    assert len(numbers(tmp_path, f"# Page\n\n{prose}\n\n```{{code-cell}}\nrun()\n```\n", shows(source))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Two rows, 8 × NaN, in step 12.",
        "See pytorch#10729, issue 4132, [23156](https://x.org/99) and Stack Overflow 43451125.",
        "Since 2.14, from PyTorch 1.11 or Python 3.11, 3.12 and 3.13.7 on; in 2018, on 2026-11-23, by IEEE 754.",
        "doi:10.1145/103162.103163; Surveys 23(1),\n5–48, 1991.",
        "A lecture of 45 minutes.",
        "In `x + 77` it is 77.",
        "> The thread says 0.31.\n\nThat is 0.31.",
        "```console\n$ make it 99\n```\n\nThat makes 99.",
        "[x](a-77.md) and <https://x.org/88>",
    ],
)
def test_some_numbers_need_no_source_or_have_it_in_a_quotation(tmp_path, text):
    assert numbers(tmp_path, f"---\nmyst: 99.9\n---\n# Page\n\n{text}\n") == []


def test_each_number_that_is_not_found_is_named_with_its_line(tmp_path):
    text = "---\na: 1\n---\n# Page 77\n\n- one\n  `x\n  y` and 0.25\n\n| a | b |\n|---|---|\n| 1 | 5 % |\n"
    assert numbers(tmp_path, text) == ["4: 77", "8: 0.25", "12: 5 %"]


def test_a_short_number_must_be_in_its_section_and_a_long_one_anywhere(tmp_path):
    cell = "```{code-cell}\nrun()\n```\n"
    text = f"# Page\n\n## First\n\n{cell}\n### Part\n\nHere 64.\n\n## Second\n\nHere 64, and 0.625.\n"
    assert numbers(tmp_path, text, shows("64 0.625")) == ["15: 64"]


def test_a_claim_is_a_source_with_all_its_digits(tmp_path):
    facts = {"observed": {"entries": ["0.123456789"]}, "expected": {"entries": ["0.123456788"]}, "torch": "9.75"}
    shown = shows(**{"text/plain": "holds: x = 0.12346", MIME: facts})
    text = "# Page\n\nIt is 0.12345679, not 9.75.\n\n```{code-cell}\nrun()\n```\n"
    assert numbers(tmp_path, text, shown) == ["3: 9.75"]


def test_a_table_of_a_record_is_a_source(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.steps.prose._drawn", lambda project, name: f"{name}: 0.25")
    text = "# Page\n\nIt is {}.\n\n```{{measured-costs}}\n```\n"
    assert numbers(tmp_path, text.format(0.25)) == [] and numbers(tmp_path, text.format(0.26)) == ["3: 0.26"]


def test_a_typed_number_stops_the_build_until_a_cell_shows_it(tmp_path):
    book = Book(tmp_path / "book", {"one": ["print(6 * 7.5)"], "two": ["print(2)"]})
    chapter = book.chapter("one")
    words = chapter.read_text(encoding="utf-8")
    (book.root / "chapters" / "three.md").write_text("# Three\n\nIt is 31.\n", encoding="utf-8")
    book.contents("one", "two", "three")
    chapter.write_text(words.replace("Words of one.", "It is 46.0."), encoding="utf-8")
    for command in (["check"], ["book"]):
        done = book.run(*command)
        assert done.returncode == 1 and not book.site.exists()
        assert "chapters/one.md, line 15: 46.0 (It is 46.0.)\nchapters/three.md, line 3: 31 (" in done.stderr
        assert "2 numbers in the text of pages, but in no output" in done.stderr
    assert book.run("check", "two").returncode == 0 and book.run("check", "one").returncode == 1
    chapter.write_text(words.replace("Words of one.", "It is 45.0."), encoding="utf-8")
    assert book.run("check", "one").returncode == 0
