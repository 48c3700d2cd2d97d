"""The table of methods: how often the gradient of each is right, what a method requires of the code, when it fails."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GOOD = ("right", "rounded")


@dataclass(frozen=True)
class Limits:
    """What a method requires of the user's code, and when it fails.

    Attributes:
        keeps_code: whether the forward code stays unchanged.
        is_plain: whether `.grad` is a plain tensor, which every optimizer accepts.
        fails: when the gradient is wrong, or can't be computed.
        page: a page with an example of this failure, with its anchor.
    """

    keeps_code: bool
    is_plain: bool
    fails: str
    page: str


LIMITS = {
    "vanilla": Limits(
        True, True, "an element that the loss ignores has a derivative of inf or NaN", "where-over-exp#why"
    ),
    "masked": Limits(
        False,
        False,
        "an operator has no masked version, such as Linear; or two masks differ",
        "masked-tensors#which-operators-work",
    ),
    "ignoring": Limits(
        True, True, "an operator can't be followed (a warning names it)", "operators-of-your-own#what-the-warning-names"
    ),
    "double where": Limits(
        False,
        True,
        "you can't change the input of the function, for example inside a library",
        "use-it-in-your-project#why-not-a-second-where",
    ),
    "substitute": Limits(
        False,
        True,
        "the loss uses the harmless number too, and this number changes the gradient",
        "every-remedy#which-remedy-to-take",
    ),
    "select first": Limits(
        False,
        True,
        "the rows influence each other, or later code needs the original shape",
        "slicing-nan#where-rows-influence-each-other",
    ),
    "scrub": Limits(
        True,
        True,
        "the NaN was already added to other numbers, which are then lost too",
        "use-it-in-your-project#why-not-set-nan-to-0-in-grad",
    ),
    "hook": Limits(
        True,
        True,
        "the tensor is used twice, or the loss uses the NaN: a wrong number is left",
        "division-under-a-mask#what-a-hook-can-do-and-what-it-can-t",
    ),
}
"""The limits by the name of the method, in the order of the table.

Other methods on pages are formulas to compare with.
"""


def methods(facts: list[dict[str, Any]], link: Callable[[str], str]) -> str:
    """One row for each method, with the number of verdicts in which its gradient is right.

    Args:
        facts: from `collect.statements`.
        link: gives the address of a page by its name.
    """
    from helpers import METHODS, show  # here, because they import PyTorch, and most builds need no table

    verdicts = [fact["observed"] for fact in facts if fact["type"] == "verdict"]
    rows = []
    for name, limits in LIMITS.items():
        words = [words[name] for words in verdicts if name in words]
        page, _, anchor = limits.page.partition("#")
        rows.append(
            [
                html.escape(METHODS[name].title),
                f"{sum(word in GOOD for word in words)} of {len(words)}",
                "yes" if limits.keeps_code else "no",
                "yes" if limits.is_plain else "no: convert it",
                f'{html.escape(limits.fails)} (<a href="{link(page)}#{anchor}">example</a>)',
            ]
        )
    head = ["method", "gradient right or rounded", "forward code unchanged", "optimizer accepts it", "fails if"]
    caption = "The methods: how many of the comparisons below each method gets right, and when it fails"
    return show.page(show.prose(show.table(caption, head, rows)))
