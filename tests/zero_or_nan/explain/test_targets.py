"""A target that has NaN is compared where it is known, and the line that does so ran on the numbers of the program."""

import pytest
import torch

from zero_or_nan.explain.births.arithmetic import number

PREDICTED = "y = torch.tensor([0.5, torch.nan, 0.25, 0.75])\np = x * 1\n"
KNOWN = f"{PREDICTED}p, y = p[[0, 2, 3]].double(), y[[0, 2, 3]].double()\n"
WITHOUT_GRADIENT = "e = (torch.where(y.isnan(), p.detach(), p) - y) ** 2"
GAPS = {  # lines with a target y that has NaN, the line that is written, and the loss by the rows that are known
    "in two lines, with weights": (
        "w = torch.arange(4.0)\nloss = (w * (p - y).abs()).sum() / w.sum()",
        "loss = (w[known] * (p[known] - y[known]).abs()).sum() / w[known].sum()",
        "((p - y).abs() * torch.tensor([0.0, 2.0, 3.0])).sum() / 5",
    ),
    "a module, and a call in its line": (
        "class Own:\n    loss = torch.nn.HuberLoss()\nloss = Own.loss(x * 1, y.view(4))",
        "loss = Own.loss((x * 1)[known], target[known])", "((p - y) ** 2 / 2).mean()",
    ),
    "classes": (
        "y = torch.stack([y, 1 - y], 1)\nq = torch.stack([p, -p], 1)\nloss = F.cross_entropy(q, y)",
        "loss = F.cross_entropy(q[known], y[known])",
        "-(y * F.logsigmoid(2 * p) + (1 - y) * F.logsigmoid(-2 * p)).mean()",
    ),
    "a weight that has NaN": (
        "loss = F.mse_loss(y * x, torch.ones(4))", "loss = F.mse_loss(y[known] * x[known], torch.ones(4)[known])",
        "((y * p - 1) ** 2).mean()",
    ),
    "rows that are known in part, with a weight for each column": (
        "y, p = torch.stack([y, torch.ones(4)], 1), torch.stack([p, p], 1)\n"
        "e = F.smooth_l1_loss(p, y, reduction='none')\nloss = (e * torch.tensor([1.0, 0.2])).sum()",
        "e = torch.where(known, F.smooth_l1_loss(p, torch.where(known, y, 0), reduction='none'), 0)",
        "(((p - y) ** 2).sum() + 0.2 * ((x - 1) ** 2).sum()) / 2",
    ),
    # The program drops the NaN after the comparison. The line that is written gives the gradient that `ignoring` gives.
    "selected in its line": (
        "loss = F.mse_loss(p, y.view(4), reduction='none')[~y.isnan()].sum() / len(y)",
        "loss = F.mse_loss(p[known], target[known], reduction='none').sum() / len(y)", "",
    ),
    "selected later": ("e = (p - y) ** 2\nloss = e[~y.isnan()].mean()", WITHOUT_GRADIENT, ""),
    "the mean of all": (
        "loss = torch.where(y.isnan(), 0, (p - y) ** 2).mean()",
        "loss = torch.where(y.isnan(), 0, (p - torch.where(y.isnan(), 0, y)) ** 2).mean()", "",
    ),
}  # fmt: skip
NUMBERS = [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize("name", GAPS)
def test_a_target_with_gaps_is_compared_where_it_is_known(program, name):
    lines, line, right = GAPS[name]
    (origin,) = program.origins(NUMBERS, PREDICTED + lines)
    assert f"\n{line}\n" in f"{origin.remedy}\n" and "two-penguins" in origin.chapter, origin
    after = program.paste(origin)
    if right:
        assert origin.kind == "bad input" and f"value {number(after['loss'].item())}," in origin.remedy, origin
        program.write(NUMBERS, f"{KNOWN}loss = {right}")
    else:
        assert origin.kind == "contaminated" and origin.remedy.index(line) < origin.remedy.index("ignoring"), origin
        program.write(NUMBERS, f"{PREDICTED}{lines}\nfrom zero_or_nan import ignoring\nignoring.backward(loss)")
    found, expected = ([names["loss"], names["x"].grad] for names in (after, program.run()))
    torch.testing.assert_close(found, expected, check_dtype=False)


TARGET, DATA = "in a target", "good = torch.isfinite("
NO_GAPS = {
    "loss = (p - y).var()": TARGET,
    "loss = (p.view(2, 2) - y.view(2, 2)).abs().mean(0).sum()": TARGET,
    "d = p.view(2, 2) - y.view(2, 2)\nloss = d.abs().mean()\nlog = d.mean(0)": TARGET,
    "loss = sum(F.mse_loss(q, t) for q, t in [(p, y)])": TARGET,
    "loss = (\n    F.mse_loss(p, y)\n)": TARGET,
    "loss = F.mse_loss(torch.cumsum(y, 0) * x, y)": DATA,
    "y = y.nan_to_num(torch.inf)\nloss = F.mse_loss(p, y)": DATA,
    # The gradient of s is 0 × NaN, too, and to leave the gaps out is another mean.
    "s = torch.ones((), requires_grad=True)\nloss = (s * (p - y) ** 2).nan_to_num(0).mean()": "ignoring.backward(loss)",
}


@pytest.mark.parametrize("lines", NO_GAPS)
def test_elements_that_have_no_loss_of_their_own_are_not_left_out(program, lines):
    (origin, *_) = program.origins(NUMBERS, PREDICTED + lines)
    assert origin.replaces is None or "ignoring" in origin.remedy, origin
    assert NO_GAPS[lines] in origin.remedy, origin


def test_each_origin_of_a_program_has_its_own_line_and_number(program):
    lines = "t = torch.tensor([torch.nan, 1, 1, 1])\none = F.mse_loss(p, y)\nloss = one + F.l1_loss(p, t)"
    found = [each.remedy.splitlines()[-1] for each in program.origins(NUMBERS, PREDICTED + lines)]
    assert found == ["one = F.mse_loss(p[known], y[known])", "loss = one + F.l1_loss(p[known], t[known])"]
    _, origin = program.origins([100.0, 1.0], "y = x.exp() * 2\nz = y * 3e38\nz.sum().backward()")
    assert origin.exact == "and its exact value is 1.63097e39: float32 ends at 3.4e38", "not of the other element"


# By name: losses that are no sums over the elements, or not only.
NO_SUMS = {
    "a mean by another name": "e = p - y\nloss = F.mse_loss(e, torch.zeros(3, 2))",
    "a share for each element, which is 0 now": (
        "s = torch.zeros(2, requires_grad=True)\nr = (p - y) / s.exp()\nloss = (0.5 * r**2 + s).sum()"
    ),
    "one column is missing": "y[:, 1] = torch.nan\nd = p - y\nloss = d.var()",
}


@pytest.mark.parametrize("name", NO_SUMS)
def test_a_loss_of_0_is_no_remedy_if_the_loss_is_no_sum(program, name):
    before = "y = torch.tensor([[1.0, torch.nan], [2.0, 3.0], [0.5, 1.5]])\np = torch.stack([x, x], 1)\n"
    (origin, *_) = program.origins([0.1, 0.2, 0.3], before + NO_SUMS[name])
    assert "with a loss of 0" not in origin.remedy, origin.remedy


def test_a_line_is_not_written_if_another_call_of_it_has_no_known_target(program):
    lines = "loss = 0\nfor p, y in zip(x.view(2, 2), torch.tensor([[1.0, torch.nan], [torch.nan, torch.nan]])):\n"
    (origin, *_) = program.origins(NUMBERS, f"{lines}    loss = loss + F.mse_loss(p * 1, y)")
    assert origin.replaces is None


def test_rows_are_not_left_out_if_none_is_left(program):
    lines = (
        "y = torch.tensor([[1, 0, torch.nan], [0, torch.nan, 1], [torch.nan, 1, 0]])\nq = x[:3, None] * torch.ones(3)\n"
    )
    lines += "weight = torch.tensor([1.0, 2.0, 3.0])\n"
    lines += "loss = F.binary_cross_entropy_with_logits(q, y, pos_weight=weight, reduction='sum') / len(q)"
    assert "any(-1)" not in program.origins(NUMBERS, lines)[0].remedy
