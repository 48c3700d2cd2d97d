"""The atlas: slopes and kinds are measured, points are well-formed, and a card says what was measured.

The page itself claims, in each build, that every point gives the gradient that is stated.
"""

import math

import pytest
import torch
from bs4 import BeautifulSoup

from helpers import atlas
from helpers.atlas import JUMP, Point, differentiable, measure, slopes
from helpers.points import POINTS, SOURCES

ALL = [point for group in POINTS.values() for point in group]
every = pytest.mark.parametrize("point", ALL, ids=[point.anchor for point in ALL])
changed = pytest.mark.parametrize("point", [p for p in ALL if p.instead], ids=[p.anchor for p in ALL if p.instead])


@pytest.mark.parametrize(
    ("code", "at", "expected"),
    [
        ("(x + 1e-9) / 1e-9 * torch.ones(())", 1.0, [(1e9, 1e9)]),  # in float64
        ("x.abs()", [0.0, -2.0], [(-1, 1), (-1, -1)]),
        ("x * torch.ones(2)", 1.0, [(2, 2)]),
        ("-x.sqrt()", 0.0, [(math.nan, -math.inf)]),
        ("x.sign() * x.abs() ** 0.5", 0.0, [(math.inf, math.inf)]),
        ("1 / x", 0.0, [(math.inf, -math.inf)]),
        ("x.sign()", 0.0, [(JUMP, JUMP)]),
        ("x.ceil()", 1.0, [(0, JUMP)]),
        ("x / x", 0.0, [(math.nan, math.nan)]),
        ("torch.where(x == 0, x, x * (1 / x).sin())", 0.0, [(math.nan, math.nan)]),
        ("torch.where(x.abs() > 1e-4, inf - inf, 2 * x)", 0.0, [(2, 2)]),
    ],
)
def test_slopes_are_those_of_the_function(code, at, expected):
    found = slopes(code, at)
    assert len(found) == len(expected) and torch.get_default_dtype() is torch.float32
    for side, want in zip([s for pair in found for s in pair], [w for pair in expected for w in pair], strict=True):
        if isinstance(want, str) or isinstance(side, str):
            assert side == want
        else:
            assert side == pytest.approx(want, rel=1e-3, nan_ok=True)


def test_a_gradient_is_a_slope_only_where_both_sides_have_it():
    one = torch.ones(1)
    assert differentiable(one, [(1.0, 1.0)]) and differentiable(one, [(1.0005, 0.9995)])
    for sides in ((1.0, -1.0), (1.0, math.inf), (math.nan, 1.0), (JUMP, 1.0), (1.01, 1.0)):
        assert not differentiable(one, [sides]), sides
    assert not differentiable(torch.ones(2), [(1.0, 1.0), (0.0, 0.0)])


def test_the_nodes_are_the_first_that_is_not_finite_or_else_all_that_compute():
    assert measure("x.square().sqrt()", 0.0).nodes == ("SqrtBackward0", "PowBackward0")
    assert measure("x[:1].sum().abs().exp()", [0.0]).nodes == ("ExpBackward0", "AbsBackward0")


@every
def test_the_last_node_of_a_nan_is_the_one_that_anomaly_mode_names(point):
    result = measure(point.code, point.at, point.given)
    if result.kind == "NaN":

        def backward(loss):
            with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values") as caught:
                loss.backward(retain_graph=True)
            assert str(caught.value).split("'")[1] == result.nodes[-1]
            loss.backward()

        measure(point.code, point.at, point.given, backward)


@changed
def test_what_the_other_expression_does_is_what_the_slopes_say(point):
    word = point.effect.split()[0].rstrip(":.")
    other = measure(point.instead, point.at, point.given)
    assert other.kind == "finite" and other.value.isfinite().all()
    sides = slopes(point.instead, point.at, point.given)
    if word == "Exact":
        assert differentiable(other.gradient, sides)
    if word in ("Chooses", "Removes"):
        # What is chosen or removed is 0, in every entry that is not its own slope.
        pairs = zip(other.gradient.flatten().tolist(), sides, strict=True)
        assert all(value == 0 or differentiable(torch.tensor([value]), [both]) for value, both in pairs)
    if word == "Bounds":
        assert other.gradient.abs().max() > 1


def card(shown, *points):
    atlas(points, SOURCES)
    return shown.pop()


def test_a_card_is_searched_and_has_an_anchor_and_says_what_was_measured(shown):
    point = POINTS["Roots and powers"][0]
    made = card(shown, point)
    assert made.text() == "sqrt at 0: inf, infinite" and made.json() is None
    (soup,) = BeautifulSoup(made.html(), "html.parser").select("div.zn-point")
    (searched,) = soup.select("div.zn-searched")
    assert searched["id"] == point.anchor == "point-sqrt-at-0"
    assert searched.get_text(" ", strip=True) == (
        "sqrt at 0 SqrtBackward0 Code x.sqrt() at x = 0 Gives value 0 , gradient inf : infinite"
    )
    assert soup.p.get_text() == "sqrt at 0 SqrtBackward0"
    lines = {line.dt.get_text(): line.dd.get_text() for line in soup.select("dl > div")}
    assert lines == {
        "Code": "x.sqrt() at x = 0",
        "Gives": "value 0, gradient inf: infinite",
        "Write": f"{point.instead}: value 0, gradient 0. {point.effect}",
        "Slopes": "from below none; from above inf",
        "Mathematics": point.mathematics,
        "PyTorch": f"{point.decided} (PyTorch's autograd notes)",
    }
    assert soup.summary.get_text() == "Slopes, Mathematics, PyTorch"
    assert [row.dt.get_text() for row in soup.select("details dl > div")] == soup.summary.get_text().split(", ")
    assert soup.a["href"] == SOURCES["notes"].url


def test_a_card_tells_a_slope_from_a_convention_and_the_sides_of_each_element(shown):
    def text(code, at, **more):
        made = card(shown, Point("p", code, at, None, "m", **more))
        lists = BeautifulSoup(made.html(), "html.parser").find_all("dl")
        return " ".join(part.get_text(" ", strip=True) for part in lists)

    assert "the slope Nodes PowBackward0 Slopes from below 2; from above 2 Mathematics" in text("x ** 2", 1.0)
    assert "Slopes from below −1; from above 1 " in text("x.abs()", [0.0, 0.0])
    assert "from below 0; from above a jump, 0 " in text("x.ceil()", [1.0, 0.5])
    assert "with c = torch.ones(()) " in text("x * c", 1.0, given="c = torch.ones(())")
    assert "finite by convention Nodes AbsBackward0 Slopes" in text("x.abs()", 0.0)
    assert "Nodes" not in text("x.log()", 0.0)
    assert "PyTorch" not in text("x", 1.0) and "Write" not in text("x", 1.0)
    evil = Point("<b>", "x * (2 if 1 < 2 else 3)", 1.0, None, "<i>&", "<u>", (), "x * (2 if 1 < 2 else 3)", 2.0, "<s>")
    assert not any(tag in card(shown, evil).html() for tag in ("<b>", "<i>", "<u>", "<s>", "1 < 2"))
