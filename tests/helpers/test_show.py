"""A result is shown as text, HTML and JSON, in the place in which the reader looks, and its HTML is well-formed."""

import html
import re
import sys
import warnings
from html.parser import HTMLParser
from importlib import resources
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
import torch

from helpers import MASKED, Case, recorded
from helpers.entries import Absent, Kind, Raised, outcome
from helpers.show import MIME, entry, page, result, table


@pytest.fixture
def shell(monkeypatch):
    """A shell with a kernel behind it, as `IPython.get_ipython` gives it in a notebook."""
    published = []
    publisher = SimpleNamespace(publish=lambda bundle: published.append(bundle))
    shell = SimpleNamespace(kernel=object(), display_pub=publisher, published=published)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return shell


def strip(fragment):
    return html.unescape(re.sub(r"<[^>]*>", "", fragment))


class Tags(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_result_is_escaped_and_says_what_stood_in_the_place_of_elements():
    assert entry("<b>&", Kind.NAN) == '<span class="zn-nan">&lt;b&gt;&amp;</span>'
    assert strip(result(Absent())) == "None"
    assert strip(result(Raised("Type<b>", "message"))) == "raises Type<b>"
    assert "<b>" not in result(Raised("Type<b>", "message"))
    with pytest.raises(TypeError, match="not an outcome: 3"):
        result(3)


def test_a_page_carries_its_own_style_which_loads_nothing_and_touches_only_its_own_elements():
    text = page("<p>body</p>")
    assert text.startswith('<div class="zn"><style>') and text.endswith("<p>body</p></div>") and "\n" not in text
    Tags(text)
    style = resources.files("helpers").joinpath("style.css").read_text(encoding="utf-8")
    assert not any(word in style for word in ("http", "url(", "@import", "<"))
    for selectors in re.findall(r"([^{}]+)\{", re.sub(r"@(media|container)[^{]*\{", "", style)):
        assert all(selector.strip().startswith(".zn") for selector in selectors.split(","))


def test_a_table_has_headers_of_rows_and_columns_and_can_be_reached_by_keyboard():
    text = table("On <code>a &lt;b&gt;</code>", ["entry", "one"], [["<i>r</i>", "c"], ["s", "d"]], data={"a": '"'})
    seen = Tags(text).seen
    assert [attrs["scope"] for tag, attrs in seen if tag == "th"] == ["col", "col", "row", "row"]
    (box,) = [attrs for tag, attrs in seen if tag == "div"]
    assert (box["tabindex"], box["role"], box["class"], box["aria-label"]) == ("0", "group", "zn-scroll", "On a <b>")
    assert "<caption>On <code>a &lt;b&gt;</code></caption>" in text and ' data-a="&quot;"' in text
    assert '<td role="cell" data-head="one">c</td>' in text and "<i>r</i>" in text
    assert "<tfoot" not in text
    rows = [["the header of a row does not count", "<b>four</b>", "five!<br>six&lt;7"], ["r", "", "x"]]
    text = table("c", ["a", "a long header", "c"], rows, foot=["a long header", "seven 7", "y"])
    assert '<tbody role="rowgroup" style="--widest: 5ch">' in text
    foot = '<th scope="row" role="rowheader" data-head="a">a long header</th>'
    assert f'<tfoot role="rowgroup" style="--widest: 7ch"><tr role="row">{foot}' in text
    with pytest.raises(ValueError):
        table("c", ["a", "b"], [["r", "s", "t"]])


def test_a_wide_table_can_be_stacked_with_labels_and_stays_a_table():
    narrow, wide = (table("c", list("abcde")[:count], [list("vwxyz")[:count]]) for count in (3, 4))
    assert "zn-stack" not in narrow and '<table role="table" class="zn-stack">' in wide
    assert "zn-stack" in table("c", ["a"], [["v"]], stack=True)
    assert "zn-stack" not in table("c", list("abcd"), [list("vwxy")], stack=False)
    long_word = ["<code>F.binary_cross_entropy_with_logits</code>, <code>log</code>", "float32"]
    assert "zn-stack" in table("c", ["a", "b"], [long_word])
    assert "zn-stack" not in table("c", ["a", "b"], [[f"<code>log</code>{' other words' * 9}", "a long text " * 9]])
    assert 'data-head="x &amp; y"' in table("c", ["a", "<code>x &amp; y</code>"], [["r", "s"]])
    with_sentences, without = (table("c", ["a", "b"], [["v", "words " * count]]) for count in (25, 13))
    assert "--most: 100%" in with_sentences and "--most" not in without


def test_a_notebook_goes_on_where_a_claim_does_not_hold_and_shows_both_results(shell, monkeypatch):
    record = {"torch": "2.13.0", "device": "cpu", "outcomes": [
        {"type": "claim", "case": "4132", "method": "vanilla", "quantity": "x.grad", "observed": outcome([2.0]).json()},
        {"type": "verdict", "case": "4132", "quantity": "x.grad", "observed": {"vanilla": "right"}},
    ]}  # fmt: skip
    monkeypatch.setattr(recorded, "records", lambda: (record,))
    case = Case("4132")
    case.claim("vanilla", "x.grad", torch.ones(1), [2.0])
    case.verdict("x.grad", outcome([2.0]), {"vanilla": "right"})
    claim, beside, verdict, beside_verdict = shell.published
    assert claim[MIME]["holds"] is False and verdict[MIME]["holds"] is False
    for bundle, there, here in ((beside, "[2] of shape [1]", "[1] of shape [1]"),
                                (beside_verdict, "vanilla: right", "vanilla: wrong")):  # fmt: skip
        assert MIME not in bundle  # the claim has said it: nothing is counted twice
        assert re.search(rf"recorded on +torch 2.13.0 +{re.escape(there)}\n", bundle["text/plain"])
        assert re.search(
            rf"here, on +torch {re.escape(torch.__version__)}, cpu +{re.escape(here)}\n", bundle["text/plain"]
        )
        link = re.search(r'href="([^"]+)"', bundle["text/html"])[1]
        address = urlsplit(html.unescape(link))
        assert address.path == "/zero-or-nan/zero-or-nan/issues/new"
        body = parse_qs(address.query)["body"][0]
        assert there in body and here in body and torch.__version__ in parse_qs(address.query)["title"][0]
    monkeypatch.setattr(recorded, "records", tuple)
    with case.raises("masked", "mm", TypeError):
        pass
    assert re.search(r"recorded on  nothing\nhere, on +torch \S+ cpu +None\n", shell.published[-1]["text/plain"])


@pytest.mark.filterwarnings("always")
def test_html_of_claims_and_verdicts_closes_what_it_opens(shell):
    case = Case("4132")
    case.claim("vanilla", "<script>", torch.tensor([[1.0, float("nan")]]), [[1.0, float("nan")]], ulps=1)
    case.claim("vanilla", "<script>", torch.ones(1), [2.0])
    case.claim("vanilla", "<script>", torch.tensor([1.0, 0.0]), [1.0, 0.0])
    case.verdict("<script>", outcome([1.0, MASKED]), {"vanilla": "right"})
    case.verdict("<script>", outcome([2.0, MASKED]), {"vanilla": "<script>"}, rows=["<script>", "b"])
    with case.raises("masked", "<script>", TypeError):
        warnings.warn("<script>", stacklevel=1)
        raise TypeError("<script>")
    assert len(shell.published) == 8
    texts = [bundle["text/html"] for bundle in shell.published] + [case._repr_mimebundle_()["text/html"]]
    for text in texts:
        tags = {tag for tag, _ in Tags(text).seen}
        assert "script" not in tags
