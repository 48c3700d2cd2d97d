"""What the line over a folded cell says."""

import pytest

from tools.pages.folded import prompt


@pytest.mark.parametrize(
    ("tags", "stated", "line"),
    [
        ({"hide-cell"}, 1, "Checked: 1 result is as stated"),
        ({"hide-cell"}, 3, "Checked: 3 results are as stated"),
        ({"hide-cell", "solution"}, 0, "A solution"),
        ({"hide-cell", "explain"}, 1, "What explain says"),
        ({"hide-cell"}, 0, "Checked by the page"),
    ],
)
def test_the_line_says_what_is_folded(tags, stated, line):
    assert prompt(tags, stated) == line
