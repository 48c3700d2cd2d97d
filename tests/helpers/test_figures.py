import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

import helpers
from helpers import figures, show
from helpers.figures import Figure, drawing

COLOURS = ("BLUE", "ORANGE", "GREEN", "RED", "GREY")


@pytest.fixture
def shown(monkeypatch):
    items = []
    monkeypatch.setattr(show, "show", items.append)
    return items


def draw(alt="a rising line", caption="Rising.", **options):
    with drawing(alt, caption, **options) as axes:
        axes.plot([0, 1], [0, 1], color=figures.BLUE, marker="o", label="x < 1")
        axes.plot([0, 1], [1, 0], "--", color=figures.ORANGE, label="$x^2$")
        axes.fill_between([0, 1], [0, 1], hatch="//", alpha=0.3, color=figures.GREY)
        axes.set_title("a title", weight="bold")
        axes.set(xlabel="x", ylabel="y")
        axes.legend()


def label(*axes):
    for each in axes:
        each.set(xlabel="x", ylabel="y")


def ids(svg):
    return re.findall(r'\bid="([^"]+)"', svg)


@pytest.mark.parametrize("alt", ["", "   ", "\n\t"])
def test_a_figure_needs_a_text_in_its_place(alt, shown):
    with pytest.raises(ValueError, match="alt is empty: write what the figure shows"), drawing(alt):
        pytest.fail("the block must not be entered")
    assert shown == []


def test_a_figure_is_shown_once_when_the_block_ends(shown):
    with drawing("a line", "A caption.") as axes:
        axes.plot([0, 1])
        label(axes)
        assert shown == []
    (figure,) = shown
    assert (figure.alt, figure.caption) == ("a line", "A caption.")


def test_a_block_that_raises_shows_nothing_and_leaves_the_settings_as_they_were(shown):
    import matplotlib

    before = dict(matplotlib.rcParams)
    with pytest.raises(RuntimeError, match="stop"), drawing("a line"):
        raise RuntimeError("stop")
    assert shown == []
    assert dict(matplotlib.rcParams) == before
    draw()
    assert dict(matplotlib.rcParams) == before


def test_no_figure_stays_open_in_pyplot(shown):
    draw()
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_the_svg_is_the_same_in_every_process(shown):
    draw()
    script = (
        "import test_figures, helpers.show as show; items = []; show.show = items.append\n"
        "test_figures.draw(); print(items[0].wide[0], end='')"
    )
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(helpers.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown[0].wide[0]


def test_the_figure_is_an_image_with_a_name(shown):
    draw(alt='a "quoted" <b> & more')
    root = ET.fromstring(shown[0].html())
    image = root[0]
    assert (root.tag, image.tag) == ("figure", "div")
    assert image.get("role") == "img" and image.get("aria-label") == 'a "quoted" <b> & more'
    # What is inside has no name of its own: a reader hears the figure once.
    svgs = [svg for drawn in image for svg in drawn]
    assert [svg.tag for svg in svgs] == 2 * ["{http://www.w3.org/2000/svg}svg"]
    assert all(svg.get("aria-hidden") == "true" for svg in svgs)
    assert "<b>" not in shown[0].html()


def test_the_svg_scales_with_the_page(shown):
    draw(height=2.0)
    for svgs, box in ((shown[0].wide, "0 0 720 144"), (shown[0].narrow, "0 0 331.2 144")):
        (root,) = map(ET.fromstring, svgs)
        assert root.get("viewBox") == box
        assert root.get("width") is None and root.get("height") is None


def test_text_is_as_large_on_a_phone_as_on_a_wide_page(shown):
    draw()
    sizes = [re.findall(r"font-size: ([\d.]+)px", "".join(svgs)) for svgs in (shown[0].wide, shown[0].narrow)]
    assert sizes[0] == sizes[1] and sizes[0].count("12") > 5


@pytest.mark.parametrize("labels", [{}, {"xlabel": "x"}, {"ylabel": "y"}])
def test_an_axis_without_a_label_is_refused(shown, labels):
    with pytest.raises(ValueError, match="label both axes"), drawing("two panels", panels=2) as (left, right):
        label(left)
        right.set(**labels)
    assert shown == []


def test_a_drawing_without_axes_needs_no_labels(shown):
    with drawing("boxes") as axes:
        axes.axis("off")
    assert len(shown) == 1


def test_the_ink_is_the_pages_own(shown):
    draw()
    svg = shown[0].wide[0]
    assert figures._INK == "#010203"
    assert figures._INK not in svg.lower()
    assert svg.count("currentColor") > 10
    # Text that names no colour is black.
    texts = re.findall(r"<text.*?</text>", svg, flags=re.DOTALL)
    assert len(texts) > 5 and all("fill: currentColor" in text for text in texts)
    # Nothing is drawn in a fixed black or white, which one of the two pages would swallow.
    assert not re.search(r"(fill|stroke): ?(#000000|#000|#ffffff|#fff|black|white)\b", svg)


def test_the_font_is_the_pages_own_and_the_text_is_text(shown):
    draw()
    svg = shown[0].wide[0]
    assert "font-family" not in svg and "DejaVu" not in svg and "sans" not in svg.lower()
    assert ">a title</text>" in svg and ">x &lt; 1</text>" in svg
    assert re.search(r"font-size: \d+px", svg)


def test_ids_are_unique_within_a_figure_and_every_reference_is_met(shown):
    draw()
    svg = shown[0].wide[0]
    assert len(set(ids(svg))) == len(ids(svg))
    references = re.findall(r'(?:href="|url\()#([^")]+)', svg)
    assert references and set(references) <= set(ids(svg))


@pytest.mark.parametrize(
    ("first", "second"), [(("one", "c"), ("two", "c")), (("one", ""), ("one", "c")), (("one", "c"), ("one", "d"))]
)
def test_ids_of_two_figures_are_apart(shown, first, second):
    draw(*first)
    draw(*second)
    a, b = (set(ids("".join(figure.wide + figure.narrow))) for figure in shown)
    assert a and b and not a & b


def test_nothing_is_fetched(shown):
    draw()
    svg = shown[0].wide[0]
    addresses = re.findall(r'[\w:]+="(?:https?:)?//[^"]*"', svg)
    assert addresses == ['xmlns="http://www.w3.org/2000/svg"', 'xmlns:xlink="http://www.w3.org/1999/xlink"']
    assert svg.count("http") == 2
    assert "<metadata" not in svg and "<!DOCTYPE" not in svg and "<?xml" not in svg
    assert "@import" not in svg and "<script" not in svg
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", svg))
    assert all(url.startswith("#") for url in re.findall(r'href="([^"]*)"', svg))


def test_the_background_is_left_to_the_page(shown):
    draw()
    assert "fill: none" in shown[0].wide[0].split("<path", 2)[1]


def test_panels_are_drawn_each_on_its_own(shown):
    with drawing("two panels", height=1.0, panels=2) as (left, right):
        label(left, right)
        left.set_title("left")
        right.set_title("right")
    for one, two in (shown[0].wide, shown[0].narrow):
        assert ">left<" in one and ">right<" not in one and ">right<" in two
    # Two panels and the gap between them are as wide as the column.
    assert [ET.fromstring(svg).get("viewBox") for svg in shown[0].wide] == 2 * ["0 0 351 72"]
    every = [ids(svg) for svg in shown[0].wide + shown[0].narrow]
    assert len(set().union(*every)) == sum(map(len, every))


def test_a_figure_stands_with_its_caption():
    drawn = (
        '<div role="img" aria-label="alt &lt;text&gt;">'
        '<div class="zn-wide" style="--panels: 2"><svg></svg><svg></svg></div>'
        '<div class="zn-narrow"><svg>narrow</svg></div></div>'
    )
    figure = Figure(2 * ("<svg></svg>",), ("<svg>narrow</svg>",), "alt <text>", "a <caption> & more")
    assert figure.html() == (
        f'<figure class="zn-chart">{drawn}<figcaption>a &lt;caption&gt; &amp; more</figcaption></figure>'
    )
    assert replace(figure, caption="").html() == f'<figure class="zn-chart">{drawn}</figure>'
    assert figure.text() == "[figure: alt <text>]"
    assert figure.json() is None


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return math.fsum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", COLOURS)
@pytest.mark.parametrize("page", ["#ffffff", "#14181e"])
def test_every_colour_can_be_seen_on_a_light_and_on_a_dark_page(name, page):
    assert contrast(getattr(figures, name), page) >= 3


def test_every_named_colour_is_looked_at():
    named = {name for name, value in vars(figures).items() if name.isupper() and re.match("#", str(value))}
    assert named - {"_INK"} == set(COLOURS)
    assert len({getattr(figures, name) for name in COLOURS}) == len(COLOURS)
