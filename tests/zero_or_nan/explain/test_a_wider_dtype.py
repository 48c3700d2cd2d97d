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


def test_random_numbers_are_the_same_when_the_calls_run_again(program):
    text = (
        "F = torch.nn.functional\ntorch.manual_seed(0)\nh = F.dropout(x, 0.5) + 20 + torch.randn_like(x)\n"
        "def shares(h):\n    p = (-0.5 * h**2).exp()\n    return p / p.sum()\n"
        "loss = (shares(h) * torch.arange(4)).sum() + F.rrelu(-x, training=True).sum()"
    )
    (origin,) = program.origins([20.0, 21.0, 22.0, 19.0], text)
    assert "@in_float64" in origin.remedy
    assert f"the loss is {program.paste(origin)['loss'].item():.6g}, and its gradients are finite" in origin.remedy


# By name: the lines, of which a part must not get the decorator, and that part.
NOT_DECORATED = {
    "a function that is only at times around the lost number": (
        "def lost(t):\n    return t.exp()\ndef valid(t):\n    return lost(t * 0).log()\ndef train(t):\n"
        "    return lost(t * 1e6).log()\nvalid(x)\nloss = train(x).sum()",
        "def valid",
    ),
    "a function that steps an optimizer": (
        "def fit(t):\n    loss = t.mul(1e6).exp().log().sum()\n    loss.backward()\n"
        "    torch.optim.SGD([t], 0.1).step()\n    return loss\nloss = fit(x)",
        "def fit",
    ),
    "the forward of a custom function": (
        "class Own(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t):\n"
        "        return t.mul(1e6).exp().log()\n    @staticmethod\n    def backward(ctx, g):\n"
        "        return g @ g.new_ones(1, 1)\n"
        "loss = Own.apply(x[None]).sum()\nloss.backward()",
        "def forward",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_DECORATED)
def test_a_function_gets_no_decorator_if_it_would_break_what_is_elsewhere(program, name):
    lines, head = NOT_DECORATED[name]
    remedy = program.origins([1e-4], lines)[0].remedy
    assert f"@in_float64()\n{head}" not in remedy and f"@in_float64()\n    {head}" not in remedy, remedy


def test_lines_that_would_not_compile_are_not_written(program):
    (origin,) = program.origins([100.0], "if len(x): loss = x.exp().log().sum()\nelse: loss = x.sum()")
    assert "in_float64" not in origin.remedy


def test_a_number_that_many_steps_lose_is_found_in_float64(program):
    lines = "def forward(t):\n    p = t * 0 + 1\n    for _ in range(40):\n        p = p * t\n    return p.log().sum()\n"
    (origin,) = program.origins([1e-2], f"{lines}loss = forward(x)")
    assert "@in_float64()\ndef forward(t):" in origin.remedy
    torch.testing.assert_close(program.paste(origin)["x"].grad, torch.tensor([4e3]))


def test_a_program_without_a_backward_pass_is_tried(program):
    lines = "t = torch.full((2,), 300.0, dtype=torch.float16)\ndef size(t):\n    return (t * t).mean().sqrt()\n"
    (origin,) = program.origins([1.0], f"{lines}loss = size(t)  # no backward")
    assert "@in_float32()\ndef size(t):" in origin.remedy and "the loss is 300" in origin.remedy
    torch.testing.assert_close(program.paste(origin)["loss"].item(), 300.0)


def test_a_number_that_a_conversion_lost_is_found_before_it(program):
    lines = "def scaled(t):\n    return (t * 1e-6).half().float().log()\nloss = scaled(x).sum()"
    (origin,) = program.origins([1e-3], lines)
    assert "half in line 5 is 1e-9, which is too small for float16" in origin.exact
    assert "@in_float64()\ndef scaled(t):" in origin.remedy
    torch.testing.assert_close(program.paste(origin)["x"].grad, torch.tensor([1e3]))


@pytest.mark.parametrize("lines", ["loss = size(x)", "with torch.no_grad(): loss = size(x)  # no backward"])
def test_a_function_whose_result_would_be_infinite_again_gets_no_decorator(program, lines):
    (origin,) = program.origins([100.0], f"def size(t):\n    return t.exp().sum()\n{lines}")
    assert origin.exact and "@in_float64" not in origin.remedy
