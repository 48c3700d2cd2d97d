"""The list of nodes agrees with PyTorch: with the classes that it has, and with the graphs that it makes."""

import re
from unittest.mock import Mock

import pytest
import torch
from bs4 import BeautifulSoup

from helpers.advice import listed, node_names
from helpers.nodes import Node, _known, node, nodes

EVERY = nodes()


def test_every_class_with_a_derivative_has_a_node_and_nothing_else_has():
    classes = {name for name in dir(torch._C._functions) if "Backward" in name}
    assert set(EVERY) == classes and len(classes) > 500
    assert {name for name, node in EVERY.items() if not node.operator} == {
        "CopyBackwards", "SendRpcBackward", "UndefinedGradBackward"
    }  # fmt: skip


def test_every_operator_exists_and_has_the_inputs():
    for each in EVERY.values():
        given = [argument.name for argument in each.arguments if argument.name in each.inputs]
        assert list(each.inputs) == given and bool(given) is bool(each.operator), each


X, Y = torch.full((2, 2), 0.5, requires_grad=True), torch.full((2, 2), 1.5, requires_grad=True)


def test_the_formulas_are_those_of_the_file():
    assert node("WhereBackward0").formulas == {
        "self": "where(condition, grad, 0)",
        "other": "where(condition, 0, grad)",
    }
    assert node("SumBackward0").formulas == {"self": "grad.expand_symint(self.sym_sizes())"}
    assert node("IndexPutBackward0").formulas["self"].startswith("accumulate ? grad")  # without its quotes
    assert node("ClampBackward0").inputs == ("self", "min", "max")
    assert node("CopySlices").formulas == {} == node("AccumulateGrad").formulas


@pytest.mark.parametrize("error", [ModuleNotFoundError, FileNotFoundError])
def test_a_pytorch_without_the_file_has_names_alone(monkeypatch, error):
    monkeypatch.setattr("helpers.nodes.files", Mock(side_effect=error))
    _known.cache_clear()
    try:
        assert node("ExpBackward0") == Node("ExpBackward0")
    finally:
        _known.cache_clear()


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_the_output_that_anomaly_mode_counts_is_the_input_of_that_number():
    base, exponent = torch.tensor(-2.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    with pytest.raises(RuntimeError) as caught, torch.autograd.detect_anomaly():
        (base**exponent).backward()
    name, number = re.search(r"'(\w+)' returned nan values in its (\d)th", str(caught.value)).groups()
    assert EVERY[name].inputs[int(number)] == "exponent"


def test_the_function_is_one_that_python_has():
    assert EVERY["PowBackward1"].function == "torch.pow"
    assert EVERY["LinalgEighBackward0"].function == "torch.linalg.eigh"
    assert EVERY["LogSoftmaxBackward0"].function == "torch.log_softmax"
    assert EVERY["MaskedFillBackward0"].function == "torch.masked_fill" and EVERY["GeluBackward0"].function == "F.gelu"
    assert Node("A", "special_i0e").function == "torch.special.i0e"
    assert Node("A", "no_such_operator").function == "aten::no_such_operator" and Node("A").function == ""


def test_nodes_with_advice_come_first_and_all_others_are_folded_by_their_answers(capsys):
    names = ("CopyBackwards", "CumprodBackward0", "ErfBackward0", "AddmmBackward0", "MmBackward0")
    soup = BeautifulSoup(listed({name: EVERY[name] for name in names}, {"AddmmBackward0": ["F.linear"]}), "html.parser")
    folded = soup.select("details li > div[data-fallback]")
    assert [row.get_text() for row in folded] == [
        "ErfBackward0 torch.erf; outputs: 0 self",
        "CumprodBackward0 torch.cumprod; outputs: 0 self; saved: result, self",
        "CopyBackwards ",
    ]
    said = [item.p.get_text().split()[0] for item in soup.select("details li")]
    assert said == ["Yes:", "Perhaps:", "Not"] and all("See " in item.get_text() for item in soup.select("details li"))
    (first,) = soup.select("ul:not(details ul) > li")
    assert [(row["id"], row.get_text()) for row in first("div")] == [
        ("node-AddmmBackward0", "AddmmBackward0 torch.addmm; also F.linear; outputs: 0 self, 1 mat1, 2 mat2"),
        ("node-MmBackward0", "MmBackward0 torch.mm; outputs: 0 self, 1 mat2"),
    ]
    assert [line.get_text() for line in first("p", recursive=False)] == [
        "Yes: it multiplies by a number of the forward pass, and 0 times NaN or inf is NaN.",
        "Fix: Filter NaN from inputs and targets before the layer. If activations are inf, find where they grow. "
        "See slicing nan · attention with a fully masked row.",
    ]
    assert first.a["href"].endswith("/slicing-nan.html#what-to-do")
    assert soup.summary.get_text().startswith("The 3 other nodes of PyTorch ")
    node_names()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(EVERY) and "PowBackward1: self, exponent of pow.Tensor_Tensor" in lines
