"""The figure of a backward pass says every step in text, in tables without a script, and to who cannot see it."""

import re
import xml.etree.ElementTree as ET

import torch
from tensors import leaf

from helpers.backward.figure import BackwardFigure
from helpers.backward.graph import record


def made(caption="where & exp"):
    x = leaf(-1.0, 2.0, 100.0)
    return BackwardFigure(record(torch.where(x < 0, torch.exp(x), torch.ones_like(x)).sum(), {"x": x}), caption)


def parsed(figure):
    return ET.fromstring(figure.html())


def steps(figure):
    return parsed(figure).findall(".//section")


def rows(section):
    return [
        (["".join(cell.itertext()) for cell in row], row.get("data-method"))
        for row in section.find("table/tbody").findall("tr")
    ]


def test_who_can_not_see_it_is_told_the_graph_and_what_happens():
    assert made().alt() == (
        "Graph of the backward pass: from the loss to sum; sum passes on to where; where passes on to exp; "
        "exp passes on to x.grad. NaN is born: 0 × inf = NaN at [2]."
    )
    graph = parsed(made()).find("div[@class='zn-graph']")
    assert graph.get("role") == "img" and graph.get("aria-label") == made().alt()
    labels = [each.find("table").get("aria-label") for each in steps(made())]
    assert labels == ["1. sum", "2. where", "3. exp", "4. x.grad"]


def test_each_input_has_a_formula_of_its_own_where_they_differ():
    a, b = leaf(1.0, 0.0), leaf(2.0, 0.0)
    figure = BackwardFigure(record(torch.where(b > 0, a / b, 0).sum(), {"a": a, "b": b}), "")
    assert "\n3. div: grad ÷ other to a.grad; −grad × ((self ÷ other) ÷ other) to b.grad\n" in figure.text()
    lines = ["".join(each.itertext()) for each in steps(figure)[2].findall("p[@class='zn-formula']")]
    assert lines == ["passes on grad ÷ other to a.grad", "passes on −grad × ((self ÷ other) ÷ other) to b.grad"]
    x = leaf(3.0)
    square = BackwardFigure(record(x * x, {"x": x}), "")
    assert "grad × other to x.grad, of self; grad × self to x.grad, of other" in square.text()


def test_what_is_too_long_for_columns_is_a_line_and_a_node_without_a_rule_has_no_formula():
    x = torch.ones(20, requires_grad=True)
    first, second, _ = steps(BackwardFigure(record(x.cumprod(0).sum(), {"x": x}), ""))
    line = ["to cumprod", "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, … 8 more …, 1, 1] of shape [20]"]
    assert first.find("table/thead") is None and rows(first)[1][0] == line
    assert second.find("p[@class='zn-formula']") is None and second.get("data-vanilla") == ""
    assert "cumprod_backward" in "".join(second.itertext())


def test_the_page_is_the_same_every_time_and_two_figures_have_their_own_ids():
    assert made().html() == made().html() and made().json() is None
    one, two = (re.findall(r'\bid="([^"]+)"', made(caption).html()) for caption in ("a", "b"))
    assert one and not set(one) & set(two)
