"""The tables of masked rows in Flex attention and in a Hugging Face model, with the results of each release."""

from __future__ import annotations

import html
from itertools import groupby
from operator import itemgetter
from typing import Any


def attention(record: dict[str, Any]) -> str:
    """The two tables. If releases differ, they show each outcome with the releases that have it."""
    from helpers import show
    from helpers.recorded import spans

    from ...measure.attention import HEADS, recorded

    content = recorded(record)
    tables = []
    for name, head in HEADS.items():
        having = {release: {row[0]: row[1:] for row in rows[name]} for release, rows in content.items() if rows[name]}
        newest = list(having)[-1]
        rows = [
            [
                html.escape(label),
                *(_outcome({r: all_rows[label][i] for r, all_rows in having.items()}) for i, _ in cells),
            ]
            for label, cells in ((label, list(enumerate(found))) for label, found in having[newest].items())
        ]
        caption = f"<code>{html.escape(name)}</code>, on a CPU, PyTorch {spans(list(having))}"
        tables.append(show.table(caption, head, rows, stack=True))
    return show.page(f'<div class="zn-prose">{"".join(tables)}</div>')


def _outcome(by_release: dict[str, str]) -> str:
    """An outcome. If releases differ, each outcome with its releases."""
    from helpers.recorded import spans

    groups = [(text, [release for release, _ in group]) for text, group in groupby(by_release.items(), itemgetter(1))]
    if len(groups) == 1:
        return _word(groups[0][0])
    return "<br>".join(f'{_word(text)} <span class="zn-note">({spans(releases)})</span>' for text, releases in groups)


def _word(text: str) -> str:
    if text.startswith("raises"):
        return html.escape(text)  # longer than a phone's column: this text may be broken, a number may not
    return f'<span class="{"zn-nan" if text == "NaN" else "zn-finite"}">{html.escape(text)}</span>'
