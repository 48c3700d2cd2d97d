"""The drawing shows every node and all that flows between them, where each element and text has room."""

import itertools
import re
import xml.etree.ElementTree as ET
from math import nan

import pytest
import torch
from tensors import leaf

from helpers.backward import drawing as module
from helpers.backward.drawing import WIDEST, Strip, draw
from helpers.backward.graph import record
from helpers.backward.told import tell
from helpers.entries import outcome

SVG = "{http://www.w3.org/2000/svg}"


def drawn(loss, inputs, salt="s", **options):
    steps = record(loss, inputs, **options)
    return ET.fromstring(draw(steps, tell(steps), salt))


def where_over_exp():
    x = leaf(-1.0, 2.0, 100.0)
    return torch.where(x < 0, torch.exp(x), torch.ones_like(x)).sum(), {"x": x}


def division():
    a, b = leaf(1.0, 0.0), leaf(2.0, 0.0)
    return torch.where(b > 0, a / b, 0).sum(), {"a": a, "b": b}


def six_entries():
    x = leaf(-10.0, -5.0, 0.0, 5.0, 50.0, 100.0)
    return torch.where(x < 0, x.exp(), x).sum(), {"x": x}


def matrix():
    weight = leaf([0.5, 1.0])
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [nan, nan]])
    return torch.nn.functional.linear(rows, weight)[:2].sum(), {"weight": weight}


GRAPHS = {made.__name__: made for made in (where_over_exp, division, six_entries, matrix)}


def words(element):
    return [("".join(text.itertext())) for text in element.iter(f"{SVG}text")]


def part(svg, **data):
    keys = {name.replace("_", "-"): str(value) for name, value in data.items()}
    return [each for each in svg.iter(f"{SVG}g") if all(each.get(key) == value for key, value in keys.items())]


def test_the_nodes_and_all_that_flows_between_them_are_there():
    svg = drawn(*where_over_exp(), salt="mine")
    assert [words(part(svg, data_step=step)[0])[1:] for step in range(4)] == [
        ["sumgrad, for every element"],
        ["wheregrad if condition else 0", "condition", "True", "False", "False"],
        ["expgrad × result", "result", "0.368", "7.39", "inf"],
        ["x.grad"],
    ]
    kinds = {each.get("class").split()[0] for each in svg.iter(f"{SVG}g") if "zn-entry" in each.get("class", "")}
    assert kinds == {f"zn-entry-{kind}" for kind in ("finite", "zero", "nan", "inf", "masked")}
    text = ET.tostring(svg, encoding="unicode")
    assert re.findall(r'(?:\bid="|url\(#)([^)"]+)', text)[0] == "mine-arrow" and "url(#mine-arrow)" in text
    start, first, second, third = (part(svg, data_to=to)[0] for to in range(4))
    assert (words(start), words(first)) == (["1"], ["1", "1", "1"])
    assert [each.get("data-from") for each in (start, first, second, third)] == ["-1", "0", "1", "2"]
    assert words(part(second, data_method="vanilla")[0]) == ["1", "0", "0"]
    assert words(part(second, data_method="ignoring")[0]) == ["1", "--", "--"]
    assert not part(first, data_method="vanilla"), "where both methods agree there is one"
    assert "loss" in words(svg)
    born = [words(each) for each in svg.iter(f"{SVG}g") if "zn-born" in each.get("class", "").split()]
    assert born == [["NaN"]]


def test_a_matrix_keeps_its_rows_and_a_large_tensor_is_told_in_words():
    sizes = ((3, 2), 2), ((), 1), ((13,), 0), ((1, 1, 1), 0), ((0,), 0), ((12,), 12)
    assert [Strip({"": outcome(torch.zeros(size))}).columns(12) for size, _ in sizes] == [most for _, most in sizes]
    x = torch.ones(13, requires_grad=True)
    assert {"[13]", "[13]: 1 NaN"} <= set(words(drawn((x * torch.tensor([nan, *torch.ones(12)])).sum(), {"x": x})))


def number(element, *names):
    return [float(element.get(name)) for name in names]


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_lies_on_another_thing_or_outside_and_cotangents_flow_down(name):
    svg = drawn(*GRAPHS[name]())
    width, height = map(float, svg.get("viewBox").split()[2:])
    assert width <= WIDEST
    groups = {each.get("data-step"): each for each in svg if each.get("class") in ("zn-node", "zn-end")}
    nodes = {step: number(group.find(f"{SVG}rect"), "x", "y", "width", "height") for step, group in groups.items()}
    for left, top, wide, high in nodes.values():
        assert left > 0 and left + wide < width and top > 0 and top + high < height
    for (x, y, w, h), (left, top, wide, high) in itertools.combinations(nodes.values(), 2):
        beside = x + w + module.GAP <= left + 0.01 or left + wide + module.GAP <= x + 0.01
        assert beside or y + h + module.SPACE <= top + 0.01 or top + high + module.SPACE <= y + 0.01
    for strip in [each for each in svg.iter(f"{SVG}g") if each.get("data-from", "-1") != "-1"]:
        cells = [number(rect, "y", "height") for rect in strip.iter(f"{SVG}rect")]
        (_, above, _, tall), (_, below, _, _) = nodes[strip.get("data-from")], nodes[strip.get("data-to")]
        assert all(above + tall < top and top + high < below for top, high in cells)
