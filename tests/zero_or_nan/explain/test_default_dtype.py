"""If a number is lost in one function and is needed in another, the last resort is float64 for the whole program."""

import pytest
import torch

from tools.measure.corpora import default_dtype_kept
from zero_or_nan import explain

ANGLE = """\
import torch

def turned(t):
    return torch.stack([torch.cos(t), torch.sin(t)])

def angle(a, b):
    return torch.acos(a @ b)

t = torch.tensor(1e-4, requires_grad=True)
loss = angle(turned(t), torch.tensor([1.0, 0.0]))
loss.backward()
"""

# By name: a change of this program, with which its numbers in float64 are others than those that were tried.
OTHERS = {
    "another dtype": ("1e-4,", "1e-4, dtype=torch.float32,"),
    "a conversion": ("torch.cos(t)", "torch.cos(t).float()"),
    "a limit of the dtype": ("a @ b", "a @ b + 0 * torch.finfo(a.dtype).eps"),
    "a random number": ("torch.tensor([1.0, 0.0])", "torch.tensor([1.0, 0.0]) + 0 * torch.rand(2)"),
    "the weights of a layer": ("t = ", "torch.nn.Linear(1, 1)\nt = "),
    "no line that imports torch alone": ("import torch\n", "import math, torch\n"),
    "a number that float64 loses, too": ("1e-4", "1e-9"),
    "a number with too few digits in float64": ("1e-4", "5e-8"),
    "a number that the code has, and that float32 rounds": (
        "t = torch.tensor(1e-4, requires_grad=True)",
        "s = torch.tensor(0.3, requires_grad=True)\nt = (s - 0.3) * 1e4",
    ),
    "a gradient that does not fit float32": ("[1.0, 0.0]))", "[1.0, 0.0])) * 1e30 * 1e30"),
}


def origin_of(program, text):
    program.path.write_text(text)
    with explain() as report:
        program.run()
    return report.origins[0]


@pytest.fixture(autouse=True)
def default_dtype():
    with default_dtype_kept():
        yield


def test_the_program_gives_the_number_that_was_tried(program):
    origin = origin_of(program, ANGLE)
    assert (origin.line, origin.replaces) == (7, 1)
    assert "the loss is 0.0001, and its gradients are finite" in origin.remedy
    names = program.paste(origin)
    assert names["loss"].dtype is torch.float64
    assert names["loss"].item() == pytest.approx(1e-4, rel=1e-6) and names["t"].grad.item() == pytest.approx(
        1, rel=1e-6
    )


@pytest.mark.parametrize("name", OTHERS)
def test_a_program_whose_numbers_would_be_others_gets_no_such_line(program, name):
    old, new = OTHERS[name]
    assert old in ANGLE
    assert "set_default_dtype" not in origin_of(program, ANGLE.replace(old, new)).remedy


def test_nothing_is_changed_in_a_program_in_float64(program):
    torch.set_default_dtype(torch.float64)
    assert "set_default_dtype" not in origin_of(program, ANGLE.replace("1e-4", "1e-9")).remedy
