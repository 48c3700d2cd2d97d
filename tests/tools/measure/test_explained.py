"""The comparison of `explain` with other tools: each says what its tool says, and what is recorded is good enough."""

import json
import re
from textwrap import indent
from types import SimpleNamespace

import pytest
import torch
from scratch import ROOT

from tools.measure import explained
from tools.measure.corpora import Program
from tools.measure.other_tools import versions

NOTHING, NO_LINE = "nothing", "something, but no line"
ZERO = "x = torch.zeros(2, requires_grad=True) * 1"
SAID = [
    ("anomaly mode", "y = (x - 1).sqrt()", NOTHING),  # an infinity
    ("anomaly mode", "y = (x - 1).square()\ny = y.sqrt()", "y = (x - 1).square()"),  # 0 * inf
    ("forward hooks", "y = net(x * torch.nan)", "y = net(x * torch.nan)"),
    ("forward hooks", "y = x - torch.tensor([0.0, torch.inf])\ny = net[1](y)", "y = net[1](y)"),  # they look at inputs
    ("forward hooks", "y = (x * 0).sqrt()", NOTHING),
    ("loss and parameters", "y = (x * 0).log()", NO_LINE),
    ("loss and parameters", "y = torch.where(x < 0, (x * 100).exp(), x)", NOTHING),  # a gradient alone
    ("loss and parameters", "net(x).sum().backward()\nnet[0].weight.data.fill_(torch.nan)\ny = x", NO_LINE),
    ("DebugMode", "root = lambda x: (\n    x.sqrt()\n)\ny = root(x * 0)", "x.sqrt()"),  # the line that made the node
    ("DebugMode", "y = x * 1\ntorch._foreach_div_([y], 0)", "torch._foreach_div_([y], 0)"),
    ("DebugMode", "y = x.masked_fill(x > 0, -torch.inf)\ny = y.softmax(0)", "y = x.masked_fill(x > 0, -torch.inf)"),
    ("DebugMode", "y = x.log()", NOTHING),
    ("DebugUnderflowOverflow", "y = net[0](x * torch.nan)", "y = net[0](x * torch.nan)"),
    ("DebugUnderflowOverflow", "y = (x * 0).sqrt()", NOTHING),
]


def program(line, at_fault="", part="work"):
    head = "x = torch.ones(2, requires_grad=True)\nnet = nn.Sequential(nn.Linear(2, 2), nn.Softmax(0))"
    body = indent(f"{head}\n{line}\ny.sum().backward()", "    ")
    return Program(line + part, part, (), (at_fault,) if at_fault else (), f"def program():\n{body}\n")


@pytest.mark.parametrize(("tool", "line", "said"), SAID)
def test_a_tool_says_what_it_stands_for_and_leaves_nothing_behind(tool, line, said):
    if tool not in versions():
        pytest.skip("not installed")
    backward, hooks = torch.autograd.backward, dict(torch.nn.modules.module._global_forward_hooks)
    functions = torch.empty, torch.Tensor.add, torch.nn.functional.relu
    wanted = program(line, said)
    told = explained.told(tool, wanted)
    assert told.anything == (said != NOTHING)
    assert explained.is_at_fault(wanted, told) == (said not in (NOTHING, NO_LINE)), told
    assert torch.autograd.backward is backward and not torch.is_anomaly_enabled()
    assert torch.nn.modules.module._global_forward_hooks == hooks
    assert functions == (torch.empty, torch.Tensor.add, torch.nn.functional.relu)


def test_what_is_recorded_is_good_enough():
    recorded = ROOT / "results" / "measured"
    content, first_look = (json.loads((recorded / f"{name}.json").read_text()) for name in ("explained", "first_look"))
    ours, *others = content["rows"]
    assert ours == explained.of_explain(first_look), "run `make explained` after `make first-look`"
    assert [each["tool"] for each in content["rows"]] == list(explained.NAMES)
    assert content["programs"]["work"] >= ours["work"] >= max(each["work"] for each in others)
    assert content["programs"]["held"] >= ours["held"] >= 0.8 * content["programs"]["held"]
    assert ours["healthy"] < content["programs"]["healthy"] / 20
    tools = {each["tool"]: each for each in others}  # what "At a glance" says of two of them, in words
    debug, anomaly = tools["DebugMode"], tools["anomaly mode"]
    assert all(debug[part] == max(each[part] for each in others) for part in ("work", "held"))
    assert (
        debug["healthy"] > content["programs"]["healthy"] / 2
        and anomaly["healthy"] < content["programs"]["healthy"] / 20
    )
    found = [each["work"] + each["held"] for each in (content["programs"], ours, debug, anomaly)]
    assert abs(found[1] - found[2]) < 0.05 * found[0] and 0.35 < found[3] / found[0] < 0.5


def test_each_tool_is_counted_and_one_that_is_not_installed_keeps_its_row(monkeypatch):
    kept, root, mask = {}, "y = (x - 1).sqrt()", "y = x.masked_fill(x > 0, -torch.inf).softmax(0)"
    every = [
        program(root, root),
        program("y = x.log()", "y = x"),
        program("1 / 0", "1 / 0"),
        program(root, root, "held"),
    ]
    ours = [
        {"remedy": remedy, "is_line_right": is_right, "is_kind_right": True}
        for remedy, is_right in (("works", True), ("", False))
    ]
    records = {
        "first_look": {"work": ours[:1], "first": ours},
        "explained": {"rows": [{"tool": "torchlens", "version": "torchlens 1", "work": 7, "held": 8, "healthy": 9}]},
    }
    monkeypatch.setattr(explained, "versions", lambda: {"DebugMode": "torch 2"})
    monkeypatch.setattr(explained, "programs", lambda path: [*every, program("y = x"), program(mask)])
    monkeypatch.setattr(explained, "read", lambda project, name: records[name])
    monkeypatch.setattr(explained, "keep", lambda project, name, content: kept.update(content))
    explained.explained(SimpleNamespace(root=ROOT))
    assert kept["programs"] == {"work": 3, "held": 1, "healthy": 2}
    assert kept["rows"] == [
        {"tool": "explain", "version": "", "work": 1, "held": 1, "healthy": 1},
        {"tool": "DebugMode", "version": "torch 2", "work": 1, "held": 1, "healthy": 1},
        *records["explained"]["rows"],
    ]
    table = re.sub(r"<[^>]+>", " ", explained.shown(kept))
    assert "torchlens (1)" in table and re.search(r"explain +, +DebugMode +1 +1 +1 ", table)
    assert "(of 3)" in table and "false alarm on a healthy program (of 2)" in table
    silent = {"tool": "loss and parameters", "version": "", "work": 0, "held": 0, "healthy": 0}
    assert "loss check" not in explained.shown({**kept, "rows": [*kept["rows"], silent]})
