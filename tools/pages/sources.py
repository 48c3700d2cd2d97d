"""The table of each source thread's statements and the book's answers. Every row leads to claims or sections."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from typing import Any

from ..project import Problem

_CLAIM = re.compile(r"([\w-]+): ([^:]+) · (.+)")
_SECTION = re.compile(r"([\w-]+)#([\w-]+)")


def sources(caption: str, lines: Iterable[str], facts: list[dict[str, Any]], link: Callable[[str], str]) -> str:
    """The table of one source.

    Args:
        caption: the name of the source.
        lines: one line for each row: `number | what the source says | answers`. A fourth part gives the reason, if the
            answer has another form on purpose. Answers are separated by `;`. An answer is a claim, `page: method ·
            quantity`, or a section, `page#anchor`. Code is between backticks.
        facts: the statements of all pages, from `collect.statements`.
        link: gives the address of a page by its name.

    Raises:
        Problem: if a row has no answer, if an answer can't be read, or if it names a claim, a section or a page that
            does not exist.
    """
    from helpers import show

    claims = {(fact["page"], fact["method"], fact["quantity"]): fact for fact in facts if fact["type"] == "claim"}
    rows = []
    for line in lines:
        number, said, answers, *reason = (part.strip() for part in line.split(" | "))
        links = [_answer(number, answer.strip(), claims, link) for answer in answers.split(";")]
        note = [f'<span class="zn-note">{show.with_code(text)}</span>' for text in reason]
        rows.append([html.escape(number), show.with_code(said), "<br>".join([*links, *note])])
    table = show.table(html.escape(caption), ["row", "the source", "the book's answer"], rows, stack=True)
    return show.page(show.prose(table))


def _answer(number: str, answer: str, claims: dict[tuple[str, str, str], Any], link: Callable[[str], str]) -> str:
    """A link to a claim or a section, as HTML."""
    from helpers.claims import anchor

    if found := _CLAIM.fullmatch(answer):
        page, method, quantity = found.groups()
        claim = claims.get((page, method, quantity))
        if claim is None:
            raise Problem(f"source row {number}: no claim on the page {page} is called {method} · {quantity}")
        target, text = anchor(claim["case"], method, quantity), f"{method}, {quantity}"
    elif found := _SECTION.fullmatch(answer):
        page, target = found.groups()
        text = target.replace("-", " ")
    else:
        raise Problem(f"source row {number}: {answer!r} is neither `page: method · quantity` nor `page#anchor`")
    if not link(page):
        raise Problem(f"source row {number}: there is no page {page}")
    return f'<a href="{link(page)}#{target}">{html.escape(page)}: {html.escape(text)}</a>'
