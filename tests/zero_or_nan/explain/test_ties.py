"""At a tie the kind follows PyTorch's convention, and the report says so. It says nothing of the kind elsewhere."""

import pytest
import torch
import torch.nn.functional as F
from origins import report_of
from tensors import leaf

ZEROS = torch.zeros(2)
IGNORED = ("contaminated", 0, "by PyTorch's convention {} does not use the element, and maximum does")
USED = ("undefined", 1, "by PyTorch's convention {} uses the element, and relu does not")
CLAMPED = IGNORED if torch.__version__ >= (2, 14) else USED  # pytorch#191142
ONE = (None, None, "of equal elements, {} takes one")
SHARED = ("undefined", 0.5, "of equal elements, {} uses all by PyTorch's convention")
TIES = {
    "relu": (F.relu, IGNORED),
    "relu of a view": (lambda y: y[:, None].relu(), IGNORED),
    "clamp": (lambda y: y.clamp(0, 3), CLAMPED),
    "clamp_max": (lambda y: y[:1].clamp_max(0), CLAMPED),
    "max": (lambda y: torch.stack([ZEROS, y]).max(0).values, ONE),
    "max_pool2d_with_indices of rows": (lambda y: F.max_pool1d(torch.stack([ZEROS, y]).T[None], 2), ONE),
    "amax": (lambda y: torch.stack([ZEROS, y]).amax(0), SHARED),
}
NO_TIE = {
    "below the kink": lambda y: (y - 1).relu(),
    "of a sum": lambda y: (y + 1).clamp_max(0.5),
    "not at its end": lambda y: y.clamp(-1, 5),
    "abs": torch.abs,
    "used elsewhere too": lambda y: y + y.relu(),
}


@pytest.mark.parametrize("name", TIES)
def test_the_report_states_the_convention(name):
    function, (kind, slope, words) = TIES[name]
    (origin,) = report_of(lambda: function(leaf(0.0, 4.0).sqrt()).sum().backward())
    assert origin.operator == "sqrt" and kind in (None, origin.kind)
    assert words.format(name.split()[0]) in origin.means
    assert "the right gradient exists" not in str(origin)
    y = leaf(0.0, 1.0)
    function(y).sum().backward()
    assert slope in (None, abs(y.grad[0].item()))


@pytest.mark.parametrize("name", NO_TIE)
def test_elsewhere_nothing_is_said(name):
    (origin,) = report_of(lambda: NO_TIE[name](leaf(0.0, 4.0).sqrt()).sum().backward())
    assert origin.tie == ""
