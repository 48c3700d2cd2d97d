"""At a tie the kind follows PyTorch's convention, and the report says so. It says nothing of the kind elsewhere."""

import pytest
import torch
import torch.nn.functional as F
from origins import report_of
from tensors import leaf

ZEROS = torch.zeros(2)

IGNORES = {
    "relu": F.relu,
    "hardtanh": lambda y: F.hardtanh(y, 0, 1),
    "of a view": lambda y: y[:, None].relu(),
    "of a product": lambda y: (-2 * y / 3).relu(),
}
CLAMPS = {
    "clamp": lambda y: y.clamp(0, 3),
    "clamp_min": lambda y: y.clamp_min(0),
    "clamp_max": lambda y: y[:1].clamp_max(0),
}
USES = {}
(IGNORES if torch.__version__ >= (2, 14) else USES).update(CLAMPS)  # pytorch#191142
CHOOSES = {
    "max": lambda y: torch.stack([ZEROS, y]).max(0).values,
    "sort": lambda y: torch.stack([ZEROS, y]).sort(0).values[1],
    "max_pool1d": lambda y: F.max_pool1d(torch.stack([ZEROS, y]).T[None], 2),
}
SHARES = {
    "maximum": lambda y: torch.maximum(y, ZEROS),
    "amax": lambda y: torch.stack([ZEROS, y]).amax(0),
    "max of all": lambda y: torch.cat([-y[:1], ZEROS]).max(),
}
NO_TIE = {
    "below the kink": lambda y: (y - 1).relu(),
    "hidden by where": lambda y: torch.where(y > 0, y, 0),
    "of a sum": lambda y: (y + 1).clamp_max(0.5),
    "not at its end": lambda y: y.clamp(-1, 5),
    "abs": torch.abs,
    "used elsewhere too": lambda y: y + y.relu(),
}


def reported(function):
    x = leaf(0.0, 4.0)
    (origin,) = report_of(lambda: function(x.sqrt()).sum().backward())
    assert origin.operator == "sqrt"
    return origin


def slope_at_0(function):
    y = leaf(0.0, 1.0)
    function(y).sum().backward()
    return abs(y.grad[0].item())


@pytest.mark.parametrize("name", IGNORES)
def test_a_slope_of_0_at_a_kink(name):
    origin = reported(IGNORES[name])
    assert origin.kind == "contaminated" and origin.fixed and slope_at_0(IGNORES[name]) == 0
    assert "does not use the element, and maximum does" in origin.means
    assert "the gradient that you want exists" not in str(origin)


@pytest.mark.parametrize("name", USES)
def test_a_slope_of_1_at_a_kink(name):
    origin = reported(USES[name])
    assert origin.kind == "undefined" and slope_at_0(USES[name]) == 1
    assert f"by PyTorch's convention {name} uses the element, and relu does not" in origin.means


@pytest.mark.parametrize("name", CHOOSES)
def test_one_of_equal_elements(name):
    origin = reported(CHOOSES[name])
    assert "perhaps at a tie: of equal elements" in origin.means and "takes one" in origin.means
    assert "the gradient that you want exists" not in str(origin) and slope_at_0(CHOOSES[name]) in (0, 1)


@pytest.mark.parametrize("name", SHARES)
def test_all_equal_elements(name):
    origin = reported(SHARES[name])
    assert origin.kind == "undefined" and 0 < slope_at_0(SHARES[name]) < 1
    assert "uses all by PyTorch's convention" in origin.means


@pytest.mark.parametrize("name", NO_TIE)
def test_elsewhere_nothing_is_said(name):
    assert reported(NO_TIE[name]).tie == ""
