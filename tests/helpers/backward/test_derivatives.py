from importlib import resources

import pytest
import torch

from helpers.backward import derivatives
from helpers.backward.derivatives import formulas

pytestmark = pytest.mark.skipif(
    not resources.files("torchgen").joinpath("packaged/autograd/derivatives.yaml").is_file(),
    reason="this PyTorch comes without derivatives.yaml",
)


def test_the_formulas_are_those_of_the_file():
    assert formulas("ExpBackward0") == {"self": "grad * result.conj()"}
    assert formulas("WhereBackward0") == {"self": "where(condition, grad, 0)", "other": "where(condition, 0, grad)"}
    assert formulas("SqrtBackward0") == {"self": "grad / (2 * result.conj())"}
    assert formulas("SumBackward0") == {"self": "grad.expand_symint(self.sym_sizes())"}  # of the default dispatch key
    assert formulas("IndexPutBackward0")["self"].startswith("accumulate ? grad")  # without its quotes


def test_a_key_of_several_arguments_is_the_formula_of_each():
    both = formulas("ClampBackward0")
    assert list(both) == ["self", "min", "max"] and both["min"] == both["max"] != both["self"]


def test_nodes_are_numbered_as_pytorch_numbers_them():
    """Whatever a node saves under a name is an argument or a result of its function."""
    kinds = {name: getattr(torch._C._functions, name) for name in dir(torch._C._functions) if name[-1] == "0"}
    named = {name for name in kinds if "Backward" in name and "Nested" not in name and "Autograd" not in name}
    assert len(named) > 300
    assert len(named - set(derivatives._all())) <= 3, named - set(derivatives._all())
    x = torch.ones(2, 2, requires_grad=True)
    made = {
        "MulBackward0": x * x,
        "DivBackward0": x / 2,
        "PowBackward0": x**2,
        "PowBackward1": x**x,
        "ClampBackward1": x.clamp(max=1),
        "MaxBackward0": x.max(0).values,
        "MaxBackward1": x.max(),
        "SumBackward1": x.sum(0),
        "AddmmBackward0": torch.addmm(x, x, x),
    }
    for name, tensor in made.items():
        assert tensor.grad_fn.name() == name
        assert len(formulas(name)) <= len(tensor.grad_fn.next_functions)


def test_a_node_that_is_not_in_the_file_has_none():
    assert formulas("CopySlices") == {} == formulas("AccumulateGrad")


@pytest.mark.parametrize("error", [ModuleNotFoundError, FileNotFoundError])
def test_a_pytorch_without_the_file_has_none(monkeypatch, error):
    def missing(name):
        raise error

    monkeypatch.setattr(derivatives.resources, "files", missing)
    derivatives._all.cache_clear()
    try:
        assert formulas("ExpBackward0") == {}
    finally:
        derivatives._all.cache_clear()
