"""A number in the text of a page is found where the page shows it, or named with its line."""

from types import SimpleNamespace

import pytest

from tools.steps.collect import MIME
from tools.steps.prose import unfound

CELL = "```{code-cell}\nrun()\n```\n"


def numbers(folder, text, *outputs):
    """The numbers of a page that are not found, each after its line. Each code cell has one output, a text or data."""
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    cells = [{"cell_type": "code", "outputs": [{"text": o} if isinstance(o, str) else {"data": o}]} for o in outputs]
    found = unfound(SimpleNamespace(), page, {"cells": [{"cell_type": "markdown"}, *cells]})
    return [each.partition(" (")[0].removeprefix("line ") for each in found]


@pytest.mark.parametrize(
    ("prose", "found", "other"),
    [
        ("It gives 3.9012.", "3.90123 or tensor([3.90116, 1.])", "3.9112"),
        ("It is 19 % too large.", "0.1876 or 19.0", "0.91 1.19"),
        ("At −1.6w.", "-1.6", "1.6"),
        ("By 1.6.", "-1.6", "-1.7 16"),
        ("Above 3 × 10³⁸.", "3.4e+38", "3.4e+37"),
        ("An eps of 10⁻⁷.", "1e-07", "1e-08"),
        ("In 120,000 steps.", "120000", "120 000"),
        ("In 2,000 steps.", "2_000", "2.000"),
        ("With 2⁻¹²⁸.", "2**-128", "2**128"),
        ("Nearly 1.25.", "1.245", "1.26"),
        ("It takes 14 steps.", "14.0", "14.3 140 x14 0.14"),
        ("The 17th gradient of 0.", "17", "float17"),
        ("A gradient of 0.0.", "0", "1.0"),
        ("About 2.6 %.", "2.6", "2.7"),  # no release
        ("As pytorch#10729 says.", "[a](https://x.org/10729)", "10728"),
    ],
)
def test_a_number_is_found_to_the_digits_that_it_has(tmp_path, prose, found, other):
    page = f"# Page\n\n{prose}\n\n{CELL}"
    assert all(numbers(tmp_path, page, source) == [] for source in found.split(" or "))
    assert len(numbers(tmp_path, page, other)) == 1


def test_some_numbers_need_no_source_or_have_it_in_a_quotation(tmp_path):
    text = """\
Two rows, 8 × NaN, in step 12. In `x + 77` it is 77. [23156](https://x.org/23156-in-97) A lecture of 45 minutes.
Since 2.14, from PyTorch 1.11 or Python 3.11, 3.12 and 3.13.7 on; in 2018, on 2026-11-23, by IEEE 754.
doi:10.1145/103162.103163 <https://x.org/103162.103163/10.1145> Surveys 23(1),\n5–48, 1991.

> The thread says 0.31.

That is 0.31, and makes 99.

```console
$ make it 99
```
"""
    assert numbers(tmp_path, f"---\nmyst: 99.9\n---\n# Page\n\n{text}\n(since-77-5)=\n## Next\n") == []


def test_a_number_is_named_with_its_line_unless_its_section_has_it_or_it_is_long_and_the_page_has_it(tmp_path):
    text = "---\na: 1\n---\n# Page 77\n\n- one\n  `x\n  y` and 0.25\n\n| a | b |\n|---|---|\n| 1 | 5 % |\n"
    assert numbers(tmp_path, text) == ["4: 77", "8: 0.25", "12: 5 %"]
    text = f"# Page\n\n## First\n\n{CELL}\n### Part\n\nHere 64.\n\n## Second\n\nHere 64, and 0.625.\n\n{CELL}"
    assert numbers(tmp_path, text, "64 0.625", "") == ["15: 64"] and numbers(tmp_path, text, "0.625", "64") == [
        "11: 64"
    ]


def test_a_claim_with_all_its_digits_and_a_table_of_a_record_are_sources(tmp_path, monkeypatch):
    facts = {"observed": {"entries": ["0.123456789"]}, "expected": {"entries": ["0.1234567"]}, "torch": "9.75"}
    shown = {"text/plain": "holds: x = 0.12346", MIME: facts}
    assert numbers(tmp_path, f"It is 0.12345679, not 9.75.\n\n{CELL}", shown) == ["1: 9.75"]
    monkeypatch.setattr("tools.steps.prose._drawn", lambda project, name: f"{name}: 0.25")
    assert numbers(tmp_path, "It is 0.25, not 0.26.\n\n```{measured-costs}\n```\n") == ["1: 0.26"]
