"""The table of methods: how often the gradient of each is right, what a method requires of the code, when it fails."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

GOOD = ("right", "rounded")


def methods(facts: list[dict[str, Any]], link: Callable[[str], str]) -> str:
    """One row for each method, with the number of verdicts in which its gradient is right.

    Args:
        facts: from `collect.statements`.
        link: gives the address of a page by its name.
    """
    from helpers import METHODS, show  # here, because they import PyTorch, and most builds need no table

    verdicts = [fact["observed"] for fact in facts if fact["type"] == "verdict"]
    rows = []
    for name, method in METHODS.items():
        if not method.page:
            continue
        words = [words[name] for words in verdicts if name in words]
        page, _, anchor = method.page.partition("#")
        rows.append(
            [
                html.escape(method.title),
                f"{sum(word in GOOD for word in words)} of {len(words)}",
                "yes" if method.keeps_code else "no",
                "yes" if method.is_plain else "no: convert it",
                f'{html.escape(method.fails)} (<a href="{link(page)}#{anchor}">example</a>)',
            ]
        )
    head = ["method", "gradient right or rounded", "forward code unchanged", "optimizer accepts it", "fails if"]
    caption = "The methods: how many of the comparisons below each method gets right, and when it fails"
    return show.page(show.prose(show.table(caption, head, rows)))
