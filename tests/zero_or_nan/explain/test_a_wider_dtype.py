"""If a number is lost in one function and is needed in another, the function around both runs in a wider dtype."""

import pytest
import torch

ANGLE = """\
def turned(t):
    return torch.stack([torch.cos(t), torch.sin(t)])
def angle(a, b):
    return torch.acos(a @ b)
def between(t):
    return angle(turned(t), torch.tensor([1.0, 0.0]))
loss = between(x[0])
"""

# By name: a change of this program, with which its numbers in float64 are others than those that were tried.
OTHERS = {
    "a number that float64 loses, too": ("x[0]", "x[0] * 1e-5"),
    "a number that the code has, and that float32 rounds": ("x[0]", "(x[0] * 0 + 0.3 - torch.tensor(0.3)) * 1e4"),
    "a gradient that does not fit float32": ("x[0])", "x[0]) * 1e30 * 1e30"),
    "a decision that comes out in another way": (
        "    return torch.acos(a @ b)",
        "    return torch.acos(a @ b) if a @ b == 1 else 2 * torch.acos(a @ b)",
    ),
}


def test_the_innermost_function_that_is_enough_gets_the_decorator(program):
    (origin,) = program.origins([1e-4], ANGLE)
    assert origin.remedy.splitlines()[2:] == [
        "from zero_or_nan import in_float64",
        "",
        "@in_float64()",
        "def between(t):",
    ]
    assert (origin.line, origin.replaces, origin.until) == (7, 8, None)
    assert "the loss is 0.0001, and its gradients are finite" in origin.remedy
    after = program.paste(origin)
    assert after["loss"].dtype is torch.float32  # as without the decorator
    torch.testing.assert_close(after["loss"].item(), 1e-4)
    torch.testing.assert_close(after["x"].grad, torch.ones(1))


@pytest.mark.parametrize("name", OTHERS)
def test_a_program_whose_numbers_would_be_others_gets_no_such_line(program, name):
    old, new = OTHERS[name]
    assert old in ANGLE
    text = ANGLE.replace(old, new)
    assert "in_float64" not in program.origins([1e-4], text)[0].remedy


def test_a_decorator_stays_where_it_is(program):
    text = ANGLE.replace("def between", "@torch.enable_grad()\ndef between")
    (origin,) = program.origins([1e-4], text)
    assert (origin.replaces, origin.until) == (8, 9)
    assert origin.remedy.splitlines()[-3:] == ["@torch.enable_grad()", "@in_float64()", "def between(t):"]
    torch.testing.assert_close(program.paste(origin)["x"].grad, torch.ones(1))


@pytest.mark.parametrize("end", ["", '"""'])
def test_a_block_is_not_written_around_a_string_of_several_lines(program, end):
    text = "p = torch.exp(x)\nq = p * 1" + (f" + len({end}\n{end})" if end else "") + "\nloss = torch.log(q).sum()"
    (origin,) = program.origins([100.0], text)
    assert ("with in_float64():\n    p = torch.exp(x)\n    q = p * 1\n    loss = " in origin.remedy) is not end


@pytest.mark.parametrize("line", ["checkpoint = print; checkpoint(1)", "t.register_hook(print)"])
def test_a_function_is_not_decorated_if_backward_may_run_its_code(program, line):
    text = ANGLE.replace("    return angle", f"    {line}\n    return angle")
    assert "@in_float64" not in program.origins([1e-4], text)[0].remedy
