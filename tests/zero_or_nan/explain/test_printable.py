"""Whatever the user's names and lines hold, a report has no character that a terminal or a browser would obey."""

import linecache
import warnings

import pytest
import torch
from torch import nn

from zero_or_nan import explain
from zero_or_nan.explain.births.findings import Mistakes
from zero_or_nan.explain.program.code import printable

EVIL = "a\x1b[2Jb\x07\x9b\u202ec\u2066d\u200be\u2028f\udc00g\x7f"


@pytest.fixture
def report():
    source = f"y = model.inner(x).log().sum()  # {EVIL}"
    name = f"file\n{EVIL}.py"
    linecache.cache[name] = len(source), None, [source + "\n"], name
    model = nn.Module()
    model.add_module(f"m\n{EVIL}", nn.Linear(1, 1))
    model.inner = getattr(model, f"m\n{EVIL}")
    kind = type(
        "F\x1b[2J\u202e", (torch.autograd.Function,), {"forward": lambda ctx, x: x / 0, "backward": lambda ctx, g: g}
    )
    names = {"model": model, "x": torch.ones(1, 1)}
    with explain() as report:
        exec(compile("y = model.inner(x).sub(100).log().sum()", name, "exec"), names)
        names["y"].backward()
        kind.apply(torch.ones(2, requires_grad=True)).sum().backward()
    report.note(f"one\n{EVIL}")
    return report


def test_text_and_html(report):
    assert len(report) == 2
    for text in (str(report), report._repr_html_(), report.to_json()):
        assert all(each == "\n" or each.isprintable() for each in text.replace("\x7f", ""))
        assert EVIL not in text and "\\x1b" in text or "\\u001b" in text
        text.encode()


def test_a_name_can_not_add_a_line(report):
    origin = report.origins[0]
    assert f"  file\\n{printable(EVIL)}.py:1" in str(origin).splitlines()


def test_a_warning(monkeypatch):
    monkeypatch.setattr(Mistakes, "are_raised", False)
    mistakes = Mistakes()
    mistakes.note(EVIL, ValueError(EVIL))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mistakes.warn(1)
    assert str(caught[0].message).isprintable()


def test_other_text_stays():
    for text in ("x = 1\t# tab", "größe", "変数 = 1  # 全角", "x → y", "", "a\u00a0b\u3000c"):
        assert printable(text) == text
