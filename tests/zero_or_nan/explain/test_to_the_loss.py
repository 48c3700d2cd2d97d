"""Remedies that the loss judges: all calls run once more, up to it, and it and its gradients must be right."""

import re
import sys

import pytest
import torch

HALF = "float16"
WEIGHTS = """def likelihood(d, s):
    return torch.exp(-d.square() / (2 * s**2))
def weights(x, s):
    w = torch.ones(2) / 2
    for c in (5, 6):
        d = x + 1000 - 1000 - c
        w = w * likelihood(d, s)
    return w / w.sum()
"""
SCORES = """def scores(q, k):
    q2 = (q * q).sum(-1, keepdim=True)
    k2 = (k * k).sum(-1, keepdim=True)
    return 2 * q @ k.T - q2 - k2.T
def mixed(q, v):
    return {} @ v
q = x[:, None].detach()
loss = mixed(q, x[:, None]).sum()
"""
FAKE = """def fake(y):
    return -1e5 * y / y.norm(dim=-1, keepdim=True) ** 2
def attend(q, v):
    k = torch.zeros(3, 2).to(q.dtype)
    k[:2] = q
    k[[2]] = fake(q.mean(0, keepdim=True))
    s = q @ k.T
    return torch.softmax(s.float(), -1).to(q.dtype) @ v
"""
INDEX = "i = torch.tensor([3, 70016])\n"

# By name: the numbers of x, the lines that fail, the lines that are written, the number of the first one, and the dtype
# of x. In float64, the program gives the right gradient.
WIDER = {
    "a number that one function loses and another misses, with calls after the loss and without a gradient": (
        [0.3, 0.7],
        f"{WEIGHTS}with torch.no_grad():\n    k = (x * 0).sqrt()\nloss = weights(x, s=0.2)[0] + k.sum()\nseen = x * 2",
        "@in_float64()\ndef weights(x, s):",
        6,
    ),
    "several results": (
        [0.3, 0.7],
        f"{WEIGHTS[:-1]}, w + 1\nw, v = weights(\n    x, 0.2\n)\nloss = w @ x + v.sum()",
        "@in_float64()\ndef weights(x, s):",
        6,
    ),
    "a function that has given its result": (
        [0.7071, 0.70712],
        "def near_1(x):\n    w, y = x.unbind(-1)\n    s = 2.0 / (x * x).sum(-1)\n"
        "    return torch.stack([torch.stack(row) for row in [[s * (w * y), s * w], [w, y]]])\n"
        "loss = torch.asin(near_1(x)[0, 0])",
        "with in_float64():\n    loss = torch.asin(near_1(x)[0, 0])",
        8,
    ),
    "a result that goes back": (
        [300.0, 1.0],
        SCORES.format("torch.softmax(scores(q, q + 1), 0)"),
        "@in_float32()\ndef scores(q, k):",
        4,
        HALF,
    ),
    "a dtype that is that of an argument": (
        [1.0, 2.0, 0.5],
        f"{FAKE}q = torch.tensor([[0.6, -0.1], [-0.3, 0.3]]).half()\nloss = attend(q, x[:, None]).sum()",
        "@in_float32()\ndef attend(q, v):",
        6,
        HALF,
    ),
    "a conversion": (
        [1.0, 2.0],
        f"{INDEX}a = i.half().sin()\nloss = (a * x).sum()",
        "with in_float32():\n    a = i.half().sin()\n    loss = (a * x).sum()",
        5,
    ),
    "another conversion": (
        [1.0, 2.0],
        f"{INDEX}a = torch.cos(i.to(torch.float16))\nloss = (a * x).sum()",
        "with in_float32():\n    a = torch.cos(i.to(torch.float16))\n    loss = (a * x).sum()",
        5,
    ),
}
# By name: the numbers of x, lines whose gradients have a limit, the lines that are written, the number of the first
# one, and the limit.
MOVED = {
    "two slopes without a number": (
        [0.0, 0.0],
        "def polar(e):\n    return (e[0] ** 2 + e[1] ** 2).sqrt(), torch.atan2(e[0], e[1])\n"
        "r, a = polar(x)\nloss = 1 + r * a.cos() + 2 * r * a.sin()",
        "@in_float64()\ndef polar(e):\n    e = e + 1e-6",
        4,
        [2.0, 1.0],
    ),
    "equal singular values": (
        [1.0, 0.0, 0.0, 1.0],
        "def near(m):\n    u, _, v = torch.linalg.svd(m)\n    return u @ v\n"
        "loss = (near(x.view(2, 2)) @ torch.tensor([1.0, 2.0]))[0]",
        "@in_float64()\ndef near(m):\n    m = m + 1e-6",
        4,
        [0.0, 1.0, -1.0, 0.0],
    ),
    "more than two equal values": (
        [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        "def root(m):\n    w, v = torch.linalg.eigh(m)\n    return (v * w.sqrt()) @ v.T\n"
        "def both(m, s):\n    a = root(m)\n    return root(a @ s @ a).trace()\n"
        "m, s = x.view(3, 3), torch.diag(torch.tensor([4.0, 1.0, 9.0]))\nloss = both(m, s)",
        "@in_float64()\ndef root(m):\n    m = m + 1e-6 * torch.randn_like(m)",
        4,
        [1.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.5],
    ),
    "the end of a domain": (
        [1.0],
        "def ratio(c):\n    a = torch.acos(c)\n    return torch.stack([a]) / torch.cat([a.sin()[None]])\n"
        "loss = ratio(x).sum()",
        "@in_float64()\ndef ratio(c):\n    c = c - 1e-6",
        4,
        [-1 / 3],
    ),
}
LEFT_OUT = {
    "a mask of a mask": (
        [2.0, -1.0],
        "k = x + 0\nloss = (torch.sqrt(k)[:, None] * (k >= 0).unsqueeze(1)).sum()",
        "loss = (k.clamp_min(1e-12).sqrt()[:, None] * (k >= 0).unsqueeze(1)).sum()",
        5,
    ),
    "an infinity that is scaled": (
        [0.2, 1.0],
        "t = x[:1]\nm = torch.tensor([0.5, 1.0, 2.0]).masked_fill(torch.tensor([True, False, False]), "
        "-torch.inf)\nloss = torch.softmax(m / t, 0)[1] * x[1]",
        "m = torch.tensor([0.5, 1.0, 2.0]).masked_fill(torch.tensor([True, False, False]), -1e9)",
        5,
    ),
}
REFUSED = {
    "what float64 loses, too": f"{WEIGHTS}loss = weights(x - 9, 0.2)[0]",
    "what depends on how float64 rounds": (
        "def f(x):\n    a = (80 + x).exp()\n    return torch.lgamma(a + 1) - torch.lgamma(a)\nloss = f(x + 5).sum()"
    ),
    "what float64 has no number for": "def f(x):\n    return x / (x - x)\nloss = f(x + 1).sum()",
    "a slope that is another one on the other side": "def f(x):\n    return (x[0] ** 2).sqrt() * 3\nloss = f(x) + x[1]",
    "a limit on one side, and an infinity on the other": (
        "def f(y, t):\n    return y * torch.exp(-t / (t - t))\nloss = f(x[1], torch.zeros(1)).sum() + x[0] + 1"
    ),
    "a number above a clamp": "loss = (torch.sqrt(x - 2)[:, None].clamp(max=0.5) * (x >= 0)[:, None]).sum()",
    "a number below a clamp": "loss = (torch.sqrt(x - 2)[:, None].clamp(min=9) * (x >= 0)[:, None]).sum()",
    "a number that relu needs": "loss = torch.sqrt(x - 2).neg().clamp(min=0).sum()",
    "a number that the loss depends on": "loss = (torch.sqrt(x - 2)[:, None] * (x >= 0)[:, None]).sum()",
    "a row that has infinities alone": (
        "m = torch.zeros(2, 2).masked_fill(torch.tensor([[True, True], [True, False]]), -torch.inf)\n"
        "loss = (torch.softmax(m * x, 1) * x).sum()"
    ),
    "what changed since": (
        "m = torch.full((2,), 5.0)\nw = m + x\nloss = (torch.sqrt(-w)[:, None] * (9 - w).clamp(min=0)[:, None]).sum()\n"
        "m.fill_(10)"
    ),
    "a call in a derivative of the user's": (
        "class Own(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.save_for_backward(x)\n        return x * x\n    @staticmethod\n    def backward(ctx, g):\n"
        "        (x,) = ctx.saved_tensors\n        return 2 * g * x + 0 * torch.log(x - 5)\nloss = Own.apply(x).sum()\n"
        "loss.backward()"
    ),
    "a leaf that is a view": (
        "v = torch.zeros(1, 1).view(1, 1).requires_grad_()\n"
        "loss = (torch.sqrt(v - 1) * (v * 1) - 1).square().sum() + x.sum()"
    ),
    "a pass whose gradient is used": (
        "y = x * 1\nz = torch.sqrt(y - 2)[:, None] * (y >= 2)[:, None]\n"
        "(s,) = torch.autograd.grad(z.sum(), x, create_graph=True)\nloss = (s * y).sum()"
    ),
}


@pytest.mark.parametrize("name", [*WIDER, *LEFT_OUT])
def test_the_line_gives_the_gradient_that_is_right(program, name):
    numbers, lines, line, at, *dtype = (WIDER | LEFT_OUT)[name]
    origin = program.origins(numbers, lines, *dtype)[0]
    written = "\n".join(each for each in origin.remedy.splitlines() if not each.startswith("#"))
    written = re.sub(r"from zero_or_nan import in_float\d\d\n\n", "", written)
    assert (written, origin.replaces) == (line.strip(), at), origin
    assert "its gradients are finite" in origin.remedy
    found = program.paste(origin)["x"].grad
    if name in LEFT_OUT:
        lines = lines.replace("(torch.sqrt(k)[:, None] * (k >= 0).unsqueeze(1)).sum()", "k[:1].sqrt().sum()")
        lines = lines.replace("m / t", "m[1:] / t").replace(", 0)[1]", ", 0)[0]")
    program.write(
        numbers, re.sub(r"\.(half|float)\(", ".double(", lines).replace("torch.float16", "torch.float64"), "float64"
    )
    close = {"rtol": 2e-2, "atol": 2e-3} if dtype else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found.double(), program.run()["x"].grad, **close)


@pytest.mark.parametrize("name", MOVED)
def test_the_line_gives_the_limit_of_the_gradient(program, name):
    numbers, lines, line, at, limit = MOVED[name]
    origin = program.origins(numbers, lines)[0]
    assert origin.remedy.endswith(f"import in_float64\n\n{line}") and origin.replaces == at, origin
    torch.testing.assert_close(program.paste(origin)["x"].grad, torch.tensor(limit), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("inside", "outside", "is_moved"),
    [
        ("e * 1", "a", True),
        ("torch.where(e == 0, e * 1, e * 3)", "a", False),
        ("e if e[0] == 0 else e * 3", "a", False),
        ("e if e.shape[0] == 2 else e * 3", "a", True),
        ("e * 1", "torch.where(a == 0, a * 1, a * 3)", False),
    ],
)
def test_nothing_is_moved_that_is_compared(program, inside, outside, is_moved):
    lines = f"def polar(e):\n    e = {inside}\n    return (e[0] ** 2 + e[1] ** 2).sqrt(), torch.atan2(e[0], e[1])\n"
    lines += f"r, a = polar(x)\na = {outside}\nloss = 1 + r * a.cos() + 2 * r * a.sin()"
    origins = program.origins([0.0, 0.0], lines)  # on PyTorch 2.6, atan2 is one, too
    assert any("moved a little" in origin.remedy for origin in origins) is is_moved, origins


@pytest.mark.parametrize("name", REFUSED)
def test_no_line_is_claimed_to_give_the_right_loss(program, name):
    origin = program.origins([0.0, 1.0], REFUSED[name])[0]
    assert "its gradients are finite" not in origin.remedy, origin


@pytest.mark.parametrize(
    "lines",
    [
        "root = (x[0] ** 2 - 4 * x[1]).sqrt()\nboth = torch.stack([root - x[0], -root - x[0]]) / 2\n"
        "far = (both[None] - 0.5).reshape(2) * 2\nloss = (far**2).sum()",
        "root = (x[0] ** 2 - 4 * x[1]).to(torch.complex64) ** 0.5\nz = torch.stack([root, -root]).reshape(1, 2)\n"
        "loss = ((z - x[0]) ** 2).real.sum()",
    ],
)
def test_no_slope_is_chosen_if_the_gradient_of_the_loss_has_another_limit(program, lines):
    (origin,) = program.origins([2.0, 1.0], lines)
    assert origin.kind == "undefined" and origin.replaces is None, origin


@pytest.mark.parametrize(
    "lines",
    [
        "v = torch.log(x)\nloss = (v / (17 - v) * x[1]).sum()",
        "v = torch.log(x)\nloss = ((v - v.mean()) * x).sum()",
        "(s,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)\nloss = (1 / x.detach() * s).sum()",
    ],
)
def test_no_number_is_chosen_if_it_would_decide_what_infinities_leave_open(program, lines):
    (origin,) = program.origins([0.0, 1.0], lines)
    assert origin.kind == "undefined" and origin.replaces is None and "as arbitrary as" in origin.remedy, origin


@pytest.mark.parametrize("is_second", [False, True])
def test_no_slope_is_chosen_that_is_wrong_for_the_second_derivative_of_a_later_pass(program, is_second):
    lines = (
        "def energy(x):\n    a = torch.acos(x[0] / (x * x).sum().sqrt())\n    return (torch.pi + a - torch.pi) ** 2\n"
    )
    lines += "energy(x).backward()\n"
    lines += "torch.autograd.functional.hessian(energy, x.detach())\n" if is_second else ""
    origin = program.origins([1.0, 0.0], f"{lines}loss = energy(x)")[0]
    assert ("# a choice: the slope at" in origin.remedy and origin.replaces == 5) is not is_second, origin


def test_a_number_is_chosen_for_an_infinity_that_a_mask_multiplies(program):
    (origin,) = program.origins([0.0, 1.0], "loss = (1 / x.detach() * torch.tensor([0.0, 1.0]) * x.exp()).sum()")
    assert origin.replaces == 4 and "leaves this element out" in origin.remedy, origin


@pytest.mark.parametrize(("end", "line"), [("", "vector_norm(x, dim=0)"), (" - 289", "in_float32")])
def test_float16_computes_the_number_itself_only_if_the_loss_is_not_rounded_away(program, end, line):
    lines = f"y = (x * x).sum(0).sqrt()\nloss = (y.float(){end}).abs()"
    (origin,) = program.origins([205.0, -203.0, 10.0], lines, "float16")
    written = next(each for each in origin.remedy.splitlines() if not each.startswith("#"))
    assert line in written, origin


def test_a_mask_of_one_line_is_not_put_into_what_another_line_reads(program):
    lines = "m = torch.tensor([0.0, 1.0])\ny = x.masked_fill(m == 0, -torch.inf)\nd = y - y.detach()\n"
    ends = ("", " + d.nan_to_num(7).sum()")
    masked, read = (program.origins([1.0, 2.0], f"{lines}loss = (d.exp() * m).sum(){end}")[0] for end in ends)
    assert "torch.where(m == 0, 0, y - y.detach())" in masked.remedy and "where(m" not in read.remedy


def test_no_run_begins_after_a_time(program, monkeypatch):
    lines = "p = torch.exp(x)\nq = p * 1\nloss = torch.log(q).sum()"
    assert "in_float64" in program.origins([100.0], lines)[0].remedy
    monkeypatch.setattr(sys.modules["zero_or_nan.explain.report.again"], "_MOST_SECONDS", -1.0)
    assert "the loss is" not in program.origins([100.0], lines)[0].remedy
