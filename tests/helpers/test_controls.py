"""A control shows the samples that its cell computed, and gives the very numbers to the browser."""

import json
import re
from html import unescape

import pytest
import torch

from helpers import control
from helpers.controls import Control

nan, inf = float("nan"), float("inf")


def made():
    x = torch.tensor([1.0, 100.0, -0.1])
    return Control("try", "a < b", {"precision": ["float32"] * 3, "x": x, "exp(x)": x.exp(), "0·exp(x)": 0 * x.exp()})


def test_the_samples_give_the_very_numbers_back():
    samples = json.loads(unescape(re.search(r'data-samples="([^"]*)"', made().html())[1]))
    assert [sample["precision"] for sample in samples] == ["float32"] * 3
    for head, column in list(made().columns.items())[1:]:
        back = torch.tensor([float(sample[head]) for sample in samples])
        assert torch.equal(back.nan_to_num(7), column.nan_to_num(7)), head
    assert samples[1] == {"precision": "float32", "x": "100", "exp(x)": "inf", "0·exp(x)": "NaN"}


def test_the_table_shows_every_sample_with_its_kind():
    html = made().html()
    assert '<div data-control="try"' in html and "<caption>a &lt; b</caption>" in html
    assert html.count("<tr") == 4
    assert '<span class="zn-nan">NaN</span>' in html and '<span class="zn-inf">inf</span>' in html


def test_numbers_are_shown_with_seven_digits():
    third = Control("try", "a third", {"x": torch.tensor([1 / 3], dtype=torch.float64)})
    assert ">0.3333333<" in third.html() and third.text().splitlines()[-1] == "0.3333333"


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="{'x': 2, 'y': 1}"):
        control("try", "caption", {"x": torch.ones(2), "y": ["1"]})


def test_it_is_for_the_page_alone(capsys):
    assert made().json() is None
    control("try", "caption", {"x": torch.ones(1)})
    assert capsys.readouterr().out == "caption\nx\n1\n"
