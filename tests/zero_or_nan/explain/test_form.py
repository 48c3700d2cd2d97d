"""What is promised of a report: its names, its form as text, HTML and JSON, and no character that could do harm."""

import inspect
import linecache
import os
import pickle
import sys
import types

import pytest
import torch
from origins import report_of
from torch import nn

from zero_or_nan import explain
from zero_or_nan.explain import NotFiniteError, Origin, Report
from zero_or_nan.explain.program.code import printable
from zero_or_nan.explain.report.report import place

FIELDS = """phase operator filename line source module entries count shape dtype device operands kind reached path fixed
    remedy replaces until remedies exact chapter times rank is_sure again tie"""


@pytest.fixture
def report():
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    return report_of(lambda: torch.where(x < 50, x.exp(), 0).sum().backward())


def test_names_and_arguments():
    names = ["Finding", "NotFiniteError", "Origin", "ProbeReport", "Report", "Zero", "explain"]
    assert sys.modules["zero_or_nan.explain"].__all__ == names
    (on_nan,) = inspect.signature(explain).parameters.values()
    assert (on_nan.name, on_nan.default) == ("on_nan", "report")
    assert list(inspect.signature(explain.on_failure).parameters) == ["step", "model"]
    assert explain.on_failure is explain().on_failure
    assert list(inspect.signature(Report).parameters) == ["origins", "passes", "notes", "cause"]
    assert list(inspect.signature(Origin).parameters) == FIELDS.split()


def test_the_error_has_the_report():
    x = torch.zeros(1, requires_grad=True)
    with pytest.raises(FloatingPointError) as caught, explain(on_nan="raise"):
        x.sqrt().sum().backward()
    assert isinstance(caught.value.report, Report) and str(caught.value) == str(caught.value.report)
    with pytest.raises(NotFiniteError, match="log"), explain(on_nan="raise"):
        torch.zeros(1).log()  # without a backward pass, at the end of the block
    with pytest.raises(ValueError, match="is not known"):
        explain(on_nan="ignore")


def test_a_report_can_be_pickled_before_it_was_read(report):
    assert pickle.loads(pickle.dumps(report)).to_dict() == report.to_dict()


def test_each_remedy_of_a_report_is_a_dict_with_the_numbers_that_it_gave():
    def remedies(loss_of, *numbers):
        x = torch.tensor(numbers, requires_grad=True)
        (origin,) = report_of(lambda: loss_of(x).sum().backward()).to_dict()["origins"]
        assert all(sorted(each) == ["code", "replaces", "tried"] for each in origin["remedies"])
        return origin["remedies"]

    first, *others = remedies(lambda x: x.sqrt(), 0.0, 100.0)
    assert "torch.where(x == 0" in first["code"] and "#" not in first["code"]
    choice = {"value": 0.0, "gradient": 0.0, "is_exact": False}
    assert choice.items() < first["tried"].items() and first["tried"]["choice"]
    assert all(other["tried"]["choice"] for other in others)
    (exact,) = remedies(lambda x: x.softmax(0).log(), 0.0, 200.0)
    assert exact["tried"] == {"value": -200.0, "gradient": 1.0, "is_exact": True, "choice": ""}
    (advice,) = remedies(lambda x: x + x.new_tensor([1.0, float("nan")]), 0.0, 200.0)
    assert advice["tried"] is None and advice["replaces"] is None and "x" in advice["code"]


def test_a_cell_and_a_file_are_called_as_a_reader_knows_them(report, monkeypatch, tmp_path):
    """A cell by its number, and a file by its path from here."""
    shell = types.SimpleNamespace(
        compile=types.SimpleNamespace(format_code_name={"/tmp/ipykernel_7/42.py": ("Cell", "In[3]")}.get)
    )
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    report.origins[0].filename = "/tmp/ipykernel_7/42.py"
    for shown in (str(report), repr(report), report._repr_html_()):
        assert f"Cell In[3], line {report.origins[0].line}" in shown and "ipykernel" not in shown
    assert place("<ipython-input-12-0a1b2c>", 4) == "Cell In[12], line 4"
    monkeypatch.chdir(tmp_path)
    assert place(str(tmp_path / "models" / "net.py"), 9) == f"models{os.sep}net.py:9"
    assert place("/elsewhere/net.py", 9) == "/elsewhere/net.py:9"


def test_long_lists_are_shortened(report):
    (origin,) = report
    origin.path = [f"f{i}" for i in range(20)]
    html = report._repr_html_()
    assert ">f3<" in html and ">…<" in html and ">f16<" in html and ">f4<" not in html and ">f15<" not in html
    assert "f0 → f1 → f2 → f3 → … 12 more … → f16 → f17 → f18 → f19" in str(report)
    for count, more in ((4, ""), (5, " and 1 more")):
        origin.reached = list("abcde")[:count]
        assert f"<strong>a, b, c, d{more}</strong>" in report._repr_html_()
    for count, shown in ((1, "[0]"), (3, "[0], [1], [2]"), (4, "[0], [1], [2], …")):
        origin.entries, origin.count = [(number,) for number in range(count)], count
        assert f": {shown} in float32" in str(origin)


EVIL = "a\x1b[2Jb\x07\x9b\u202ec\u2066d\u200be\u2028f\udc00g\x7f"


def test_no_character_that_a_terminal_or_a_browser_would_obey():
    """Whatever the user's names and lines hold."""
    source = f"y = model.inner(x).log().sum()  # {EVIL}"
    name = f"file\n{EVIL}.py"
    linecache.cache[name] = len(source), None, [source + "\n"], name
    model = nn.Module()
    model.add_module(f"m\n{EVIL}", nn.Linear(1, 1))
    model.inner = getattr(model, f"m\n{EVIL}")
    methods = {"forward": lambda ctx, x: x / 0, "backward": lambda ctx, g: g}
    kind = type("F\x1b[2J\u202e", (torch.autograd.Function,), methods)
    names = {"model": model, "x": torch.ones(1, 1)}
    with explain() as report:
        exec(compile("y = model.inner(x).sub(100).log().sum()", name, "exec"), names)
        names["y"].backward()
        kind.apply(torch.ones(2, requires_grad=True)).sum().backward()
    report.note(f"one\n{EVIL}")
    assert len(report) == 2
    for text in (str(report), report._repr_html_(), report.to_json()):
        assert all(each == "\n" or each.isprintable() for each in text.replace("\x7f", ""))
        assert EVIL not in text and "\\x1b" in text or "\\u001b" in text
        text.encode()
    assert f"  file\\n{printable(EVIL)}.py:1" in str(report).splitlines(), "a name can't add a line"
    for text in ("x = 1\t# tab", "größe", "変数 = 1  # 全角", "x → y", "", "a\u00a0b\u3000c"):
        assert printable(text) == text


def test_no_text_is_markup():
    evil = '<img src=x onerror="&">'
    origin = Origin(
        "forward", evil, evil, 1, evil, evil, [(0,)], 1, (2,), evil, evil, evil, "undefined", [evil], [evil],
        remedy=evil, chapter="https://example.org/a-page.html", rank=3,
    )  # fmt: skip
    html = Report([origin], notes=[evil])._repr_html_()
    assert "<img" not in html and html.count("&lt;img") == 11
    assert "undefined" in html and "rank 3" in html and "a page</a>" in html
