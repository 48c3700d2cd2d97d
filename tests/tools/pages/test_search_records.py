"""What becomes a record of the search, and what does not."""

from types import SimpleNamespace

from docutils import nodes

from tools.pages.search import records


def cell(tags, source, html=""):
    """A cell as the renderer reads it: tags as classes, code and output in containers."""
    code = nodes.container("", nodes.literal_block(source, source), classes=["cell_input"])
    raw = nodes.raw("", html, format="html")
    output = nodes.container("", nodes.container("", raw, mime_type="text/html"), classes=["cell_output"])
    return nodes.container("", code, output, classes=["cell", *(f"tag_{tag}" for tag in tags)])


def section(name, *children):
    return nodes.section("", nodes.title(name, name), *children, ids=[name.lower().replace(" ", "-")])


def found(*children):
    """The records of a book with one page, which has one section besides its own."""
    page = nodes.document(None, None)
    page += section("Page", nodes.paragraph("", "first"), section("Why", *children))
    env = SimpleNamespace(get_doctree=lambda name: page, titles={"page": nodes.title("Page", "Page")})
    project = SimpleNamespace(names=["page"], path=lambda name: f"{name}.html")
    return records(env, project)


def test_a_section_is_a_record_and_the_first_has_the_keywords():
    first, second = found(nodes.paragraph("", "because"))
    assert first == {
        "address": "page.html", "page": "Page", "heading": "Page", "text": "first", "rows": "", "keywords": "  "
    }  # fmt: skip
    assert second == {"address": "page.html#why", "page": "Page", "heading": "Why", "text": "because", "rows": ""}


def test_words_in_a_line_are_not_torn_apart_and_blocks_are():
    parts = nodes.literal("", "exp"), nodes.Text(", "), nodes.emphasis("", "twice"), nodes.Text(".")
    line = nodes.paragraph("", "", *parts)
    _, record = found(line, nodes.paragraph("", "Next"))
    assert record["text"] == "exp, twice. Next"


TABLE = (
    "<style>.zn {}</style><table><caption>What counts</caption><thead><tr><th scope=col>row</th></tr></thead>"
    "<tbody><tr><th scope=row><code>relu(y)</code><br>below 0</th><td>3.5</td></tr></tbody></table>"
    "<svg><text>9</text></svg>"
)


def test_of_the_output_of_a_cell_captions_and_heads_of_rows_are_searched():
    for tags in ([], ["hide-input"]):
        _, record = found(cell(tags, "table()", TABLE))
        assert record["rows"] == "What counts relu(y) below 0"
    assert found(cell(["hide-cell"], "table()", TABLE))[1]["rows"] == ""


def test_of_what_the_book_draws_itself_only_what_is_marked_is_searched():
    assert found(nodes.raw("", TABLE, format="html"))[1]["rows"] == ""
    marked = f'<div class="zn zn-searched">{TABLE}</div>'
    assert found(nodes.raw("", marked, format="html"))[1]["rows"] == "What counts row relu(y) below 0 3.5"
    assert found(nodes.raw("", marked, format="latex"))[1]["rows"] == ""


def test_a_fallback_is_found_by_its_heading_and_says_so():
    row = '<tr id="node-A" class="zn-searched" data-fallback><th>ABackward0</th><td>–</td><td>a</td></tr>'
    *_, row = found(cell(["hide-input"], "node_names()", f"<table>{row}</table>"))
    address = "page.html#node-A"
    assert row == {"address": address, "page": "Page", "heading": "ABackward0", "text": "a", "fallback": True}
