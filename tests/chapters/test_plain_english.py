"""The prose of the pages keeps to the rules of style that can be counted: short sentences, one word for one thing."""

import re

import pytest
from markdown_it import MarkdownIt
from mdit_py_plugins.front_matter import front_matter_plugin
from scratch import ROOT

from tools.project import Project

PAGES = Project(ROOT).pages
MARK = "Fill in"
"""How `tools/chapter_template.md` begins every text that an author has to write."""
LONG = 28
"""The words of a long sentence. A list of names may have more: a twentieth of the sentences, or two, may be long."""
AVOIDED = {
    r"mend(s|ed|ing)?": "fix, repair",
    r"a look": "a check",
    r"to be had": "costs",
    r"as ever": "as usual",
    r"of (its|their) own accord": "by itself",
    r"somebody": "someone, the user",
    r"is no (lie|alarm)": "is correct, is expected",
    r"put together": "composite",
    r"besides": "also",
    r"told|tells": "says, reports",
    r"(each|every|one|this|that|another) way of computing": "method",
    r"entry|entries": "element",
}
"""Words that pages don't use, with what they say instead."""


def prose(text):
    """The paragraphs and list items of a page, without code cells, tables and headings."""
    tokens = MarkdownIt("commonmark").use(front_matter_plugin).enable("table").parse(text)
    outside = 0
    for token in tokens:
        outside += (token.type in ("table_open", "heading_open")) - (token.type in ("table_close", "heading_close"))
        if token.type == "inline" and not outside:
            kinds = {"text": None, "code_inline": "`x`", "softbreak": " ", "hardbreak": " "}
            parts = [(child.content if kinds[child.type] is None else kinds[child.type]) for child in token.children
                     if child.type in kinds]  # fmt: skip
            yield "".join(parts)


def sentences(paragraph):
    return re.split(r"(?<=[.!?])[”)\"]*\s+(?=[A-Z“\"(`])", paragraph)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "_toc.yml"], ids=lambda page: page.stem)
def test_nothing_is_left_to_fill_in(page):
    assert re.findall(rf"{MARK}.*", page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_few_sentences_are_long(page):
    found = [sentence for paragraph in prose(page.read_text(encoding="utf-8")) for sentence in sentences(paragraph)]
    long = [sentence for sentence in found if len(sentence.split()) > LONG]
    assert len(long) <= max(2, len(found) // 20), long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_one_thing_has_one_word(page):
    text = re.sub(r"(?m)^> .*|^\(\S+\)=$", "", page.read_text(encoding="utf-8"))
    words = "|".join(rf"\b({avoided})\b" for avoided in AVOIDED)
    found = [match[0] for paragraph in prose(text) for match in re.finditer(words, paragraph)]
    assert found == [], AVOIDED


def test_what_is_counted_is_prose():
    table = "| told | b |\n|---|---|\n| told | d |\n"
    text = f"# A heading\n\nOne. Two words `x.y()` here.\n\n```\ncode told\n```\n\n{table}"
    assert list(prose(text)) == ["One. Two words `x` here."]
    assert sentences("One is 1.5. Two? Three") == ["One is 1.5.", "Two?", "Three"]
