"""What was executed stands on the rendered pages, and every link leads somewhere: whatever is left out is named."""

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from scratch import Book, edit

from tools.steps.shown import broken, missing

HTML = {"text/html": '<div class="zn"><style>p {}</style><p>A <b>claim</b></p></div>', "text/plain": "a claim"}


def area(*outputs):
    return f'<div class="cell_output docutils container">\n{"".join(outputs)}</div>\n<p>Words.</p>'


def pre(text):
    return f'<div class="output stream"><pre><span></span>{text}\n</pre></div>'


RAW = '<div class="output text_html"><div class="zn"><p>A <b>claim</b></p></div></div>'
NOTEBOOK = new_notebook(
    cells=[
        new_code_cell("print(x)", outputs=[new_output("stream", text="a < 'b'\n")]),
        new_code_cell("silent = 1"),
        new_code_cell("claim()", outputs=[new_output("display_data", data=HTML)]),
        new_code_cell(
            "print(x)\ny",
            outputs=[new_output("stream", text="a < 'b'\n"), new_output("execute_result", data={"text/plain": "2"})],
        ),
        new_code_cell(
            "warn()", metadata={"tags": ["remove-stderr"]}, outputs=[new_output("stream", name="stderr", text="w")]
        ),
    ]
)
AREAS = [area(pre("a &lt; 'b'")), area(RAW), area(pre("a &lt; 'b'"), pre("2"))]
FIRST, CLAIM, LAST = "code cell 1 (print(x))", "code cell 3 (claim())", "code cell 4 (print(x))"


@pytest.mark.parametrize(
    ("areas", "found"),
    [
        (AREAS, []),
        ([], [FIRST, CLAIM, LAST]),
        (AREAS[1:], [FIRST]),
        (AREAS[:1] + AREAS[2:], [CLAIM]),
        (AREAS[:2], [LAST]),
        ([AREAS[0], AREAS[1], area(pre("a &lt; 'b'"))], [LAST]),
        ([AREAS[0], AREAS[1], area(pre("a &lt; 'b'"), pre("21"))], [LAST]),
        ([AREAS[1], AREAS[0], AREAS[2]], [FIRST, CLAIM]),
        ([AREAS[0].replace("'b'", "'c'"), *AREAS[1:]], [FIRST]),
    ],
)
def test_every_output_is_on_the_page_in_its_order(areas, found):
    assert missing(NOTEBOOK, "".join(["<article>a &lt; 'b'", *areas])) == found


def test_a_link_leads_to_a_page_and_an_anchor(tmp_path):
    (tmp_path / "chapters").mkdir()
    for name in ("index.html", "chapters/one.html", "chapters/gone.html", "style.css"):
        (tmp_path / name).touch()
    good = ["one.html", "#a-b", "one.html#c", "../index.html", "../style.css?v=1", "https://x.org/y#z", "mailto:a@b.c"]
    good += ["https://book.org/chapters/one.html#c", "../book.pdf", "https://book.org/"]
    bad = ["two.html", "#nowhere", "one.html#nowhere", "gone.html", "../no.css", "https://book.org/chapters/two.html"]
    links = "".join(f'<a class="x" href="{link}">' for link in good + bad)
    pages = {"chapters/one.html": f'<p id="a-b"></p><a name="c">{links}', "index.html": ""}
    assert broken(tmp_path, pages, "https://book.org", {"book.pdf"}) == [f"chapters/one.html: {link}" for link in bad]


LEFT_OUT = {
    "a tag": ("chapters/one.md", "print(1)", ":tags: [remove-output]\n\nprint(1)", 1),
    "a setting": ("_config.yml", "execute_notebooks: cache", 'execute_notebooks: "off"', 2),
    "a link in HTML": ("chapters/two.md", "Words", '<a href="one.html#no-such">Words</a>', 0),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_a_page_that_leaves_something_out_stops_the_build_until_it_is_repaired(tmp_path, what):
    book = Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"]})
    name, old, new, count = LEFT_OUT[what]
    edit(book.root / name, old, new)
    for _ in range(2):
        done = book.run("book")
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert done.stderr.count(", code cell 1 (print") == count and done.stderr.count(
            "two.html: one.html#no-such"
        ) == (not count)
    edit(book.root / name, new, old)
    assert book.run("book").returncode == 0
