"""A remedy that is pasted uses the user's names for what they mean there, and takes no name that the user has."""

import ast

import pytest
import torch
from pasting import leaf, pasted, ran

from zero_or_nan import explain
from zero_or_nan.explain.program.source import Expression
from zero_or_nan.explain.report import trial
from zero_or_nan.functions.rewrites import REWRITES, Rewrite, function_in

TAKEN = {  # lines with a variable that has the name in a rewrite, and the line that is written before the failed one
    "a leaf": (leaf([[0.0, 1.0]]) + "p = x * 1\nloss = torch.sqrt(p[:, 0] * 2).sum()", "x_ = p[:, 0] * 2"),
    "of a target": (
        leaf([1.0, 2.0]) + "y = torch.tensor([3.0, torch.nan])\nknown = target = torch.ones(2)\n"
        "loss = F.mse_loss(x * 1, y + 0) * known.sum()", "known_ = ~target_.isnan()",
    ),
    "in a function": (
        leaf([1.0, 2.0]) + "b = torch.ones(2)\ndef f(a):\n    def g():\n        return a / (x * 0) + b_\n"
        "    b_ = a.sum()\n    return g()\nloss = f(x).sum()", "b__ = x * 0",
    ),
    "a leaf in float16": (
        leaf([300.0, 1.0], "torch.float16") + "m = x * x\nloss = (m.sum() / x.sum()).sqrt()",
        "m = x.float() * x.float()",
    ),
    "of another call in the line": (
        leaf([[1.0, 2.0]], "torch.float16") + "w = torch.full((2, 1), 4e4).half()\ns, t = x @ w, x * 1\n"
        "loss = s.float().sum() * 1e-6 + t.sum()", "s, t = x.float() @ w.float(), x * 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_no_other_variable_changes(first, tmp_path, name):
    source, line = TAKEN[name]
    origin = first(f"{source}\nloss.backward()")
    before = ran(tmp_path / "program.py")
    assert line in origin.remedy.splitlines(), origin
    after = pasted(tmp_path / "program.py", origin)
    for key, value in before.items():
        if isinstance(value, torch.Tensor) and value.isfinite().all():
            assert after[key].dtype is value.dtype and torch.equal(after[key], value), key
    assert after["x"].grad.isfinite().all()


ANOTHER = {  # lines in which a name means another tensor by the time that its softmax fails in a logarithm
    "of the last turn of a loop": "ps = []\nfor q in [x, x / 2]:\n    ps.append(q.softmax(-1))\n"
    "for p in ps:\n    loss = loss - p.log()[1]",
    "of the turn before": "last = None\nfor q in [x, x / 100]:\n    p = q.softmax(-1)\n"
    "    loss = loss - (0 if last is None else last.log()[1])\n    last = p",
    "changed in a later line of a loop": "q = x * 1\np = q.softmax(-1)\nfor _ in range(3):\n"
    "    loss = loss - p.log()[1]\n    q = q / 10",
    "of a branch": "q = x * 1\nfor i in range(3):\n    q = q / 2\n    if i == 0:\n        p = q.softmax(-1)\n"
    "    loss = loss - 2 * p.log()[1]",
    "changed in the branch of the later line": "q = x * 1\np = q.softmax(-1)\nif True:\n    q = q / 100\n"
    "    loss = -p.log()[1]",
    "of the turn before, in a later line": "p = None\nfor q in [x, x / 100]:\n    if p is not None:\n"
    "        loss = loss - p.log()[1]\n    p = q.softmax(-1)",
    "changed by a function": "q = x * 1\ndef f():\n    global q\n    q = q / 100\np = q.softmax(-1)\nf()\n"
    "loss = -p.log()[1]",
    "in a list that has changed": "q = [x]\np = q[0].softmax(-1)\nq.insert(0, x / 100)\nloss = -p.log()[1]",
    "in an object that has changed": "class Q:\n    h = x\ndef f():\n    Q.h = x / 100\np = Q.h.softmax(-1)\nf()\n"
    "loss = -p.log()[1]",
    "of another function": "def f(q):\n    return q.softmax(-1)\nq = x / 100\nloss = -f(x).log()[1]",
}


@pytest.mark.parametrize("name", ANOTHER)
def test_a_name_that_means_another_tensor_by_then_is_not_written(first, name):
    origin = first(leaf([400.0, 1.0]) + f"loss = 0\n{ANOTHER[name]}\nloss.backward()")
    assert origin.replaces is None and origin.remedy.splitlines()[-1] == "F.log_softmax(x_, dim=-1)", origin


THE_SAME = {
    "in each turn": "for q in [x, x / 100]:\n    p = q.softmax(-1)\n    loss = loss - p.log()[1]",
    "behind a with": "q = x * 1\nwith torch.enable_grad():\n    p = q.softmax(-1)\nfor _ in range(2):\n"
    "    if loss < 1:\n        z = 1\n        loss = loss - p.log()[1]",
}


@pytest.mark.parametrize("name", THE_SAME)
def test_a_name_that_means_the_same_is_written(first, tmp_path, name):
    origin = first(leaf([400.0, 1.0]) + f"loss = 0\n{THE_SAME[name]}\nloss.backward()")
    assert origin.remedy.splitlines()[-1] == "loss = loss - F.log_softmax(q, dim=-1)[1]", origin


IN_FRONT = {  # lines whose second operand can't stand in a line of its own before them, and what is written
    "i, each = 0, []\nwhile (each.append(torch.sqrt(x * 2).sum()) or i) < 2:\n    i += 1\nloss = sum(each)": (
        "while (each.append(torch.where(x * 2 == 0"
    ),
    "y = x * 1\ny = y * 2; loss = torch.sqrt(y * 3).sum()": "y = y * 2; loss = torch.where(y * 3 == 0",
    "loss = (\n    torch.sqrt(x * 2)\n).sum()": "torch.where(x * 2 == 0",
}


@pytest.mark.parametrize("source", IN_FRONT)
def test_a_line_in_front_runs_whenever_the_line_does(first, source):
    origin = first(leaf([0.0, 1.0]) + f"{source}\nloss.backward()")
    assert origin.remedy.splitlines()[-1].startswith(IN_FRONT[source]), origin


def test_a_call_that_is_an_operand_does_not_run_twice(first):
    origin = first(leaf([0.0, 1.0]) + "loss = sum(torch.sqrt(q.mul(2)).sum() for q in [x])\n(loss * 1).backward()")
    assert origin.replaces is None and "mul" not in origin.remedy, origin


@pytest.mark.filterwarnings("ignore:std")
def test_what_stands_around_a_choice_stays_around_it(first, tmp_path):
    origin = first(leaf([3.0]) + "loss = (x + x.std() * 2).sum()\nloss.backward()")
    names = pasted(tmp_path / "program.py", origin)
    assert names["loss"] == 3 and names["x"].grad.tolist() == [1.0]
    at_least = Expression(ast.Name("s"), "m = (x >= s)", 10, 11, is_whole=True, has_scope=False, is_loss=False)
    assert at_least.replaced_by("a if b else c") == "m = (x >= (a if b else c))"


def test_a_functional_that_is_another_variable_is_not_used(first, tmp_path):
    origin = first(
        leaf([-200.0]) + "def f(x, F):\n    return (x / F).sigmoid().log().sum()\nloss = f(x, 1)\nloss.backward()"
    )
    assert origin.remedy.splitlines()[-1] == "return torch.nn.functional.logsigmoid(x / F).sum()", origin
    assert pasted(tmp_path / "program.py", origin)["x"].grad.tolist() == [1.0]


def test_strings_of_the_user_stay_as_they_are(first):
    origin = first('d = {"it\'s e-07": 1.0}\n' + leaf([-200.0]) + 'loss = (d["it\'s e-07"] * x).sigmoid().log().sum()')
    assert "it's e-07" in origin.remedy, origin


ELSEWHERE = {  # a pattern, code that is right on the number of x and wrong beside it, the number, and the user's line
    "at the number alone": ("sqrt(x)", "0 * x", 0.0, "loss = x.sqrt().sum()"),
    "for the other sign": ("sqrt(1 - exp(x))", "(-x).sqrt()", -1e-9, "loss = torch.sqrt(1 - torch.exp(x)).sum()"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_wrong_beside_the_numbers_is_not_written(first, monkeypatch, name):
    pattern, code, number, line = ELSEWHERE[name]
    rewrite = Rewrite(ast.parse(pattern, mode="eval").body, code, "the slope is 0" if pattern == "sqrt(x)" else "")
    monkeypatch.setitem(REWRITES, function_in(rewrite.pattern), [rewrite])
    written = f"loss = {code}.sum()" if pattern != "sqrt(x)" else "loss = (0 * x).sum()"
    assert written not in first(leaf([number]) + f"{line}\nloss.backward()").remedy
    monkeypatch.setattr(trial, "_ORDINARY", 0)
    assert written in first(leaf([number]) + f"{line}\nloss.backward()").remedy, "nothing else refuses it"


def test_the_variables_of_other_cells_are_not_free(tmp_path):
    """Cells of a notebook are files of their own, which share their variables."""
    names = {"torch": torch, "explain": explain, "x": 1}  # x is of another cell
    lines = "z = torch.zeros(2, requires_grad=True)\n    loss = torch.sqrt(z * 1).sum()\n    loss.backward()"
    cell = f"with explain() as report:\n    {lines}"
    (tmp_path / "cell.py").write_text(cell)
    exec(compile(cell, str(tmp_path / "cell.py"), "exec"), names)
    assert "x_ = z * 1" in names["report"].origins[0].remedy.splitlines(), names["report"]
