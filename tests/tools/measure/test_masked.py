"""Which operators a MaskedTensor has: the record is what this PyTorch does, and a wrong result is called wrong."""

import json

import pytest
import torch
from bs4 import BeautifulSoup
from scratch import ROOT

from tools.measure import masked
from tools.measure.masked import NONE, OPERATORS, WORKS, WRONG, Operator, each, measured

ALL = [operator for group in OPERATORS.values() for operator in group]


def test_the_record_is_what_this_pytorch_does():
    recorded = masked.recorded(json.loads((ROOT / "results" / "measured" / "masked.json").read_text(encoding="utf-8")))
    outcomes = recorded.get(torch.__version__.partition("+")[0])
    if outcomes is None:
        pytest.skip("this PyTorch isn't recorded")
    assert {operator.code: list(measured(operator)) for operator in ALL} == outcomes


@pytest.mark.parametrize(
    ("operator", "outcome"),
    [
        (Operator("x.exp()", each(torch.expm1)), (WRONG, WRONG)),
        # The values are right, the gradient is not: half of it is detached.
        (Operator("x + x.detach()", each(lambda x: 2 * x)), (WORKS, WRONG)),
        (Operator("x > 0.4", each(lambda x: x > 0.7)), (WRONG, NONE)),
        # The result has masked elements too; the gradient is masked where the data are.
        (Operator("x.get_data()", each(lambda x: x)), (WRONG, WORKS)),
    ],
)
def test_a_result_or_a_gradient_other_than_its_reference_is_wrong(operator, outcome):
    assert measured(operator) == outcome


def test_the_tables_have_an_outcome_or_one_for_each_span_of_releases(monkeypatch, project):
    few = {"Some <words>": tuple(Operator(code, None) for code in ("x.exp()", "x > 0", "x.clamp(max=1)"))}
    monkeypatch.setattr(masked, "OPERATORS", few)
    old = {"x.exp()": ["works", "works"], "x > 0": ["works", "no gradient"], "x.clamp(max=1)": ["works", "works"]}
    new = {**old, "x.clamp(max=1)": ["works", "RecursionError"]}
    for release, outcomes in {"2.6.0": old, "2.7.0": old, "2.8.0": new}.items():
        path = masked.add(project, release, outcomes)
    soup = BeautifulSoup(masked.shown(json.loads(path.read_text(encoding="utf-8"))), "html.parser")
    found = [[cell.get_text(" ", strip=True) for cell in row.find_all(["th", "td"])] for row in soup.tbody("tr")]
    assert found[:2] == [["x.exp()", "works", "works"], ["x > 0", "works", "no gradient"]]
    assert found[2] == ["x.clamp(max=1)", "works", "works (2.6 and 2.7) raises RecursionError (2.8)"]
    assert soup.caption.get_text(strip=True).startswith("Some <words>: 2 of 3 work on PyTorch 2.8.0")
