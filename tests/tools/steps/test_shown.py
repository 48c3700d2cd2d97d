"""What was executed is on the rendered pages, and every link leads somewhere: whatever is left out is named."""

import shutil

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from scratch import Book, edit

from tools.picture import PAGE, _record, _shown
from tools.project import Problem, Project, write_record
from tools.steps.addresses import lost_addresses
from tools.steps.shown import broken, missing, problems

PRINTED = new_output("stream", text="a < 'b'\n")
STATED = new_output("display_data", data={"text/html": '<div class="zn"><style>p {}</style><b>1</b></div>'})
FIGURE = new_output("display_data", data={"image/png": "aGk=", "text/plain": "<Figure>"})
FAILED = new_output("error", ename="E", evalue="no", traceback=["E: no"])
WARNED = new_output("stream", name="stderr", text="w")
NOTEBOOK = new_notebook(
    cells=[
        new_code_cell("print(x)", outputs=[PRINTED]),
        new_code_cell("claim()", outputs=[STATED]),
        new_code_cell("last", outputs=[PRINTED, new_output("execute_result", data={"text/plain": "2"})]),
        new_code_cell("draw()", outputs=[FIGURE]),
        new_code_cell("1 / 0", outputs=[FAILED]),
        new_code_cell("warn()", metadata={"tags": ["remove-stderr"]}, outputs=[WARNED]),
    ]
)
PRE = "<pre><span></span>a &lt; 'b'\n</pre>"
AREAS = [
    PRE,
    '<div class="zn"><b>1</b></div>',
    f"{PRE}<pre><span></span>2\n</pre>",
    '<img src="x.png">',
    "<pre>E: no</pre>",
]
FIRST, CLAIM, LAST = "code cell 1 (print(x))", "code cell 2 (claim())", "code cell 3 (last)"


@pytest.mark.parametrize(
    ("areas", "found"),
    [
        (AREAS, []),
        ([], [FIRST, CLAIM, LAST, "code cell 4 (draw())", "code cell 5 (1 / 0)"]),
        (AREAS[1:], [FIRST]),
        ([AREAS[0], *AREAS[2:]], [CLAIM]),
        ([*AREAS[:2], PRE, *AREAS[3:]], [LAST]),
        ([*AREAS[:2], AREAS[2].replace("2", "21"), *AREAS[3:]], [LAST]),
        ([AREAS[1], AREAS[0], *AREAS[2:]], [FIRST, CLAIM]),
    ],
)
def test_every_output_is_on_the_page_in_its_order(areas, found):
    page = "".join(f'<div class="cell_output docutils container">\n{area}</div>\n<p>Words.</p>' for area in areas)
    assert missing(NOTEBOOK, f"<article>{PRE}{page}") == found


def test_a_link_leads_to_a_page_and_an_anchor(tmp_path):
    (tmp_path / "chapters").mkdir()
    for name in ("index.html", "chapters/one.html", "chapters/gone.html", "style.css"):
        (tmp_path / name).touch()
    good = ["one.html", "#a-b", "one.html#c", "../index.html", "../style.css?v=1", "https://x.org/y#z", "mailto:a@b.c"]
    good += ["https://book.org/chapters/one.html#c", "https://book.org/"]
    bad = ["two.html", "#nowhere", "one.html#nowhere", "gone.html", "../no.css", "https://book.org/chapters/two.html"]
    links = "".join(f'<a class="x" href="{link}">' for link in good + bad)
    pages = {"chapters/one.html": f'<p id="a-b"></p><a name="c">{links}', "index.html": ""}
    assert broken(tmp_path, pages, "https://book.org") == [f"chapters/one.html: {link}" for link in bad]


def test_a_page_that_leaves_something_out_stops_the_build_until_it_is_repaired(tmp_path):
    random = "import os\n\nprint(os.urandom(8).hex())"  # a second run would print something else
    book = Book(tmp_path / "book", {"one": ["print(1)"], "two": ["print(2)"], "three": [random]})
    edit(book.chapter("one"), "print(1)", ":tags: [remove-output]\n\nprint(1)")
    edit(book.chapter("two"), "Words", '<a href="one.html#no-such">Words</a>')
    for _ in range(2):  # the second time, nothing has changed since
        done = book.here("book")
        said = ["chapters/one.md, code cell 1 (print(1))", "two.html: one.html#no-such"]
        assert done.returncode == 1 and all(text in done.stderr for text in said), done.stdout + done.stderr
    edit(book.chapter("one"), ":tags: [remove-output]\n\n", "")
    edit(book.chapter("two"), '<a href="one.html#no-such">Words</a>', "Words")
    edit(book.root / "_config.yml", "execute_notebooks: cache", 'execute_notebooks: "off"')
    done = book.here("book")
    assert done.returncode == 1 and "one.md, code cell 1" in done.stderr and "two.md, code" in done.stderr
    edit(book.root / "_config.yml", 'execute_notebooks: "off"', "execute_notebooks: cache")
    shutil.rmtree(book.root / "_build" / "executed")
    done = book.here("book")
    assert done.returncode == 0, done.stderr


def test_a_published_address_stays(project):
    pages = {"a.html": '<section id="one"></section><section id="id3"></section>', "b.html": "<p>"}
    assert lost_addresses(project, pages) == []
    assert project.addresses.read_text().split() == ["a.html", "a.html#one", "b.html"]
    renamed = {"a.html": '<section id="two"></section>', "b.html": ""}
    assert lost_addresses(project, renamed) == ["a.html#one", "b.html"]
    assert "a.html#two" not in project.addresses.read_text()
    assert lost_addresses(project, {"a.html": '<span id="one"></span><section id="two">', "b.html": "<p>"}) == []
    assert "a.html#two" in project.addresses.read_text()


def test_the_picture_of_the_readme_is_the_one_that_was_taken_of_this_table(project):
    (project.root / "_config.yml").write_text("html: {baseurl: https://book.org}")
    (project.root / "_toc.yml").write_text("{format: jb-book, root: one, chapters: [{file: chapters/where-over-exp}]}")
    for name in ("one", "chapters/where-over-exp"):
        (project.root / name).parent.mkdir(exist_ok=True)
        (project.root / f"{name}.md").write_text("# One")
    (project.site / "chapters").mkdir(parents=True)
    project.picture.parent.mkdir(exist_ok=True)
    project.picture.write_bytes(b"picture")

    def is_refused(table):
        (project.site / PAGE).write_text(table)
        return any("make picture" in each for each in problems(Project(project.root), []))

    table = '<table class="a" data-verdict="b"><tr><td>x = 90</td><td>NaN</td></tr></table>'
    with pytest.raises(Problem, match="picture.json is missing; .* run `make picture`"):
        is_refused(table)
    write_record(_record(project), _shown(project, table))
    assert not is_refused(table) and is_refused(table.replace("NaN", "0"))
    project.picture.write_bytes(b"another")
    assert is_refused(table)
