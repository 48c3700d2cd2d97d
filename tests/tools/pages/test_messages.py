"""The list of messages: what the browser gets of it, and that a missing page, section or node stops the build."""

import json
import math
from types import SimpleNamespace

import pytest

from tools.pages.learned import learned
from tools.pages.messages import MESSAGES, TEXTS, messages
from tools.project import Problem

RECORDS = [
    {"address": "chapters/two.html", "page": "Two", "heading": "Two"},
    {"address": "chapters/two.html#why", "page": "Two", "heading": "Why"},
    {"address": "chapters/two.html#node-ExpBackward0", "page": "Two", "heading": "ExpBackward0", "fallback": True},
    {"address": "chapters/two.html#node-LogBackward0", "page": "Two", "heading": "LogBackward0", "fallback": True},
]
LIST = r"""
symptom = ['nan', 'inf']
[sentences]
"two" = "If it is two."
"two#why" = "If you ask why."
"two#node-{node}" = "If it is this node."
[[rule]]
message = 'one cause'
pages = ["two#why"]
opens = true
[[rule]]
node = ["Exp"]
pages = ["two"]
[[rule]]
node = "listed"
pages = ["two#node-{node}"]
[[rule]]
hint = ['exp\(', 'log\(']
nan = false
pages = ["two"]
[[rule]]
grows = 'loss'
pages = ["two"]
"""

KNOWN = [
    {"text": "sqrt gives nan", "expect": ["two"]},
    {"text": "why does sqrt give nan", "expect": ["two", "two#why"]},
    {"text": "no space on the disk", "expect": []},
    {"text": "no space on my other disk", "expect": []},
]


@pytest.fixture
def listed(tmp_path):
    """What is read of a list."""
    (tmp_path / "chapters").mkdir()
    project = SimpleNamespace(root=tmp_path, path=lambda name: f"{name}.html")

    def read(text, known=KNOWN):
        (tmp_path / MESSAGES).write_text(text, encoding="utf-8")
        (tmp_path / TEXTS).write_text(json.dumps(known), encoding="utf-8")
        return messages(project, RECORDS)

    return read


def test_the_browser_gets_addresses_headings_and_one_expression_for_each_rule(listed):
    found = listed(LIST)
    assert list(found["pages"]["two#why"].values()) == ["chapters/two.html#why", "Two", "Why", "If you ask why."]
    assert found["pages"]["two#node-{node}"]["heading"] == "{node}"
    exact, node, any_node, hint, grows = found["rules"]
    assert found["symptom"] == "nan|inf"
    assert exact == {"kind": "message", "pattern": "one cause", "opens": True, "pages": ["two#why"]}
    assert "(?:Exp)Backward" in node["pattern"] and "(?<node>(?:ExpBackward0|LogBackward0)" in any_node["pattern"]
    assert (grows["kind"], grows["pattern"]) == ("grows", "loss")
    assert hint == {"kind": "hint", "pattern": r"exp\(|log\(", "nan": False, "pages": ["two"]}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"two" = ', '"three" = ', "no such page or section"),
        ('"two#why" = ', '"two#when" = ', "no such page or section"),
        ('pages = ["two#why"]', 'pages = ["two#when"]', "rule 1 .* names two#when: add"),
        ('"Exp"', '"Ex"', "rule 2 .* no node ExBackward"),
        (r"'exp\('", "'exp('", "rule 4 .* can't be read"),
        ("hint = ", "hints = ", "rule 4 .* has hints, nan, pages; it needs"),
        ("opens = ", "open = ", "rule 1 .* has message, pages, open; it needs"),
    ],
)
def test_a_list_that_is_wrong_stops_the_build_and_says_where(listed, old, new, said):
    assert old in LIST
    with pytest.raises(Problem, match=said):
        listed(LIST.replace(old, new))


def test_a_text_whose_page_has_no_sentence_stops_the_build(listed):
    with pytest.raises(Problem, match="pasted.json names three, but .* has no sentence"):
        listed(LIST, [*KNOWN, {"text": "nan", "expect": ["two", "three"]}])


def test_what_is_learned_is_how_probable_each_page_is_for_the_words_of_a_text():
    found = learned(KNOWN)
    assert found["pages"] == ["", "two", "two#why"] and "on my" not in found["terms"]  # only one text has these words

    def chance(text, page):
        terms = [found["terms"][word] for word in text.split() if word in found["terms"]]
        weights = [dict(map(tuple, each)).get(found["pages"].index(page), 0) for each in terms]
        score = found["bias"][found["pages"].index(page)] + sum(weights) / math.sqrt(len(terms))
        return 1 / (1 + math.exp(-score))

    assert chance("sqrt nan", "two") > 0.7 > 0.3 > chance("sqrt nan", "")
    assert chance("no disk", "") > 0.7 > 0.3 > chance("no disk", "two") and chance("sqrt", "two#why") < 0.8
