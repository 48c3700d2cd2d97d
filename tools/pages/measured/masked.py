"""The tables of operators that a MaskedTensor has: forward and backward, on each release."""

from __future__ import annotations

import html
from itertools import groupby
from typing import Any

Outcomes = dict[str, dict[str, list[str]]]
"""The outcomes by release, then by operator: in forward, and in backward."""

_GOOD = ("works", "no gradient")


def masked(record: dict[str, Any]) -> str:
    """One table for each group of operators."""
    from helpers import show

    from ...measure.masked import OPERATORS, recorded

    content = recorded(record)
    tables = []
    for group, operators in OPERATORS.items():
        names = [operator.code for operator in operators]
        rows = [[f"<code>{html.escape(name)}</code>", *(_outcome(content, name, i) for i in (0, 1))] for name in names]
        newest = list(content.values())[-1]
        count = sum(all(outcome in _GOOD for outcome in newest[name]) for name in names)
        caption = f"{html.escape(group)}: {count} of {len(names)} work on PyTorch {html.escape(list(content)[-1])}"
        tables.append(show.table(caption, ["operator", "forward", "backward"], rows, stack=True))
    return show.page(f'<div class="zn-prose">{"".join(tables)}</div>')


def _outcome(content: Outcomes, name: str, index: int) -> str:
    """The outcome of an operator. If releases differ, each outcome with the releases that have it."""
    from helpers.recorded import spans

    found = [(_words(outcomes[name][index]), release) for release, outcomes in content.items()]
    groups = [(words, [release for _, release in group]) for words, group in groupby(found, lambda pair: pair[0])]
    if len(groups) == 1:
        return groups[0][0]
    return "<br>".join(f'{words} <span class="zn-note">({spans(releases)})</span>' for words, releases in groups)


def _words(outcome: str) -> str:
    if outcome in ("works", ""):
        return outcome
    if outcome == "no gradient":
        return '<span class="zn-masked">no gradient</span>'
    text = "wrong" if outcome == "wrong" else f"raises {outcome}"
    return f'<span class="zn-nan">{html.escape(text)}</span>'
