"""The public threads that the book reproduces.

Their titles, addresses and states are only in the file `data/threads.toml`, with a date.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from .data import load


@dataclass(frozen=True)
class Thread:
    """A public thread: an issue, a question or a forum topic.

    `number` is the number of the PyTorch issue, or None. `state` says whether the thread is open, and what its
    maintainers or its answers decided. If we found no decision, `state` says so.
    """

    key: str
    label: str
    title: str
    url: str
    state: str
    number: int | None = None
    looked_up: str = "2026-11-22"

    def text(self) -> str:
        return f"{self.title}\n{self.url}\n{self.state} (looked up {self.looked_up})"

    def html(self, more: str = "") -> str:
        """A card with the thread's title, its address, and its state. `more` is HTML for a last line."""
        return (
            f'<div class="zn-claim"><p>{self.link()}: {html.escape(self.title)}</p>'
            f"<p>{html.escape(self.state)} <span class='zn-note'>(looked up {self.looked_up})</span></p>{more}</div>"
        )

    def link(self) -> str:
        """The thread's label as HTML, with a link to the thread."""
        return f'<a href="{html.escape(self.url, quote=True)}">{html.escape(self.label)}</a>'

    def json(self) -> dict[str, Any]:
        read = {"title": self.title, "url": self.url, "state": self.state, "looked_up": self.looked_up}
        return {"type": "thread", "case": self.key, **read}


def thread(key: str) -> Thread:
    """The thread of a case.

    Raises:
        KeyError: if there is no such case. The message lists all cases.

    >>> thread("4132").title
    'x.grad should be 0 but get NaN after x/0'
    """
    if key not in THREADS:
        raise KeyError(
            f"no case has the key {key!r}; the keys are {', '.join(THREADS)}. "
            "To add a case, edit helpers/data/threads.toml"
        )
    return THREADS[key]


def listed(name: str) -> dict[str, Thread]:
    """The threads of one list of `data/threads.toml`, by their keys, in the order of the file."""
    return {each.key: each for each in (_thread(**row) for row in load("threads")[name])}


def _thread(number: int | None = None, kind: str = "issues", label: str = "", **more: Any) -> Thread:
    if number is None:
        return Thread(**{"key": label, "label": label, **more})
    url = f"https://github.com/pytorch/pytorch/{kind}/{number}"
    return Thread(key=str(number), label=f"pytorch#{number}", url=url, number=number, **more)


THREADS = listed("cases")
"""Every thread, by the key of its case, in the order of the chapters."""
