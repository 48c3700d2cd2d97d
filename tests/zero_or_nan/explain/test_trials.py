"""A remedy that stands in a report ran on the numbers of the call: what it gives, how it is written, what is refused.

Each program is a file of its own, so that a remedy can be pasted into it, and the file can run again.
"""

import linecache
import textwrap

import pytest
import torch

from zero_or_nan import explain
from zero_or_nan.explain.births.arithmetic import number
from zero_or_nan.explain.report import trial

HEAD = "import torch\nimport torch.nn.functional as F\n"


@pytest.fixture
def first(tmp_path, monkeypatch):
    """Explains a program, and gives the first origin, or another one."""
    monkeypatch.chdir(tmp_path)

    def explained(source, head=HEAD, at=0):
        (tmp_path / "program.py").write_text(head + textwrap.dedent(source))
        linecache.checkcache()
        with explain() as report:
            ran(tmp_path / "program.py")
        return report.origins[at]

    return explained


def ran(path):
    """The variables of a program."""
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def pasted(path, origin):
    """The variables of a program, with the remedy in place of the line that it replaces."""
    lines = path.read_text().splitlines()
    line = lines[origin.replaces - 1]
    indent = line[: len(line) - len(line.lstrip())]
    lines[origin.replaces - 1 : origin.replaces] = [indent + each for each in origin.remedy.splitlines()]
    path.write_text("\n".join(lines))
    return ran(path)


def leaf(values, dtype="torch.float32"):
    return f"x = torch.tensor({values}, dtype={dtype}, requires_grad=True)\n"


EXACT = {  # the numbers of x, the lines that fail, and the beginning of the line that is written
    "softmax": ([200.0, 1.0], "p = x.softmax(-1)\nloss = -torch.log(p)[1]", "loss = -F.log_softmax(x, dim=-1)[1]"),
    "one minus": ([30.0], "p = torch.sigmoid(x)\nloss = -torch.log(1 - p).sum()", "loss = -F.logsigmoid(-x).sum()"),
    "softplus": ([100.0], "loss = torch.log(torch.exp(2 * x) + 1).sum()", "loss = F.softplus(2 * x).sum()"),
    "likelihood by hand": (
        [[200.0, 1.0], [1.0, 2.0]],
        "y = torch.tensor([1, 0])\np = F.softmax(x, dim=1)\nloss = -torch.log(p[torch.arange(2), y]).mean()",
        "loss = -F.log_softmax(x, dim=1)[torch.arange(2), y].mean()",
    ),
    "gathered": (
        [[200.0, 1.0], [1.0, 2.0]],
        "y = torch.tensor([[1], [0]])\np = x.softmax(1)\nloss = -p.gather(1, y).log().mean()",
        "loss = -F.log_softmax(x, dim=1).gather(1, y).mean()",
    ),
    "mean of powers": ([200.0, 1.0], "loss = torch.log(torch.mean(torch.exp(x)))", "loss = x.flatten().logsumexp(0)"),
    "matrix of powers": (
        [[200.0, 1.0], [1.0, 2.0]], "loss = torch.log(torch.exp(x) @ torch.exp(x)).sum()",
        "loss = (x.unsqueeze(-1) + x.unsqueeze(-3)).logsumexp(-2).sum()",
    ),
    "softmax by hand": (
        [100.0, 99.0], "e = x.exp()\np = e / e.sum(0, keepdim=True)\nloss = p.square().sum()", "p = x.softmax(0)",
    ),
    "a weight of 0": (
        [100.0, 1.0], "a = torch.tensor([0.0, 2.0])\nloss = (x.exp() * a).sum()", "loss = (torch.where(a == 0, 0, ",
    ),
    "in float64": (
        [-200.0, -203.0], "power = x.exp()\np = power / power.sum()\nloss = p.square().sum()",
        "power = x.double().exp()",
    ),
    "float16": ([300.0, 1.0], "s = x * x\nloss = s.sum().sqrt()", "loss = torch.linalg.vector_norm(x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_it_gives_the_gradient_of_float64(first, tmp_path, name):
    numbers, source, line = EXACT[name]
    origin = first(leaf(numbers, f"torch.{name if name == 'float16' else 'float32'}") + f"{source}\nloss.backward()\n")
    assert "# tried on your numbers" in origin.remedy, origin
    assert [each for each in origin.remedy.splitlines() if each.startswith(line)], origin
    gradient = pasted(tmp_path / "program.py", origin)["x"].grad.double()
    wide = {}
    exec(HEAD + leaf(numbers, "torch.float64") + f"{source}\nloss.backward()", wide)
    torch.testing.assert_close(gradient, wide["x"].grad, rtol=1e-2 if name == "float16" else 1e-4, atol=1e-7)


def test_what_float64_rounds_too_is_an_exact_number_all_the_same(first, tmp_path):
    origin = first(leaf([200.0, 0.5]) + "p = x.sigmoid()\nloss = -torch.log(1 - p).sum()\nloss.backward()")
    assert origin.kind == "overflow" and origin.exact.startswith("and its exact value is -200: float64 rounds"), origin
    gradient = pasted(tmp_path / "program.py", origin)["x"].grad
    torch.testing.assert_close(gradient, torch.tensor([200.0, 0.5]).sigmoid())
    origin = first(leaf([0.0, 2.0]) + "loss = torch.logsumexp(torch.log(x), 0)\nloss.backward()")
    assert origin.kind == "undefined" and not origin.exact, "log(0) is no number"
    assert pasted(tmp_path / "program.py", origin)["x"].grad.tolist() == [0.5, 0.5]


CHOICES = {
    "root": (leaf([0.0, 4.0]) + "loss = x.sqrt().sum()", "the slope at 0 is 0", [0.0, 0.25]),
    "length": (
        leaf([[0.0, 0.0], [3.0, 4.0]]) + "loss = (x**2).sum(-1).sqrt().sum()", "a length of 0",
        [[0.0, 0.0], [0.6, 0.8]],
    ),
    "entropy": (leaf([0.0, 1.0]) + "loss = (x * x.log()).sum()", "0 times a logarithm is 0", [0.0, 1.0]),
    "quotient": (leaf([0.0, 2.0]) + "loss = (x / torch.tensor([0.0, 4.0])).sum()", "a / 0 is 0", [0.0, 0.25]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_it_says_what_it_chooses(first, tmp_path, name):
    source, choice, gradient = CHOICES[name]
    origin = first(f"{source}\nloss.backward()\n")
    assert origin.remedy.startswith("# a choice: ") and choice in origin.remedy.splitlines()[0], origin
    names = pasted(tmp_path / "program.py", origin)
    assert names["loss"].isfinite()
    torch.testing.assert_close(names["x"].grad, torch.tensor(gradient))


REFUSED = {
    "the limit is another": leaf([0.0]) + "w = torch.sin(0.75 * x) / torch.sin(x)\nloss = w.sum()",
    "what follows is right": leaf([0.0]) + "v = (2 + x) / (x * 0 + 0)\nloss = torch.tanh(v).sum() * x.sum()",
    "a number on the way was lost": leaf([4e-13, 1e-13]) + "loss = 1 - (x.mean() / torch.sqrt((x * x).mean() ** 2))",
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_choice_gives_a_wrong_number(first, name):
    origin = first(f"{REFUSED[name]}\nloss.backward()\n")
    assert "a / 0 is 0" not in origin.remedy and "the slope at 0" not in origin.remedy, origin


HALVES = {  # lines that leave float16, and the lines that are written
    "autocast": (
        "layer = torch.nn.Linear(2, 2)\nlayer.weight.data = torch.eye(2) * 300\n"
        "with torch.autocast('cpu', dtype=torch.float16):\n    q = layer(x)\n    s = q @ q.T\n"
        "    loss = (s * 1e-6).square().sum()",
        ['with torch.autocast("cpu", enabled=False):', "    s = q.float() @ q.T.float()"],
    ),
    "a module": (
        "layer = torch.nn.Linear(2, 1).half()\nlayer.weight.data[:] = 3e4\n"
        "s = layer(x.half() + 3)\nloss = (s.float() * 1e-6).square().sum()",
        ["s = layer.float()((x.half() + 3).float())"],
    ),
}


@pytest.mark.parametrize("name", HALVES)
def test_what_leaves_float16_is_computed_in_float32_in_the_line_where_it_leaves(first, tmp_path, name):
    source, lines = HALVES[name]
    program = leaf([[1.0, 2.0], [0.5, 1.0]]) + f"torch.manual_seed(0)\n{source}\nloss.backward()"
    origin = first(program)
    assert origin.remedy.splitlines()[1:] == lines, origin
    wide = {}
    exec(HEAD + program.replace("dtype=torch.float16", "enabled=False").replace("half()", "float()"), wide)
    torch.testing.assert_close(pasted(tmp_path / "program.py", origin)["x"].grad, wide["x"].grad, rtol=1e-2, atol=1e-9)


def test_calls_run_again_under_the_autocast_that_they_had(first):
    """Autocast computes a product of half precision in float32."""
    source = "with torch.autocast('cpu', dtype=torch.bfloat16):\n    q = F.linear(x, torch.full((12, 1), 1e-5))\n"
    origin = first(leaf([[1.0]]) + source + "    loss = torch.prod(q).log()\nloss.backward()")
    assert "prod in line 6 is 1e-60" in origin.exact, origin


NOT_IN_FLOAT32 = {
    "what follows takes float16 alone": "s = x.half() * 4e4\nloss = F.linear(s, torch.ones(1, 2).half()).sum()",
    "it leaves float16 once more": "s = x.half() * 4e4\nt = s * 2\nloss = t.to(torch.float16).sum() / 2",
    "it leaves float16 after a while": "s = x.half() * 4e4\nt = (s.float() * 2).half()\nloss = t.float().sum()",
    "another module contains this one": "net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 1)).half()\n"
    "net[1].weight.data[:] = 6e4\ns = net(x.half())\nloss = (s.float() * 1e-6).square().sum()",
}


@pytest.mark.parametrize("name", NOT_IN_FLOAT32)
def test_a_line_that_would_not_run_in_float32_is_not_written(first, name):
    origin = first(leaf([[1.0, 2.0], [0.5, 1.0]]) + NOT_IN_FLOAT32[name] + "\nloss.backward()")
    assert origin.dtype == "float16" and origin.replaces is None, origin


GAPS = {  # lines with a target y that has NaN, the line that is written, and the loss by the rows that are known
    "by hand": ("loss = ((p - y) ** 2).mean()", "loss = ((p[known] - y[known]) ** 2).mean()", "((p - y) ** 2).mean()"),
    "in two lines, with weights": (
        "w = torch.arange(4.0)\nloss = (w * (p - y).abs()).sum() / w.sum()",
        "loss = (w[known] * (p[known] - y[known]).abs()).sum() / w[known].sum()",
        "((p - y).abs() * torch.tensor([0.0, 2.0, 3.0])).sum() / 5",
    ),
    "a module, and a call in its line": (
        "class Own:\n    loss = torch.nn.HuberLoss()\nloss = Own.loss(x * 1, y.view(4))",
        "loss = Own.loss((x * 1)[known], target[known])", "((p - y) ** 2 / 2).mean()",
    ),
    "a number of elements that stays": (
        "loss = ((p - y) ** 2).sum() / len(y)", "loss = ((p[known] - y[known]) ** 2).sum() / len(y)",
        "((p - y) ** 2).sum() / 4",
    ),
    "classes": (
        "y = torch.stack([y, 1 - y], 1)\nq = torch.stack([p, -p], 1)\nloss = F.cross_entropy(q, y)",
        "loss = F.cross_entropy(q[known], y[known])",
        "-(y * F.logsigmoid(2 * p) + (1 - y) * F.logsigmoid(-2 * p)).mean()",
    ),
    "a mask": (
        "m = (torch.arange(4) != 1) / 3\nloss = (F.mse_loss(p, y, reduction='none') * m).sum()",
        "loss = (F.mse_loss(p, torch.where(y.isnan(), 0, y), reduction='none') * m).sum()", "((p - y) ** 2).mean()",
    ),
}  # fmt: skip
PREDICTED = leaf([0.1, 0.2, 0.3, 0.4]) + "y = torch.tensor([0.5, torch.nan, 0.25, 0.75])\np = x * 1\n"
KNOWN = PREDICTED + "p, y = p[[0, 2, 3]].double(), y[[0, 2, 3]].double()\n"


@pytest.mark.parametrize("name", GAPS)
def test_a_target_with_gaps_is_compared_where_it_is_known(first, tmp_path, name):
    source, line, right = GAPS[name]
    origin = first(f"{PREDICTED}{source}\nloss.backward()\n")
    assert origin.kind == "bad input" and line in origin.remedy, origin
    assert "two-penguins" in origin.chapter
    reference = {}
    exec(f"{HEAD}{KNOWN}loss = {right}\nloss.backward()", reference)
    names = pasted(tmp_path / "program.py", origin)
    torch.testing.assert_close(names["x"].grad, reference["x"].grad)
    assert f"value {number(names['loss'].item())}," in origin.remedy, "it is the loss that was tried"


WITHOUT_GRADIENT = "e = (torch.where(y.isnan(), p.detach(), p) - y) ** 2"
DROPPED = {  # lines that drop the NaN of y after the comparison, and the line that is written
    "selected in its line": (
        "loss = F.mse_loss(p, y.view(4), reduction='none')[~y.isnan()].sum() / len(y)",
        "loss = F.mse_loss(p[known], target[known], reduction='none').sum() / len(y)",
    ),
    "a mean of what is no NaN": ("loss = ((p - y) ** 2).nanmean()", "loss = ((p[known] - y[known]) ** 2).nanmean()"),
    "with weights": (
        "w = torch.arange(4.0)\nloss = (w * (p - y) ** 2).nansum()",
        "loss = (w[known] * (p[known] - y[known]) ** 2).nansum()",
    ),
    "selected later": ("e = (p - y) ** 2\nloss = e[~y.isnan()].mean()", WITHOUT_GRADIENT),
    "selected later, by the errors": ("e = (p - y) ** 2\nloss = e[~e.isnan()].mean()", WITHOUT_GRADIENT),
    "counted later": ("e = (p - y) ** 2\nloss = e.nansum() / (~e.isnan()).sum()", WITHOUT_GRADIENT),
    "with a number of all": ("e = (p - y) ** 2\nloss = e.nansum() / len(e)", WITHOUT_GRADIENT),
    "counted as 0": (
        "loss = F.mse_loss(p, y, reduction='none').nan_to_num(0).mean()",
        "loss = F.mse_loss(torch.where(y.isnan(), p.detach(), p), y, reduction='none').nan_to_num(0).mean()",
    ),
    "with weights and a number of all": (
        "w = torch.arange(4.0)\nloss = (w * (p - y) ** 2).nansum() / len(y)",
        "loss = (w * (torch.where(y.isnan(), p.detach(), p) - y) ** 2).nansum() / len(y)",
    ),
    "the mean of all": (
        "loss = torch.where(y.isnan(), 0, (p - y) ** 2).mean()",
        "loss = torch.where(y.isnan(), 0, (p - torch.where(y.isnan(), 0, y)) ** 2).mean()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPED)
def test_a_target_whose_gaps_are_dropped_later_is_compared_without_them(first, tmp_path, name):
    """The line that is written comes first, gives the loss of the program, and the gradient that `ignoring` gives."""
    source, line = DROPPED[name]
    origin = first(f"{PREDICTED}{source}\nloss.backward()\n")
    assert origin.kind == "contaminated" and origin.remedy.index(f"\n{line}\n") < origin.remedy.index("ignoring")
    assert "two-penguins" in origin.chapter
    reference = {}
    exec(f"{HEAD}{PREDICTED}{source}\nfrom zero_or_nan import ignoring\nignoring.backward(loss)", reference)
    names = pasted(tmp_path / "program.py", origin)
    torch.testing.assert_close([names["loss"], names["x"].grad], [reference["loss"], reference["x"].grad])


def test_gaps_that_reach_more_than_the_prediction_need_ignoring(first):
    """The gradient of s is 0 × NaN, too, and to leave the gaps out is another mean."""
    s = "s = torch.ones((), requires_grad=True)\n"
    origin = first(f"{PREDICTED}{s}loss = (s * (p - y) ** 2).nan_to_num(0).mean()\nloss.backward()\n")
    assert origin.kind == "contaminated" and origin.remedy.startswith("from zero_or_nan") and origin.replaces is None
    assert "two-penguins" in origin.chapter


NO_GAPS = {
    "what is missing changes the others": "loss = (p - y).var()",
    "a mean of each column": "loss = (p.view(2, 2) - y.view(2, 2)).abs().mean(0).sum()",
    "they are used otherwise, too": "d = p.view(2, 2) - y.view(2, 2)\nloss = d.abs().mean()\nlog = d.mean(0)",
    "features": "loss = F.mse_loss(y * x, torch.ones(4))",
    "features that are the target, too": "loss = F.mse_loss(torch.cumsum(y, 0) * x, y)",
    "names that are only in the line": "loss = sum(F.mse_loss(q, t) for q, t in [(p, y)])",
    "an infinite target": "y = y.nan_to_num(torch.inf)\nloss = F.mse_loss(p, y)",
}


@pytest.mark.parametrize("name", NO_GAPS)
def test_elements_that_have_no_loss_of_their_own_are_not_left_out(first, name):
    origin = first(f"{PREDICTED}{NO_GAPS[name]}\nloss.backward()\n")
    assert origin.kind == "bad input" and origin.replaces is None, origin
    is_of_data = name in ("features", "features that are the target, too", "an infinite target")
    assert ("target" in origin.remedy) != is_of_data, origin


def test_each_target_has_its_own_line(first):
    source = "t = torch.tensor([torch.nan, 1, 1, 1])\none = F.mse_loss(p, y)\nloss = one + F.l1_loss(p, t)"
    lines = [first(f"{PREDICTED}{source}\nloss.backward()\n", at=at).remedy.splitlines()[-1] for at in (0, 1)]
    assert lines == ["one = F.mse_loss(p[known], y[known])", "loss = one + F.l1_loss(p[known], t[known])"]


def test_a_number_that_was_lost_is_named(first):
    origin = first(leaf([-110.0, 1.0]) + "std = F.softplus(x)\nz = torch.ones(2) / std\nz.sum().backward()")
    lost = "softplus(-110) in line 4 is 1.68891e-48, and float32 has nothing so small and gives 0"
    assert origin.exact == f"and its exact value is 5.92097e47: {lost}"
    assert origin.replaces is None and origin.remedy.splitlines()[-1] == "# std = F.softplus(x) + 1e-6"
    origin = first(leaf([30.0]) + "p = torch.sigmoid(x)\nq = 1 - p\n(1 / q).sum().backward()")
    assert origin.exact.endswith("1 - p in line 5 is 9.34808e-14, and in float32 rounding gives 0"), origin.exact


def test_a_bound_is_no_remedy_but_advice(first):
    origin = first(leaf([100.0, 1.0]) + "loss = x.exp().sum()\nloss.backward()")
    assert origin.exact == "and its exact value is 2.68812e43: float32 ends at 3.4e38"
    assert origin.replaces is None and origin.remedy.splitlines()[-1] == "# loss = x.clamp(max=20).exp().sum()"


def test_a_line_that_makes_numbers_larger_each_time_is_no_line_to_rewrite(first):
    source = "h = x * 1\nfor _ in range(60):\n    h = h * 1e4\nloss = h.sum()\nloss.backward()"
    origin = first(leaf([1.0, 2.0]) + source)
    assert origin.exact.endswith("the calls of this line before it gave up to 2e28, 2e32, 2e36"), origin
    assert "normalize between layers" in origin.remedy and "exploding" in origin.chapter
    origin = first(leaf([1.0, 2.0]) + source.replace("1e4", "(-1e39 if h.max() > 1 else 1)"))
    assert "this line before" not in origin.exact


def test_a_number_that_was_only_rounded_is_known_to_exist(first):
    origin = first(leaf([1e-4]) + "c = torch.cos(x)\nangle = torch.acos(c)\nangle.sum().backward()")
    assert origin.exact.startswith("and its exact derivative is 1:") and origin.exact.endswith(
        "loses a number on the way to it"
    )
    assert "a choice" not in origin.remedy


def test_an_expression_that_means_another_tensor_or_would_run_again_is_not_used(first):
    origin = first(leaf([-200.0]) + "y = x * 1\ny = torch.sigmoid(y)\ny.log().sum().backward()")
    assert origin.replaces is None
    assert origin.remedy.splitlines()[1:] == [
        "# in place of log in line 6",
        "# x is an operand of sigmoid in line 5",
        "F.logsigmoid(x)",
    ]
    origin = first(leaf([-200.0]) + "y = torch.sigmoid(x.mul(1))\ny.log().sum().backward()")
    assert origin.replaces is None and "mul" not in origin.remedy, "the call would run a second time"


def test_without_the_import_of_functional_the_whole_name_is_written(first):
    source = leaf([-200.0]) + "p = torch.sigmoid(x)\np.log().sum().backward()"
    assert first(source, head="import torch\n").remedy.splitlines()[-1] == (
        "torch.nn.functional.logsigmoid(x).sum().backward()"
    )


def test_under_no_grad_only_the_value_has_to_be_right(first, tmp_path):
    """The slope of a square root at 0 is infinite, but nothing asks for it here."""
    lines = "with torch.no_grad():\n    w = x.sqrt() / x.sqrt().sum().sub(1)\n(w * x).sum().backward()"
    origin = first(leaf([0.0, 1.0]) + lines)
    assert "Tried on your numbers" in origin.remedy
    assert pasted(tmp_path / "program.py", origin)["x"].grad.isfinite().all()


def test_the_exact_value_is_that_of_the_element_that_the_call_lost(first):
    """The other element was lost in the line before."""
    source = leaf([100.0, 1.0]) + "y = x.exp() * 2\nz = y * 3e38\nz.sum().backward()"
    assert first(source, at=1).exact == "and its exact value is 1.63097e39: float32 ends at 3.4e38"


def test_what_was_computed_under_no_grad_gets_no_gradient_from_a_remedy(first):
    """log_softmax in the second line would have a gradient that the program does not have."""
    lines = "with torch.no_grad():\n    p = x.softmax(-1)\nloss = (torch.log(p) * x).sum()\nloss.backward()"
    assert "log_softmax" not in first(leaf([200.0, 1.0]) + lines).remedy
    inside = lines.replace("p = x.softmax(-1)\n", "p = torch.log(x.softmax(-1))\n").replace("torch.log(p)", "p")
    assert "p = F.log_softmax(x, dim=-1)" in first(leaf([200.0, 1.0]) + inside).remedy


def test_what_was_changed_in_place_since_is_not_tried(first):
    origin = first(
        leaf([-200.0, 1.0]) + "y = x * 1\np = torch.sigmoid(y)\nloss = p.log().sum()\ny.fill_(3)\nloss.backward()"
    )
    assert "logsigmoid" not in origin.remedy


def test_what_draws_random_numbers_is_not_run_again_as_if_it_did_not(first):
    origin = first(
        "torch.manual_seed(0)\n" + leaf([0.0, 4.0]) + "y = F.dropout(x, 0.5)\nloss = y.sqrt().sum()\nloss.backward()"
    )
    assert origin.operator == "sqrt" and "Tried on your numbers: value 0, gradient 0" in origin.remedy


def test_a_module_of_a_loss_is_replaced_by_its_function(first, tmp_path):
    lines = "target = torch.tensor([-100])\nclass Own:\n    loss = torch.nn.CrossEntropyLoss()\n"
    origin = first(leaf([[1.0, 2.0]]) + lines + "loss = Own().loss(x, target)\nloss.backward()")
    assert origin.remedy.splitlines()[-1] == (
        'loss = F.cross_entropy(x, target, reduction="sum", ignore_index=-100) / (target != -100).sum().clamp_min(1)'
    )
    assert pasted(tmp_path / "program.py", origin)["loss"] == 0


def test_a_result_that_was_changed_in_place_is_not_that_of_its_call(first):
    origin = first(leaf([2.0]) + "p = x / 2\np.zero_()\nloss = p.log().sum() + x.sum()\nloss.backward()")
    assert "a number below 1e-8" in origin.remedy and not origin.exact and "x.log()" not in origin.remedy


def test_calls_that_refuse_to_run_again_get_advice(first, monkeypatch):
    def refused(chains):
        raise RuntimeError("once only")

    monkeypatch.setattr(trial, "lost_on_the_way", refused)
    origin = first(leaf([0.0]) + "x.log().sum().backward()")
    assert origin.replaces is None and origin.remedy.startswith("# the numbers of this call are not known any more")


def test_the_numbers_beside_a_remedy_are_those_of_the_element_that_failed(first):
    origin = first(leaf([1.0, 2.0, 1e-30]) + "y = (x * x).sqrt()\ny.sum().backward()")
    assert origin.exact.startswith("and its exact derivative is 1: ") and "value 1e-30" in origin.remedy
    origin = first(leaf([1.0, 2.0, 0.0]) + "y = x.sqrt()\ny.sum().backward()")
    assert "the slope at 0 is 0. Tried on your numbers: value 0, gradient 0" in origin.remedy


def test_advice_is_tried_where_backward_runs_under_no_grad(first):
    source = "p = (x * 300).softmax(0)\nloss = (p * p.log()).sum()\nwith torch.no_grad():\n    loss.backward()"
    origin = first(leaf([1.0, 2.0]) + source)
    assert origin.kind == "overflow" and "log_softmax(x * 300, dim=0)" in origin.remedy
