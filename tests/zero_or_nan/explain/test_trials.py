"""A remedy that a report prints ran on the numbers of the call: what it gives, how it is written, what is refused.

Each program is a file of its own, so that a remedy can be pasted into it, and the file can run again.
"""

import ast
import math
import re
import sys
import time

import pytest
import torch

from zero_or_nan import explain
from zero_or_nan.explain.births import findings
from zero_or_nan.explain.report import advice, narration, trial
from zero_or_nan.functions.rewrites import REWRITES, Rewrite, function_in

SHORT = [200.0, 1.0]
ROWS = [[200.0, 1.0], [1.0, 2.0]]
LENGTHS = [[0.0, 0.0], [3.0, 4.0]]
HALF = "float16"

# By name: the numbers of x, the lines that fail, what the report says, the gradient that the pasted remedy gives as an
# expression of x (None: the gradient of the program in float64), and the dtype of x.
WRITTEN = {
    "softmax": (SHORT, "p = x.softmax(-1)\nloss = -torch.log(p)[1]", "\nloss = -F.log_softmax(x, dim=-1)[1]"),
    # Float64 loses a number, too, and the exact one is known all the same.
    "beyond float64": (
        [200.0, 0.5], "p = x.sigmoid()\nloss = -torch.log(1 - p).sum()",
        "and its exact value is -200: 1 - p in line 5 is 1.3839e-87, which is too small for float32, so it became 0; "
        "float64 loses it, too\n# tried", "x.sigmoid()",
    ),
    "tanh": (
        [20.0, 0.5], "t = x.tanh()\nloss = torch.log(1 - t**2).sum()", "float64 loses it, too\n# tried", "-2 * x.tanh()"
    ),
    "log(0) is no number": (
        [0.0, 2.0], "loss = torch.logsumexp(torch.log(x), 0)", "undefined \n# tried on your numbers: ", "x * 0 + 0.5"
    ),
    "only rounded": (
        [1e-4], "c = torch.cos(x)\nloss = torch.acos(c).sum()",
        "overflow and its exact derivative is 1: float32 loses a number on the way to it\n# float64 inside",
    ),
    "a second derivative": (
        [0.4, -60.0], "y = torch.logaddexp(x / 2 + 1, -2 * x)\n"
        "(slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)\nloss = slope.sum()",
        "value 120, and finite gradients\nfrom zero_or_nan import in_float64\n\nwith in_float64():\n    y = ",
    ),
    "a second derivative that PyTorch's formula does not give": (
        [0.0], "y = torch.sinc(x)\n(slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)\nloss = slope.sum()",
        "and its exact second derivative is -3.28987: this formula gives none, not even in float64\n# tried",
        "x * 0 - torch.pi**2 / 3",
    ),
    "what einsum gives": (
        [1.0, 2.0], "y = x * 1\np = torch.sigmoid(y.view(1, 2) - 110)\n"
        "n = torch.einsum('ab,ab->a', p, y.view(1, 2) * 0 + 1)\n"
        "loss = (p / n.unsqueeze(1).repeat(1, 2))[0, 0]",
        "overflow and its exact value is 0.268941: sigmoid(-109) in line 5 is 4.59094e-48, which is too small for ",
    ),
    "classes, which are integers": (
        [220.0, 0.0], "hot = F.one_hot(torch.tensor([0]), 2).to(x.dtype)\np = x.softmax(0)\n"
        "q = (p * (1 - hot[0])).sum()\nloss = -q.log()", "\nwith in_float64():\n    hot = ",
    ),
    "an infinity in the code": (
        [1.0, 2.0], "m = torch.tensor([1.0, 0.0])\ns = x + (1 - m) * -torch.inf\nloss = s.softmax(0)[0] * x[0]",
        "\n# a choice: 0 times an infinity is 0. ", "torch.tensor([1.0, 0.0])",
    ),
    "the second derivative of a length": (
        [0.0, 0.0, 3.0, 4.0], "n = torch.norm(x.view(2, 2), 2, -1)\n"
        "(slope,) = torch.autograd.grad(n.sum(), x, create_graph=True)\nloss = slope.sum()",
        "\n# a choice: a length of 0 has the slope 0, and all further derivatives are 0. ",
        "torch.tensor([0, 0, 0.032, -0.024])",
    ),
    "the second derivative of a length times itself": (
        [0.0, 0.0], "n = torch.linalg.norm(x, 2, dim=-1)\ny = -n * n\n"
        "(slope,) = torch.autograd.grad(y, x, create_graph=True)\nloss = slope.sum()",
        "\ny = -x.square().sum(-1)", "x * 0 - 2",
    ),
    "the square of an angle of 0": (
        [1.0, 0.5], "loss = (torch.acos(x) ** 2).sum()", "\nloss = (torch.where(1 - x < 0.001, (1 - x) * (2 + (1",
        "torch.where(x == 1, -2, -2 * x.acos() / (1 - x * x).sqrt())",
    ),
    "the square of a hyperbolic distance of 0": (
        [1.0, 2.0], "loss = (torch.acosh(x) ** 2).sum()", "\nloss = (torch.where(x - 1 < 0.001, (x - 1) * (2 - (x",
        "torch.where(x == 1, 2, 2 * x.acosh() / (x * x - 1).sqrt())",
    ),
    "a row of -inf less its maximum": (
        [1.0, 2.0], "s = torch.stack([x, x.masked_fill(x < 9, -torch.inf)])\nm = s.amax(-1, keepdim=True)\n"
        "loss = torch.exp(s - m).sum()", "\nloss = (s - torch.where(m == -torch.inf, 0, m)).exp().sum()",
        "(3 - 2 * x) * math.exp(-1)",
    ),
    "a root of what only rounding made negative": (
        [1.5e-4], "loss = torch.sqrt((x + 1) ** 2 - (1 + 2 * x)).sum()", "overflow and its exact value is 0.00015",
        "x * 0 + 1",
    ),
    "what was lost has no gradient": (
        [2.0], "q = torch.exp(torch.tensor([-24.0]).half())\nloss = (q * x.half() / (q * 1)).sum()",
        "\nwith in_float32():\n    q = ", "x * 0 + 1",
    ),
    "a divisor that is a number": (
        [3.0, 2.0], "n = len(x) - 2\nloss = x.sum() / n",
        "\n# a choice: a divisor of 0 counts as 1. Tried on your numbers: value 5, gradient 1\n"
        "# With this line, the loss is 5, and every gradient is finite.\n"
        "loss = x.sum() / (n or 1)", "x * 0 + 1",
    ),
    "an infinity that was meant, scaled": (
        [0.4, 0.8], "d = torch.full((2,), torch.inf)\nd[1] = 1\nloss = torch.exp(-d / x.exp()).sum()",
        "\na = -d\nloss = torch.where(a == -torch.inf, 0, (torch.where(a == -torch.inf, 0, a) / x.exp()).exp()).sum()",
        "torch.where(x == 0.4, 0, (-1 / x.exp()).exp() / x.exp())",
    ),
    "an infinity is not replaced by 0": (
        [0.0, 2.0], "loss = torch.exp(-1 / x).sum()", "counts as 1e-6", "torch.where(x == 0, 0, (-1 / x).exp() / x**2)"
    ),
    # A half dtype rounds an eps to 0.
    "eps that float32 keeps": (
        [0.0, 1.0], "loss = torch.sqrt(x + 1e-8).sum()",
        "\nwith in_float32():\n    loss = torch.sqrt(x + 1e-8).sum()", "torch.tensor([5e3, 0.5])", HALF,
    ),
    # A gradient arrives in float16 even if the line runs in float32. The slope of normalize at 0 is 1e12.
    "a gradient that fits float16": (
        [300.0], "s = x**4\nloss = (s.float() * 1e-5).sum()", "\nwith in_float32():\n    s = x**4", "4e-5 * x**3", HALF
    ),
    "autocast": (
        [[1.0, 2.0], [0.5, 1.0]],
        "layer = torch.nn.Linear(2, 2, bias=False)\nlayer.weight.data = torch.eye(2) * 300\n"
        "with torch.autocast('cpu', dtype=torch.float16):\n    q = layer(x)\n    s = q @ q.T\n"
        "    loss = (s * 1e-6).square().sum()",
        "\nwith in_float32():\n    layer.weight.data = ", "0.0324 * x @ x.T @ x",
    ),
    "a module in float16": (
        [[1.0, 2.0], [0.5, 1.0]],
        "layer = torch.nn.Linear(2, 1, bias=False).half()\nlayer.weight.data[:] = 3e4\n"
        "s = layer(x.half() + 3)\nloss = (s.float() * 1e-6).square().sum()",
        "\nwith in_float32():\n    layer = ", "1.8e-3 * (x.sum(1, keepdim=True) + 6).expand(2, 2)",
    ),
    # Autocast computes a product of half precision in float32, and leaves float64 alone.
    "the autocast that the calls had": (
        [[1.0]], "with torch.autocast('cpu', dtype=torch.bfloat16):\n    q = F.linear(x, torch.full((12, 1), 1e-5))\n"
        "    loss = torch.prod(q).log()", "\nwith in_float64():\n    q = ",
        "x * 0 + 12",
    ),
    # A rewrite would need the names of two functions.
    "the line that lost the number, in another function": (
        [160.0, 1.0], "def f(q):\n    return q.softmax(-1)\nloss = -f(x).log()[1]",
        "\n    loss = -f(x).log()[1]\n# or: value -159, gradient",
    ),
    # A product refuses tensors of two dtypes.
    "a line before one that takes float32 alone": (
        [100.0, 1.0], "r = x.cosh() / (x + 1).cosh()\nloss = F.linear(r[:, None].T, torch.ones(1, 2).to(x)).sum()",
        "\nwith in_float64():\n    r = ",
    ),
    "a mask that leaves out the same": (
        [1.0, 2.0], "m = torch.tensor(-1e9)\nm = m.to(x.dtype)\nloss = (x + m * torch.tensor([0, 1])).softmax(0)[0]",
        "What follows is exact. Tried on your numbers: value -65504, gradient 0\n"
        "# With this line, the loss is 1, and every gradient is finite.\nm = m.clamp(torch.finfo(",
        "x * 0", HALF,
    ),
    "a limit that no choice gives": (
        [0.0, 1.0], "w = torch.sin(0.75 * x) / torch.sin(x)\nloss = w.sum()",
        "counts as 1e-6, which gives the limit here. Tried on your numbers: value 0.75, gradient 0\n"
        "w = torch.sin(0.75 * x.clamp_min(1e-6)) / torch.sin(x.clamp_min(1e-6))", "torch.tensor([0, 0.132021])",
    ),
    "a limit of what another line made": (
        [1.0], "a = torch.acos(x.detach())\nw = x * torch.sin(0.75 * a) / torch.sin(a)\nloss = w.sum()",
        "\na = torch.acos(x.detach()).clamp_min(1e-6)", "x * 0.75",
    ),
    "a limit with a slope": (
        [-0.5, 0.0, 2.0], "w = torch.expm1(x) / x\nloss = w.sum()",
        "\n# tried on your numbers: 0 / 0 has the limit 1 here, with the slope 0.5, measured beside it in float64\n"
        "w = torch.where(x == 0, 1 + 0.5 * (x - x.detach()), torch.expm1(x) / torch.where(x == 0, 1, x))",
        "torch.tensor([0.3608160, 0.5, 2.0972640])",
    ),
    "a limit of what has no gradient": (
        [1.0, 2.0], "v = torch.tensor([-1.0, 0.0])\nw = 0.5 * v / (1 - torch.exp(-v))\nloss = (w * x).sum()",
        "has the limit 0.5 here, measured", "torch.tensor([0.2909884, 0.5])",
    ),
    "a gap that where leaves out": (
        [0.0, 0.5], "b = torch.where(x != 0, (1 - x.cos()) / x, torch.zeros_like(x))\nloss = b.sum()",
        "there, and ignoring gives the slope of this branch. With the slope of the formula:\nb = torch.where(x != 0, "
        "(1 - x.cos()) / torch.where(x == 0, 1, x), torch.zeros_like(x) + 0.5 * (x - x.detach()))",
        "torch.tensor([0.5, 0.4691813])",
    ),
    "a gap with the slope of the other branch": (
        [0.0, 0.5], "b = torch.where(x != 0, x.sin() / x, torch.ones_like(x))\nloss = b.sum()",
        "torch.where(x == 0, 1, x), torch.ones_like(x))\n# or, with your code as it is:\n#   from zero_or_nan",
        "torch.tensor([0, -0.1625370])",
    ),
    "a component without weight": (
        [0.0, 0.5, 0.5], "a = torch.tensor([1.0, 0.0, -1.0]).to(x)\nw = x.log()\nloss = torch.logsumexp(w + a, 0)",
        "\nloss = (x * (a - a.detach().amax(0, keepdim=True)).exp()).sum(0).log()",
        "torch.tensor([1.0, 0.0, -1.0]).double().exp() / 0.6839397",
    ),
    "below 0 by rounding, without a gradient": (
        [0.3, 0.7], "a, b = torch.tensor(0.6), torch.tensor(5.1)\nv = torch.stack([a + b]) - b - a\n"
        "s = v.sqrt()\nloss = (x * (s + 1)).sum()", "\ns = v.clamp_min(0).sqrt()", "x * 0 + 1",
    ),
    "below 0 by rounding, as a power": (
        [0.3, 0.7], "a, b = torch.tensor(0.6), torch.tensor(5.1)\nv = torch.stack([a + b]) - b - a\n"
        "s = v**0.5\nloss = (x * (s + 1)).sum()", "\ns = v.clamp_min(0) ** 0.5", "x * 0 + 1",
    ),
    "an infinity in a formula that has a limit": (
        [1.0, 3.0], "count = (x.detach() > 5).float().sum()\nratio = 2 / count\n"
        "loss = (0.5 * ratio / (ratio - 1) * x).sum()", "\nratio = 2 / count.clamp_min(1e-6)", "x * 0 + 0.5",
    ),
    "a mask whose elements are counted, and that has no neighbour": (
        [1.0, 3.0], "loss = x.sum()\nfor mask in torch.tensor([[1.0, 0.0], [0.0, 0.0]]):\n"
        "    factor = 2 / mask.count_nonzero()\n    loss = loss + factor * (x * mask).mean()",
        "\nfactor = 2 / mask.count_nonzero().clamp_min(1e-6)", "torch.tensor([2.0, 1.0])",
    ),
    "a formula that the rounding of 0.05 keeps from 0 / 0": (
        [0.05], "def rates(a, b):\n    return a / (a - b) * (torch.exp(-b) - torch.exp(-a))\n"
        "loss = rates(x, torch.tensor(1.0) / torch.tensor(20.0)).sum()", "    a = a + 1e-6",
        "(1 - x / 2) * torch.exp(-x)",
    ),
    "data that a mask leaves out": (
        [1.0, 3.0], "data = torch.tensor([[4.0, torch.nan], [torch.inf, 2.0]])\ny = data * x\n"
        "loss = (y * torch.eye(2)).sum()", "\ny = data.nan_to_num(0, 0, 0) * x", "torch.tensor([4.0, 2.0])",
    ),
    "tokens that both distributions leave out": (
        [0.5, 2.0, 1.0], "out = torch.tensor([False, False, True])\nq = torch.tensor([1.0, 0.0, 0.0])\n"
        "q = q.masked_fill(out, -torch.inf).log_softmax(0)\np = x.masked_fill(out, -torch.inf).log_softmax(0)\n"
        "loss = F.kl_div(p, q, reduction='sum', log_target=True)",
        "\nloss = F.kl_div(torch.where(q == -torch.inf, 0, p), torch.where(q == -torch.inf, 0, q), reduction=",
        "torch.tensor([-0.548633, 0.548633, 0.0])",
    ),
    "an infinity that fills a new tensor": (
        [0.5, 2.0], "y = torch.full((3,), -torch.inf)\ny[:2] = x\n"
        "e = F.binary_cross_entropy_with_logits(y, torch.zeros(3), reduction='none')\n"
        "loss = (e * torch.tensor([1.0, 1.0, 0.0])).sum()", "\ny = torch.full((3,), -1e9)", "x.sigmoid()",
    ),
    "a limit by an argument that was computed": (
        [0.5, 2.0], "def to_grid(points, ratio):\n    return points / ratio[:2] * ratio\n"
        "ratio = torch.tensor([0, 2]).float() / 2\nloss = to_grid(x**2, ratio).sum()",
        "    ratio = ratio + 1e-6", "2 * x",
    ),
    "the mask of a later line": (
        [[1.0, 2.0]], "keep = torch.tensor([[0.0, 1.0]])\ny = x.masked_fill(keep == 0, -torch.inf)\n"
        "d = y - y.detach()\nloss = (d.exp() * keep).sum()",
        "# keep is 0 here, and line 7 multiplies by it, but 0 times NaN is NaN.\n# Tried on your numbers, what follows "
        "is finite, with finite gradients:\nd = torch.where(keep == 0, 0, y - y.detach())", "x.sub(1)",
    ),
    "a complex number": (
        [0.0, 2.0], "z = torch.complex(x, x)\nu = z / z.abs()\nloss = (u.real * x).sum()",
        "every gradient is finite.\nb = z.abs()\nu = torch.where(b == 0, 0, z / torch.where(b == 0, 1, b))",
        "torch.tensor([0, 0.5**0.5])",
    ),
    "a tensor by which a gradient is asked for": (
        [0.0, 110.0], "p = x.softmax(-1)\nloss = -p.log().sum()\n"
        "(slope,) = torch.autograd.grad(loss, p, create_graph=True)", "\nwith in_float64():\n    p = ",
    ),
    # The values have half's dtype, too: the product after the softmax would refuse one in float32.
    "a function whose result goes back": (
        [2.0, 3.0], "def level(x):\n    power = x**2\n    return (\n        power + 1\n    ).log()\n"
        "loss = F.linear(level(x * 1e25)[None], torch.ones(1, 2).to(x)).sum()",
        "\n@in_float64()\ndef level(x):", "2 / x",
    ),
    # A root has no slope at 0, but its cosine has one.
    "the cosine of a root": (
        [0.0, 1.0], "loss = torch.cos(x.sqrt()).sum()", "\nloss = torch.cos((x + 1e-14).sqrt()).sum()",
        "torch.tensor([-0.5, -math.sin(1) / 2])",
    ),
    # Vectors of equal values have no slope, but a loss may have one.
    "the nearest rotation": (
        [[2.0, 0.0], [0.0, 2.0]], "u, _, v = torch.linalg.svd(x)\n"
        "loss = (u @ v * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum()",
        "\nu, _, v = torch.linalg.svd(x.double() + 1e-8 * torch.randn_like(x, dtype=torch.float64))",
        "torch.tensor([[0, -0.25], [0.25, 0]])",
    ),
    "a function of a matrix": (
        [[2.0, 0.0], [0.0, 2.0]], "s, v = torch.linalg.eigh(x)\nloss = (v @ s.log().diag() @ v.transpose(0, 1)).sum()",
        "\ns, v = torch.linalg.eigh(x.double() + 1e-8 * ", "x * 0 + 0.5",
    ),
    # Somebody has to choose.
    "a class without smoothing": (
        [[1.0, 2.0, 0.5]], "s = x.masked_fill(torch.tensor([False, False, True]), -torch.inf)\n"
        "loss = F.cross_entropy(s, torch.tensor([0]), label_smoothing=0.1)", "gets no part of the smoothing. ",
        "torch.tensor([[-0.673357, 0.673357, 0]])",
    ),
    "a negative target": (
        [0.5, 2.0], "loss = F.kl_div(x, torch.tensor([1.25, -0.25]), reduction='sum')",
        "\nloss = F.kl_div(x, torch.tensor([1.25, -0.25]).clamp_min(0), reduction=", "-1.25 * (x < 1)",
    ),
    "length": (
        LENGTHS, "loss = (x**2).sum(-1).sqrt().sum()", "\n# a choice: the slope of a length of 0 is 0. ",
        "torch.tensor([[0, 0], [0.6, 0.8]])",
    ),
    "in place": (
        LENGTHS, "n = x.detach() * 1\nn.div_(n.norm(dim=1, keepdim=True))\nloss = (n * x).sum()",
        "\nb = n.norm(dim=1, keepdim=True)\nn.copy_(torch.where(b == 0, 0, n / ", "torch.tensor([[0, 0], [0.6, 0.8]])",
    ),
    "of a pass before": (
        [1.0], "r = torch.zeros(1) / torch.zeros(1)\n(x * 1).sum().backward()\nloss = (x * r).sum()\nloss.backward()",
        "\n# a choice: a / 0 is 0", "x * 0 + 1",
    ),
    "what follows is right by this choice alone": (
        [0.0], "v = (2 + x) / (x * 0 + 0)\nloss = torch.tanh(v).sum() * x.sum()",
        "\n# a choice: a number below 1e-6 counts as 1e-6. ", "x + 1",
    ),
    "under no_grad only the value has to be right": (
        [0.0, 1.0], "with torch.no_grad():\n    w = x.sqrt() * x / x.sum().sub(1)\nloss = (w * x).sum()",
        "Tried on your numbers", "x * 0",
    ),
    "inside of no_grad": (
        SHORT, "with torch.no_grad():\n    p = torch.log(x.softmax(-1))\nloss = (p * x).sum()",
        "\np = F.log_softmax(x, dim=-1)",
    ),
    "an operand that changed since is not used": (
        [-200.0, 1.0], "y = x * 1\np = torch.sigmoid(y)\nloss = p.log().sum()\ny.fill_(3)",
        "\nloss = p.clamp_min(1e-8)", "torch.tensor([0, 0.268941])",
    ),
    "a result that changed is not that of its call": (
        [2.0], "p = x / 2\np.zero_()\nloss = p.log().sum() + x.sum()", "undefined \n# a choice: a number below 1e-8 ",
        "x * 0 + 1",
    ),
    "a module of a loss": (
        [[1.0, 2.0]], "target = torch.tensor([-100])\nclass Own:\n    loss = torch.nn.CrossEntropyLoss()\n"
        "loss = Own().loss(x, target)", '\nloss = F.cross_entropy(x, target, reduction="sum", ignore_index=-100) / ',
        "x * 0",
    ),
    # The names of the user mean what they mean there, and no name of the user's is taken.
    "a name that is taken": (
        [[0.0, 1.0]], "p = x * 1\nloss = torch.sqrt(p[:, 0] * 2).sum()", "\nx_ = p[:, 0] * 2\n", "x * 0"
    ),
    "a name in a function that is taken": (
        [1.0, 2.0], "b = torch.ones(2)\ndef f(a):\n    def g():\n        return a * 0 / (x * 0) + b_\n"
        "    b_ = a.sum()\n    return g()\nloss = f(x).sum()", "\nb__ = x * 0\n", "x * 0 + 2",
    ),
    "the same tensor behind a with": (
        [400.0, 1.0], "loss = 0\nq = x * 1\nwith torch.enable_grad():\n    p = q.softmax(-1)\nfor _ in range(2):\n"
        "    if loss < 1:\n        z = 1\n        loss = loss - p.log()[1]",
        "\nloss = loss - F.log_softmax(q, dim=-1)[1]",
    ),
    "in a condition that runs again": (
        [0.0, 1.0], "i, each = 0, []\nwhile (each.append(torch.sqrt(x * 2).sum()) or i) < 2:\n    i += 1\n"
        "loss = sum(each)", "\nwhile (each.append(torch.where(x * 2 == 0", "torch.tensor([0, 3 * 0.5**0.5])",
    ),
    "behind a statement": (
        [0.0, 1.0], "y = x * 1\ny = y * 2; loss = torch.sqrt(y * 3).sum()",
        "\ny = y * 2; loss = torch.where(y * 3 == 0", "torch.tensor([0, 1.5**0.5])",
    ),
    "what is around a choice": (
        [3.0], "loss = (x + x.std() * 2).sum()", "(x + (x.std() if x.numel() > 1 else 0 * x.sum()) * 2)", "x * 0 + 1"
    ),
    "another variable is called F": (
        [-200.0], "def f(x, F):\n    return (x / F).sigmoid().log().sum()\nloss = f(x, 1)",
        "\nreturn torch.nn.functional.logsigmoid(x / F).sum()", "x * 0 + 1",
    ),
    "a string of the user": (
        [-200.0], 'd = {"it\'s e-07": 1.0}\nloss = (d["it\'s e-07"] * x).sigmoid().log().sum()',
        '\nloss = F.logsigmoid(d["it\'s e-07"] * x).sum()', "x * 0 + 1",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_gives_the_right_gradient_and_changes_no_other_variable(program, name):
    def check(numbers, lines, says, right=None, dtype="float32"):
        origin = program.origins(numbers, lines, dtype)[0]
        assert says in f"{origin.kind} {origin.exact}\n{origin.remedy}", origin
        before, after = program.run(), program.paste(origin)
        told = re.search(r"With this line, the loss is (.*), and every gradient", origin.remedy)
        assert told is None or float(told[1]) == pytest.approx(float(after["loss"].detach()), 1e-4)
        for key, value in before.items():
            is_kept = key != "loss" and not re.search("in_float|in float64[:,]|the limit", origin.remedy)
            if is_kept and isinstance(value, torch.Tensor) and value.isfinite().all():
                assert after[key].dtype is value.dtype and torch.equal(after[key], value), key
        program.write(numbers, lines, "float64")
        x = torch.tensor(numbers, dtype=torch.float64)
        expected = eval(right, {"torch": torch, "math": math, "x": x}) if right else program.run()["x"].grad
        rtol = 1e-2 if "16" in dtype or "16" in lines or "half" in lines else 1e-4
        torch.testing.assert_close(after["x"].grad, expected, rtol=rtol, atol=1e-3 * rtol, check_dtype=False)

    check(*WRITTEN[name])


def loop(lines):
    """A name means another tensor by the time that its softmax fails in a logarithm, in float64, too."""
    return [800.0, 1.0], f"loss = 0\n{lines}", "\nF.log_softmax(x_, dim=-1)"


EXISTS = "neither float64 nor a choice of 0 gives it: write the\n# formula in another way"
NOT_IN_FLOAT32 = "# or float32 for this function alone"
BOUND = "A bound keeps it finite"
MEANT = "the mistake before this line. A clamp hides it, unless it is a rounding. If it is meant:\n#   # a choice: "
ADVICE = {  # as above, where no line of the program is replaced
    "a negative number": ([0.5, 2.0], "loss = (x - 1).log().sum()", MEANT),
    "erf": ([8.0, 0.5], "loss = torch.log(1 - torch.erf(x)).sum()", EXISTS),
    "what rounding made negative, with a gradient of 0": (
        [800.0, 0.02], "r = torch.tensor(1.1, requires_grad=True)\n"
        "R = torch.stack([r.cos(), -r.sin(), r.sin(), r.cos()]).reshape(2, 2)\n"
        "loss = (R @ torch.diag(x.square()) @ R.T).det().sqrt()", "No line\n# that was tried in float64 was right",
    ),
    "of many elements": ([40.0] * 3000, "s = x.sigmoid()\nloss = (1 / (1 - s) ** 2).sum()", EXISTS),
    # In float64, 1 - sigmoid(36.5) is 1.1e-16 in place of 1.4e-16.
    "a number that is lost": (
        [-110.0, 1.0], "std = F.softplus(x)\nz = torch.ones(2) / std\nz.sum().backward()",
        "and its exact value is 5.92097e47: softplus(-110) in line 4 is 1.68891e-48, which is too small for float32, "
        "so it became 0\n# its dtype has no room for this number. A bound keeps it finite, and changes what is "
        "computed, as in\n# z = torch.ones(2) / std.clamp_min(1e-6)",
    ),
    "a line that makes numbers larger each time": (
        [1.0, 2.0], "h = x * 1\nfor _ in range(60):\n    h = h * 1e4\nloss = h.sum()",
        "; the calls of this line before it gave up to 2e28, 2e32, 2e36\n",
    ),
    "a difference that float64 loses, too": (
        [1.0], "a = x * 1e37\nb = torch.lgamma(a + 2) - torch.lgamma(a)\nloss = b.sum()", "overflow"
    ),
    "a number that the dtype has no room for": ([100.0], "loss = x.exp().sum()", f"{BOUND}, and changes what"),
    "a loss of the vectors themselves": (
        [[2.0, 0.0], [0.0, 2.0]], "u, _, _ = torch.linalg.svd(x)\nloss = u[0, 1] + u[0, 0]", "svdvals(x)"
    ),
    "a call that would run a second time": (
        [-800.0], "y = torch.sigmoid(x.mul(1))\ny.log().sum().backward()", "\nF.logsigmoid(x_)"
    ),
    "of the turn before": loop(
        "last = None\nfor q in [x, x / 100]:\n    p = q.softmax(-1)\n"
        "    loss = loss - (0 if last is None else last.log()[1])\n    last = p"
    ),
    "what writes it into float16": (
        [1.0, 3.0], "y = torch.zeros(2, dtype=torch.half)\ny[[0, 1]] = x.detach().half() * 4e4\n"
        "loss = (y.float() * 0 + x).sum()", NOT_IN_FLOAT32,
    ),
    "of a branch": loop(
        "q = x * 2\nfor i in range(3):\n    q = q / 2\n    if i == 0:\n        p = q.softmax(-1)\n"
        "    loss = loss - 2 * p.log()[1]"
    ),
    "changed in the branch of the later line": loop(
        "q = x * 1\np = q.softmax(-1)\nif True:\n    q = q / 100\n    loss = -p.log()[1]"
    ),
    "changed by a function": loop(
        "q = x * 1\ndef f():\n    global q\n    q = q / 100\np = q.softmax(-1)\nf()\nloss = -p.log()[1]"
    ),
    "in an object that has changed": loop(
        "class Q:\n    h = x\ndef f():\n    Q.h = x / 100\np = Q.h.softmax(-1)\nf()\nloss = -p.log()[1]"
    ),
    "of another function": loop("def f(q):\n    return q.softmax(-1)\nq = x / 100\nloss = -f(x).log()[1]"),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_where_no_line_is_right_none_is_written(program, name):
    numbers, lines, says = ADVICE[name]
    (origin, *_) = program.origins(numbers, lines)
    assert origin.replaces is None and says in f"{origin.kind} {origin.exact}\n{origin.remedy}", origin


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_told_of_a_long_trial(program, monkeypatch, capsys, is_terminal):
    monkeypatch.setattr(advice, "_SECONDS", 0.0)
    monkeypatch.setattr(narration, "advice_on", lambda chains, **_: time.sleep(0.05) or advice.NOTHING_TRIED)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    program.origins([0.0], "loss = x.sqrt().sum()")
    told = "explain: trying remedies for line 4 of program.py\n"
    assert capsys.readouterr().err == (told if is_terminal else "")


def test_calls_that_refuse_to_run_again_get_advice(program, monkeypatch):
    def refused(chains):
        raise RuntimeError("once only")

    monkeypatch.setattr(advice, "lost_on_the_way", refused)
    (origin,) = program.origins([0.0], "x.log().sum().backward()")
    assert origin.replaces is None and origin.remedy.startswith("# the numbers of this call are not known any more")


@pytest.mark.parametrize("pattern, code, value, line", [
    ("sqrt(x)", "0 * x", 0.0, "loss = x.sqrt().sum()"),  # wrong but at this number
    ("sqrt(1 - exp(x))", "(-x).sqrt()", -1e-9, "loss = torch.sqrt(1 - torch.exp(x)).sum()"),  # wrong for the other sign
])  # fmt: skip
def test_what_is_wrong_beside_the_numbers_is_not_written(program, monkeypatch, pattern, code, value, line):
    rewrite = Rewrite(ast.parse(pattern, mode="eval").body, code, "the slope is 0" if pattern == "sqrt(x)" else "")
    monkeypatch.setitem(REWRITES, function_in(rewrite.pattern), [rewrite])
    written = line.replace("x.sqrt()", "(0 * x)").replace("torch.sqrt(1 - torch.exp(x))", "(-x).sqrt()")
    for ordinary, is_written in ((trial._ORDINARY, False), (0, True)):
        monkeypatch.setattr(trial, "_ORDINARY", ordinary)
        (origin,) = program.origins([value], line)
        assert (origin.remedy.splitlines()[-1] == written) is is_written, origin


def test_the_variables_of_other_cells_are_not_free(program):
    """Cells of a notebook are files of their own, which share their variables."""
    names = {"torch": torch, "explain": explain, "x": 1}  # x is of another cell
    lines = "z = torch.zeros(2, requires_grad=True)\n    loss = torch.sqrt(z * 1).sum()\n    loss.backward()"
    program.path.write_text(f"with explain() as report:\n    {lines}")
    exec(compile(program.path.read_text(), str(program.path), "exec"), names)
    assert "x_ = z * 1" in names["report"].origins[0].remedy.splitlines(), names["report"]


def test_a_call_is_known_though_a_later_result_has_the_place_of_its_own_in_memory(monkeypatch):
    """Python gives the identity of a tensor that is gone to a later one."""
    x = torch.tensor([1.0, 1e-25], requires_grad=True)
    with explain() as report:
        monkeypatch.setattr(findings, "id", lambda thing: 1 if hasattr(thing, "grad_fn") else id(thing), raising=False)
        (slope,) = torch.autograd.grad(x.log().sum(), x, create_graph=True)
        monkeypatch.undo()
        slope.sum().backward()
    assert "second derivative is -1e50" in report.origins[0].exact
