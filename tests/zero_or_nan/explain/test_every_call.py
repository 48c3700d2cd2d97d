"""A line is for all its calls, and for all that reads their results: what is right at one call alone is not printed."""

import pytest

NAN = 'nan = float("nan")\n'

# By name: the numbers of x, the lines, a part of the code that is wrong, and a part of the line that is written in its
# place, if there is one.
WRONG = {
    "a limit in each turn of a loop": (
        [0.0, 0.5],
        "loss = 0\nfor k in (1.0, 2.0):\n    loss = loss + (torch.sin(k * x) / x).sum()",
        "1, torch.sin",
        None,
    ),
    "a power that is 1 in another turn": (
        [0.0, 1.0],
        "loss = sum((x**p).sum() for p in ())\nfor p in (0.5, 0.0):\n    loss = loss + (x**p).sum()",
        "torch.where(x == 0, 0",
        None,
    ),
    "a dimension that is a variable": (
        [0.0, 200.0],
        "s = torch.outer(x, x) / 100\nloss = 0\nfor i in (0, 1):\n    loss = loss + s.softmax(dim=i).log()[i].sum()",
        "dim=0",
        None,
    ),
    "an index that is the dimension in the first turn": (
        [0.0, 200.0],
        "s = torch.stack([x, x.flip(0)])\nloss = 0\nfor i in (0, 1):\n"
        "    loss = loss - torch.log(torch.softmax(s, 0)[i])[i]",
        "dim=i",
        None,
    ),
    "a class that is left out in the first call": (
        [1.0, 2.0],
        "loss = 0\nfor t, none in ((-1, -1), (1, -100)):\n    y = torch.tensor([t])\n"
        "    loss = loss + F.cross_entropy(x[None], y, ignore_index=none)",
        "ignore_index=-1",
        None,
    ),
    "a bound that cuts off what another call gives": (
        [0.0, 0.5],
        "def total(p):\n    return (p.log()[:, None] * (p > 0)[:, None]).sum()\nloss = total(x) + total(x + 1e-12)",
        "1e-8",
        None,
    ),
    "a mask of what failed": (
        [0.5, 5.0],
        "y = torch.sqrt(x - 1)\nvalid = ~torch.isnan(y)\nloss = (y * valid).sum() / valid.sum()",
        "clamp_min",
        None,
    ),
    "an error that a bound cuts off": (
        [0.0, 9.0],
        f"{NAN}y = torch.tensor([1.0, nan])\nloss = (x - y).abs().clamp(max=5.0).mean()",
        "isnan(), 0, y",
        "[known]",
    ),
    "a target that counts in another batch": (
        [1.0, 2.0],
        f"{NAN}loss = 0\nfor w in (0.0, 1.0):\n    y, w = torch.tensor([1.5, nan]), torch.tensor([1.0, w])\n"
        '    loss = loss + (w * F.mse_loss(x, y, reduction="none")).sum()',
        "isnan(), 0, y",
        None,
    ),
    "a hook on a number on the way": (
        [0.0, 200.0],
        "p = x.softmax(0)\np.register_hook(lambda gradient: -gradient)\nloss = p.log().sum()",
        "log_softmax",
        None,
    ),
    "a gradient that is kept on the way": (
        [0.0, 200.0],
        "p = x.softmax(0)\np.retain_grad()\nloss = p.log().sum()",
        "log_softmax",
        None,
    ),
    "a division in place, of which backward needs the result": (
        [0.0, 3.0],
        "w, h = x * 1, x * 1\nh.div_(w)\nloss = h.square().sum()",
        "h.copy_",
        None,
    ),
    "a line that runs on a condition": (
        [1.0, 2.0],
        "loss = 0\nfor i in range(3):\n    d = torch.sqrt(x[i] - 1) if i < len(x) else x.sum()\n    loss = loss + d",
        "x_ = x[i] - 1",
        None,
    ),
    "a limit at the scale of nanometres": (
        [1.0],
        "z = torch.tensor([-2e-9, 0.0, 3e-9])\ny = 2e-9 * torch.tanh(z / 2e-9) / z\n"
        "loss = (x * y - 0.5).square().sum()",
        "1.16",
        None,
    ),
    "a limit whose slope by another number is small": (
        [1.0],
        "z = torch.tensor([-0.5, 0.0, 0.5])\ny = 0.02 * torch.sin(x * z) / z\nloss = 50 * y.sum()",
        "0.02,",
        None,
    ),
    "a limit that is differentiated again": (
        [-0.5, 0.0, 0.5],
        "u = torch.sin(x) / x\n(du,) = torch.autograd.grad(u.sum(), x, create_graph=True)\n"
        "(ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)\nloss = (ddu + u).square().sum()",
        "where(x == 0, 1",
        None,
    ),
    "rows that have numbers": (
        [1.0, 2.0],
        f"{NAN}h = torch.tensor([[nan, 1.0], [3.0, 1.0], [0.5, 2.0]])\ni = torch.tensor([0, 1])\n"
        "y = (h * x).sum(1)\nloss = y[i].square().sum()",
        "h[kept]",
        None,
    ),
    "what float16 rounds, before a dropout": (
        [205.0, -203.0, 10.0],
        "y = (x * x).sum(0).sqrt()\nloss = (y.float() - 289) ** 2 + F.dropout(x.float(), 0.5).sum() * 1e-3",
        "vector_norm",
        "in_float32",
        "float16",
    ),
    "a logarithm of a negative determinant": (
        [0.0, 2.0],
        "loss = torch.log(torch.det(torch.stack([x, x.flip(0)])))",
        "slogdet",
        None,
    ),
    "a name that the expression binds": (
        [1.0],
        "loss = 0\nfor z in (torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0]])):\n"
        "    u = z / (n := z.norm(dim=1, keepdim=True))\n    loss = loss + (u * x).sum() + (n * x).sum()",
        "normalize",
        None,
    ),
    # Which operand is the number, and whether it is the same number each time.
    "a factor in front that is no literal": (
        [100.0, 1.0],
        "import math\nloss = torch.log((math.sqrt(2) * torch.exp(x)).sum(-1))",
        "torch.exp(x) * (",
        None,
    ),
    "a number to which tensors are added": (
        [1.0, 2.0],
        "total, count = 0.0, 0\nfor m in (0, 0):\n    total += (x * m).sum()\n    count += m\n"
        "loss = total / count + x.sum()",
        "count / (total",
        None,
    ),
    "a number that is 1 in the first step": (
        [100.0, 1.0],
        "for c in (1, 5):\n    loss = torch.log(c + torch.exp(x)).sum()\n    loss.backward()",
        "softplus",
        None,
    ),
    "an order that is 2 in the first step": (
        [0.0, 0.0],
        "for order in (2, 4):\n    loss = torch.sqrt((x**order).sum(-1))\n    loss.backward()",
        "vector_norm",
        None,
    ),
    "a limit in the first step": (
        [1.0],
        "z = torch.tensor([0.0, 0.5])\nfor k in (1.0, 2.0):\n    loss = (x * (torch.sin(k * z) / z)).sum()\n"
        "    loss.backward()",
        "where(z == 0, 1",
        None,
    ),
    # What another dtype changes.
    "a tensor that the next turn of a loop gets": (
        [1.0, 1.0],
        "y = torch.tensor([100.0, 97.0])\nfor step in range(2):\n    p = torch.exp(y * x).square()\n"
        "    q = torch.exp(y).square()\n    loss = (p / q).sum()\n    loss.backward()",
        "x.double(), y.double()",
        None,
    ),
    "a tensor that an optimizer gets later": (
        [1.0, 1.0],
        "y = torch.tensor([100.0, 97.0])\np = torch.exp(y * x).square()\nq = torch.exp(y).square()\n"
        "loss = (p / q).sum()\nloss.backward()\ntorch.optim.SGD([x], lr=0.1).step()",
        "x.double(), y.double()",
        None,
    ),
    "a bound that is the eps of the dtype": (
        [1e10, 1e-4],
        "def score(x):\n    r = x**4 / (x**4 + 1e36)\n"
        "    return -torch.log(r.clamp_min(torch.finfo(r.dtype).eps)).mean()\nloss = score(x)",
        "r = x.double()",
        "@in_float64()\ndef score",
    ),
    "a bound that is looked up by the dtype": (
        [1e10, 1e-4],
        "BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-12}\ndef score(x):\n    r = x**4 / (x**4 + 1e36)\n"
        "    return -torch.log(r.clamp_min(BOUNDS[r.dtype])).mean()\nloss = score(x)",
        ".double()",
        None,
    ),
    "a variable that is a number in the first turn": (
        [3.0, 100.0, 5.0],
        "last, loss = 0.0, 0.0\nfor z in x:\n    growth = torch.exp(last - z)\n"
        "    loss = loss + growth / (1 + growth) ** 2\n    last = z",
        "last.double()",
        None,
    ),
    "a tuple in a variable": (
        [1e-4],
        "def turned(t):\n    return torch.cat([torch.cos(t), torch.sin(t)])\n"
        "def angle(a, b):\n    return torch.acos(a @ b)\n"
        "def pose(t, axis):\n    found = angle(turned(t), axis), turned(t)\n    return found\n"
        "found = pose(x, torch.tensor([1.0, 0.0]))\nloss = (torch.ones(1, 1) @ found[0].reshape(1, 1)).sum()",
        ").float()",
        None,
    ),
    "a result that is kept elsewhere": (
        [1e-4],
        "kept = []\ndef turned(t):\n    return torch.cat([torch.cos(t), torch.sin(t)])\n"
        "def angle(a, b):\n    kept.append(a)\n    return torch.acos(a @ b)\n"
        "def pose(t, axis):\n    return angle(turned(t), axis)\ny = pose(x, torch.tensor([1.0, 0.0])).reshape(1, 1)\n"
        "loss = (torch.ones(1, 1) @ y).sum() + kept[0] @ torch.ones(2)",
        ").float()",
        None,
    ),
    "a number of the code that float32 rounds": (
        [1.0],
        "p = torch.tensor([0.1, 0.7, 0.2])\nd = p - 0.1\nloss = (x * torch.log(d.abs() + 0)).sum()",
        ".double()",
        None,
    ),
    "a comparison of what float32 rounds to 0": (
        [1.0],
        "s = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.125]])\nr = 1 - s.sum(-1)\n"
        "loss = (x * ((r > 0) * torch.log(r))).sum()",
        "s.double()",
        None,
    ),
    "a comment at the margin": (
        [100.0, 99.0],
        "def share(x):\n    p = torch.exp(x)\n#   p = p + 1\n    q = p / (3 + p.sum())\n    return q\n"
        "loss = F.linear(share(x), torch.ones(1, 2)).sum()",
        "\np = p + 1",
        "@in_float64()\ndef share",
    ),
    # What follows the line decides, too.
    "a conversion that did nothing": (
        [1.0, 91.0],
        "def scaled(x):\n    return x * torch.ones(2)\nlinear = torch.nn.Linear(2, 2, bias=False)\n"
        "linear.weight = torch.nn.Parameter(torch.eye(2))\ne = scaled(linear(x)).float().exp()\n"
        "loss = torch.log(2 / (e.sum() + 1))",
        "x.double()",
        "with in_float64():\n    e = scaled(",
    ),
    "a number that is written into a weight": (
        [0.5, 0.2],
        "w = torch.tensor([0.1, 0.2]) * 0.3\nw[0] = 11.0\nw.requires_grad_()\n"
        "r = torch.pow(1 - torch.tanh(w) ** 2, -0.5)\nloss = (x.sum() + 0.5 * r**2 - r.log()).mean()",
        "torch.where",
        "with in_float64():\n    w = ",
    ),
    "an exponential in float32 beside a difference in float64": (
        [0.05, 1.0],
        "t = torch.tensor([0.5, 8.0, 24.0])\nk, c, v = x[0], x[1], torch.tensor(20.0)\ne = c / v\n"
        "s = k / (k - e)\nloss = (s * (torch.exp(-e * t) - torch.exp(-k * t))).square().sum()",
        "c.double() / v.double()",
        None,
    ),
    "a factor 0 that is the divisor": (
        [0.3, 0.7],
        "r = torch.tensor([0.0, 1.0])\ny = 2.0 / (r * 4)\nloss = (y * r + x).square().sum()",
        "torch.where",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_line_that_is_wrong_elsewhere_is_not_written(program, name):
    numbers, lines, wrong, right, *dtype = WRONG[name]
    origin = program.origins(numbers, lines, *dtype)[0]
    code = "\n".join(each for each in origin.remedy.splitlines() if not each.startswith("#"))
    assert (wrong not in code or origin.replaces is None) and (right or "") in code, origin
