"""The tables of operators of masked tensors: an outcome, or one for each span of releases."""

import json
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup

from tools.measure import masked as measure
from tools.measure.masked import Operator


@pytest.fixture
def soup(monkeypatch, tmp_path):
    few = {"Some <words>": tuple(Operator(code, None) for code in ("x.exp()", "x > 0", "x.clamp(max=1)"))}
    monkeypatch.setattr(measure, "OPERATORS", few)
    old = {"x.exp()": ["works", "works"], "x > 0": ["works", "no gradient"], "x.clamp(max=1)": ["works", "works"]}
    new = {**old, "x.clamp(max=1)": ["works", "RecursionError"]}
    for release, outcomes in {"2.6.0": old, "2.7.0": old, "2.8.0": new}.items():
        path = measure.add(SimpleNamespace(root=tmp_path, results=tmp_path), release, outcomes)
    return BeautifulSoup(measure.shown(json.loads(path.read_text(encoding="utf-8"))), "html.parser")


def test_each_operator_has_a_row_with_its_outcomes(soup):
    rows = [[cell.get_text(" ", strip=True) for cell in row.find_all(["th", "td"])] for row in soup.tbody("tr")]
    assert rows[:2] == [["x.exp()", "works", "works"], ["x > 0", "works", "no gradient"]]
    assert rows[2][:2] == ["x.clamp(max=1)", "works"]
    assert rows[2][2] == "works (2.6 and 2.7) raises RecursionError (2.8)"


def test_the_caption_counts_what_works_on_the_newest_release(soup):
    assert soup.caption.get_text(strip=True).startswith("Some <words>: 2 of 3 work on PyTorch 2.8.0")
