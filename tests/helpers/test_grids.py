"""A table of measured results."""

import math

import pytest
import torch

from helpers import Since
from helpers.grids import _table, grid


def test_a_result_of_older_releases_stands_below_the_newest():
    cell = Since("2.14", now=0.0, before=Since("2.8", now=1.0, before=math.nan))
    html = _table("a", ["f", "at 0"], [["`f`", cell]]).html()
    assert html.index(">0<") < html.index("before 2.14: ") < html.index(">1<") < html.index("before 2.8: ")
    assert html.rindex("NaN") > html.index("before 2.8: ") and html.count("<br>") == 2


def test_code_is_marked_and_everything_is_escaped():
    html = _table("<a>", ["f"], [["`x < 0` & y"]]).html()
    assert "&lt;a&gt;" in html and "<code>x &lt; 0</code> &amp; y" in html


def test_a_word_is_not_broken():
    html = _table("a", ["f", "dtype"], [["two words", "float16"]]).html()
    assert '<span class="zn-word">float16</span>' in html and "<th" in html and ">two words<" in html


def test_a_number_looks_like_a_result_and_a_text_does_not():
    html = _table("a", ["f", "g"], [["0", torch.tensor([0.0, math.inf])]]).html()
    assert ">0</span></th>" in html and 'class="zn-inf"' in html and 'class="zn-zero"' in html


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="1 cells under 2 headers"):
        grid("a", ["f", "g"], [["f"]])
