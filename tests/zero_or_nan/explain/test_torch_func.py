"""`explain` does not look into `torch.func`, but names the line of the transform that a NaN came out of."""

import pytest
import torch
from origins import report_of, told
from torch.func import grad, hessian, jacfwd, jacrev, vmap

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's forward mode calls it

POINT = torch.tensor([0.4, -60.0])


def function(x):
    return torch.logaddexp(x / 2 + 1, -2 * x).sum()


def used(number):
    weight = torch.ones(2, requires_grad=True)
    (number * weight).sum().backward()


CASES = {
    "hessian": lambda: hessian(function)(POINT),
    "forward over reverse": lambda: jacfwd(jacrev(function))(POINT),
    "used in a loss": lambda: used(grad(lambda x: grad(function)(x).sum())(POINT)),
    "for each sample": lambda: used(vmap(grad(torch.sqrt))(torch.tensor([1.0, 0.0]))),
}


@pytest.mark.parametrize("case", CASES)
def test_the_line_of_the_transform_is_told(case):
    report = report_of(CASES[case])
    (origin,) = report
    assert any("torch.func" in note for note in report.notes)
    assert (origin.kind, origin.operator) == ("bad input", "torch.func")
    assert origin.operands.endswith(" out of torch.func, which explain can't read") and f'"{case}"' in origin.source
    assert "create_graph=True" in origin.remedy


def test_what_a_transform_or_the_program_leaves_out_is_not_told():
    x = torch.tensor([1.0, 0.0])

    def inside(x):
        slope = grad(lambda x: x.sqrt().sum())(x)
        return torch.where(slope.isfinite(), slope, 0).sum()

    def outside():
        slope = grad(lambda x: x.sqrt().sum())(x)
        used(torch.where(slope.isfinite(), slope, 0))

    for program in (outside, lambda: inside(x), lambda: grad(inside)(x + 1), lambda: vmap(inside)(x[:, None])):
        assert report_of(program).ok


def test_the_same_line_inside_of_a_transform_and_outside():
    """The tensors of a transform have no memory to ask for."""

    def loss_of(x):
        return torch.where(x > 9, x, (x - x.detach()).sqrt()).mean()

    x = torch.ones(3, 2, requires_grad=True)
    report = report_of(lambda: [vmap(grad(loss_of))(x.detach()), loss_of(x).backward()])
    assert told(report) == [("undefined", "backward", "sqrt")]
