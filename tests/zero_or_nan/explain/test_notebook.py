"""A report in a notebook: cells by their numbers, nothing that a machine or a theme would change."""

import os
import re
import sys
import types

import pytest
import torch
from origins import report_of

from zero_or_nan.explain import Origin, Report
from zero_or_nan.explain.report.notebook import COLOURS
from zero_or_nan.explain.report.report import place


def contaminated():
    x = torch.tensor([1.0, 100.0], requires_grad=True)
    report = report_of(lambda: torch.where(x < 50, x.exp(), 0).sum().backward())
    return report


def notebook(monkeypatch, names):
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_a_cell_is_called_by_its_number_and_not_by_a_file_of_this_machine(monkeypatch):
    report = contaminated()
    report.origins[0].filename = "/tmp/ipykernel_7/42.py"
    notebook(monkeypatch, {"/tmp/ipykernel_7/42.py": ("Cell", "In[3]")})
    for shown in (str(report), repr(report), report._repr_html_()):
        assert f"Cell In[3], line {report.origins[0].line}" in shown and "ipykernel" not in shown


def test_a_cell_of_an_older_notebook_is_called_by_its_number():
    assert place("<ipython-input-12-0a1b2c>", 4) == "Cell In[12], line 4"


def test_a_file_below_this_folder_is_called_by_its_path_from_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert place(str(tmp_path / "models" / "net.py"), 9) == f"models{os.sep}net.py:9"
    assert place("/elsewhere/net.py", 9) == "/elsewhere/net.py:9"


def test_all_of_an_origin_is_there_and_none_of_it_is_markup():
    evil = '<img src=x onerror="&">'
    origin = Origin(
        "forward", evil, evil, 1, evil, evil, [(0,)], 1, (2,), evil, evil, evil, "undefined", [evil], [evil],
        remedy=evil, chapter="https://example.org/a-page.html", rank=3,
    )  # fmt: skip
    html = Report([origin], notes=[evil])._repr_html_()
    assert "<img" not in html and html.count("&lt;img") == 11
    assert "undefined" in html and "rank 3" in html and "a page</a>" in html


def test_the_text_has_the_colour_of_the_page_in_light_and_in_dark():
    html = contaminated()._repr_html_()
    colours = re.findall(r"(?<![-\w])(?:color|background)\s*:\s*([^;'\"]+)", html)
    assert colours and set(colours) <= {"inherit", "none"}
    assert "<style" not in html and "<script" not in html and "class=" not in html


@pytest.mark.parametrize("ground", ["#ffffff", "#14181d"])
@pytest.mark.parametrize("kind", COLOURS)
def test_a_bar_is_seen_on_white_and_on_black(kind, ground):
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(COLOURS[kind]), light(ground)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_a_long_way_loses_its_middle():
    report = contaminated()
    report.origins[0].path = [f"f{i}" for i in range(20)]
    html = report._repr_html_()
    assert ">f3<" in html and ">…<" in html and ">f16<" in html and ">f4<" not in html and ">f15<" not in html


@pytest.mark.parametrize(("count", "more"), [(4, ""), (5, " and 1 more")])
def test_four_results_that_an_origin_reached_are_shown(count, more):
    report = contaminated()
    report.origins[0].reached = list("abcde")[:count]
    assert f"<strong>a, b, c, d{more}</strong>" in report._repr_html_()


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ""), (4, ", …"), (5, ", …")])
def test_three_elements_are_shown_and_more_are_hinted_at(count, more):
    (origin,) = contaminated()
    origin.entries, origin.count = [(number,) for number in range(count)], count
    shown = ", ".join(f"[{number}]" for number in range(min(count, 3)))
    assert f": {shown}{more} in float32" in str(origin)


def test_nothing_to_tell_is_one_line():
    report = report_of(lambda: torch.ones(2, requires_grad=True).sum().backward())
    html = report._repr_html_()
    assert report.ok and html.count("<p") == 1 and "✓ Nothing that is not finite" in html
    report.notes.append("a compiled region")
    assert "Note: a compiled region." in report._repr_html_()
