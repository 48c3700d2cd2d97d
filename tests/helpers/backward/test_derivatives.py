"""The figure quotes PyTorch's own formula for each node, or none where PyTorch has none."""

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

    both = formulas("ClampBackward0")
    assert list(both) == ["self", "min", "max"] and both["min"] == both["max"] != both["self"]
    assert formulas("CopySlices") == {} == formulas("AccumulateGrad")


def test_nodes_are_numbered_as_pytorch_numbers_them():
    kinds = {name for name in dir(torch._C._functions) if name[-1] == "0" and "Backward" in name}
    named = {name for name in kinds if "Nested" not in name and "Autograd" not in name}
    assert len(named) > 300 and len(named - set(derivatives._all())) <= 3, named - set(derivatives._all())
    x = torch.ones(2, 2, requires_grad=True)
    for tensor in (x**2, x**x, x.clamp(max=1), x.max(0).values, x.max(), x.sum(0), torch.addmm(x, x, x)):
        assert 0 < len(formulas(tensor.grad_fn.name())) <= len(tensor.grad_fn.next_functions)


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
