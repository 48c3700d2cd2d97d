"""The small tables: a control's samples, measured results, and the card of the library."""

import json
import re
from html import unescape
from math import inf, nan

import pytest
import torch

import zero_or_nan
from helpers import Since, control, library_card, recorded, what_counts
from helpers.grids import grid


def test_a_control_shows_its_samples_and_gives_the_very_numbers_to_the_browser(shown):
    x = torch.tensor([1.0, 100.0, -0.1])
    columns = {"precision": ["float32"] * 3, "x": x, "exp(x)": x.exp(), "0·exp(x)": 0 * x.exp()}
    control("try", "a < b", columns)
    html = shown[0].html()
    samples = json.loads(unescape(re.search(r'data-samples="([^"]*)"', html)[1]))
    for head in ("x", "exp(x)", "0·exp(x)"):
        back = torch.tensor([float(sample[head]) for sample in samples])
        assert torch.equal(back.nan_to_num(7), columns[head].nan_to_num(7)), head
    assert samples[1] == {"precision": "float32", "x": "100", "exp(x)": "inf", "0·exp(x)": "NaN"}
    assert '<div data-control="try"' in html and "<caption>a &lt; b</caption>" in html and html.count("<tr") == 4
    assert '<span class="zn-nan">NaN</span>' in html and ">2.718282<" in html and shown[0].json() is None
    with pytest.raises(ValueError, match="{'x': 2, 'y': 1}"):
        control("try", "caption", {"x": torch.ones(2), "y": ["1"]})


def test_a_grid_shows_the_result_of_older_releases_below_the_newest(shown):
    cell = Since("2.14", now=0.0, before=Since("2.8", now=1.0, before=nan))
    grid("a", ["f", "at 0"], [["`f`", cell]])
    html = shown[0].html()
    assert html.index(">0<") < html.index("before 2.14: ") < html.index(">1<") < html.index("before 2.8: ")
    assert html.rindex("NaN") > html.index("before 2.8: ") and html.count("<br>") == 2


def test_a_grid_marks_code_and_results_escapes_everything_and_breaks_no_word(shown):
    grid("<a>", ["f", "g", "dtype"], [["`x < 0` & y", torch.tensor([0.0, inf]), "float16"], ["0", "two words", ""]])
    html = shown[0].html()
    assert "&lt;a&gt;" in html and "<code>x &lt; 0</code> &amp; y" in html and ">two words<" in html
    assert '<span class="zn-word">float16</span>' in html and ">0</span></th>" in html
    assert 'class="zn-inf"' in html and 'class="zn-zero"' in html
    with pytest.raises(ValueError, match="1 cells under 2 headers"):
        grid("a", ["f", "g"], [["f"]])


def test_what_counts_of_an_input_is_shown_beside_pytorchs_gradient(shown):
    relu = ("relu(y)", torch.relu, "below <0>", [2.0, -1.0], [-5.0, -inf])
    exp = ("exp(y)", torch.exp, "anything", [2.0, 1.0], [0.5])
    same = ("2 y", lambda y: 2 * y, "the same number", [2.0, 1.0], [1.0])
    used, counts = what_counts([relu, exp, same])
    assert used.tolist() == counts.tolist() == [False, True, True]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", shown[0].html())
    cells = [re.sub("<[^>]*>", " ", row).split() for row in rows[1:3]]
    assert cells == ["relu(y) below &lt;0&gt; -5, -inf 0 ignored".split(), "exp(y) anything 0.5 2.7183 used".split()]


def record(torch, device="cpu"):
    return {"torch": torch, "device": device, "outcomes": []}


def test_the_card_of_the_library_names_the_devices_that_are_recorded(monkeypatch, shown):
    for records, said in (
        ([record("2.6.0"), record("2.7.0"), record("2.8.0")], "PyTorch 2.6 to 2.8 on CPU."),
        ([record("2.6.0"), record("2.7.0", "cuda")], "PyTorch 2.6 on CPU; PyTorch 2.7 on CUDA."),
        ([], "no release."),
    ):
        monkeypatch.setattr(recorded, "records", lambda records=records: tuple(records))
        library_card()
        first, second = shown[-1].text().splitlines()
        assert first.startswith(f"zero_or_nan {zero_or_nan.__version__}, ") and f" {said} Tables" in second
        assert first in shown[-1].html() and second in shown[-1].html()
