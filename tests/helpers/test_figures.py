"""A figure is the same in every process, in the ink and font of the page, with a text in its place."""

import math
import re
import sys
import xml.etree.ElementTree as ET

import pytest

from helpers import figures, show
from helpers.figures import drawing

COLOURS = ("BLUE", "ORANGE", "GREEN", "RED", "GREY")


def draw(alt="a rising line", caption="Rising."):
    with drawing(alt, caption, height=2.0) as axes:
        axes.plot([0, 1], [0, 1], color=figures.BLUE, marker="o", label="x < 1")
        axes.plot([0, 1], [1, 0], "--", color=figures.ORANGE, label="$x^2$")
        axes.fill_between([0, 1], [0, 1], hatch="//", alpha=0.3, color=figures.GREY)
        axes.set_title("a title", weight="bold")
        axes.set(xlabel="x", ylabel="y")
        axes.legend()


@pytest.fixture(scope="module")
def figure():
    items = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "show", items.append)
        draw(alt='a "quoted" <b> & more')
    return items[0]


def test_a_figure_needs_a_text_in_its_place_and_a_label_at_each_axis(shown):
    with pytest.raises(ValueError, match="alt is empty: write what the figure shows"), drawing("\n\t"):
        pytest.fail("the block must not be entered")
    with pytest.raises(ValueError, match="label both axes"), drawing("two panels", panels=2) as (left, right):
        left.set(xlabel="x", ylabel="y")
        right.set(xlabel="x")
    assert shown == []
    with drawing("boxes", "A caption.") as axes:
        axes.axis("off")  # a drawing without axes needs no labels
        assert shown == []
    assert [(figure.alt, figure.caption) for figure in shown] == [("boxes", "A caption.")]


def test_a_block_leaves_the_settings_as_they_were_and_shows_nothing_if_it_raises(shown):
    import matplotlib

    before = dict(matplotlib.rcParams)
    with pytest.raises(RuntimeError, match="stop"), drawing("a line"):
        raise RuntimeError("stop")
    assert shown == [] and dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_the_figure_is_an_image_with_a_name(figure):
    root = ET.fromstring(figure.html())
    image = root[0]
    assert (root.tag, image.tag) == ("figure", "div")
    assert image.get("role") == "img" and image.get("aria-label") == 'a "quoted" <b> & more'
    # What is inside has no name of its own: a reader hears the figure once.
    svgs = [svg for drawn in image for svg in drawn]
    assert [svg.tag for svg in svgs] == 2 * ["{http://www.w3.org/2000/svg}svg"]
    assert all(svg.get("aria-hidden") == "true" for svg in svgs)
    assert "<b>" not in figure.html()


def test_the_svg_scales_with_the_page_and_text_is_as_large_on_a_phone(figure):
    for svgs, box in ((figure.wide, "0 0 720 144"), (figure.narrow, "0 0 331.2 144")):
        (root,) = map(ET.fromstring, svgs)
        assert root.get("viewBox") == box and root.get("width") is root.get("height") is None
    sizes = [re.findall(r"font-size: ([\d.]+)px", "".join(svgs)) for svgs in (figure.wide, figure.narrow)]
    assert sizes[0] == sizes[1] and sizes[0].count("12") > 5


def test_ink_font_and_background_are_the_pages_own(figure):
    svg = figure.wide[0]
    assert figures._INK not in svg.lower() and svg.count("currentColor") > 10
    texts = re.findall(r"<text.*?</text>", svg, flags=re.DOTALL)
    assert len(texts) > 5 and all("fill: currentColor" in text for text in texts)
    # Nothing is drawn in a fixed black or white, which one of the two pages would swallow.
    assert not re.search(r"(fill|stroke): ?(#000000|#000|#ffffff|#fff|black|white)\b", svg)
    assert "fill: none" in svg.split("<path", 2)[1]
    assert "font-family" not in svg and "DejaVu" not in svg and "sans" not in svg.lower()
    assert ">a title</text>" in svg and ">x &lt; 1</text>" in svg


def test_ids_of_two_figures_are_apart(shown):
    draw("one", "c")
    draw("one", "")
    a, b = (set(re.findall(r'\bid="([^"]+)"', "".join(figure.wide + figure.narrow))) for figure in shown)
    assert a and b and not a & b


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return math.fsum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", ["#ffffff", "#14181e"])
def test_every_colour_can_be_seen_on_a_light_and_on_a_dark_page(page):
    named = {name: value for name, value in vars(figures).items() if name.isupper() and str(value).startswith("#")}
    assert set(named) - {"_INK"} == set(COLOURS)
    for name in COLOURS:
        low, high = sorted((luminance(named[name]), luminance(page)))
        assert (high + 0.05) / (low + 0.05) >= 3, name
