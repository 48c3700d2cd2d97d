"""What claims and verdicts share: each is shown and checked.

If a statement does not hold, it raises. In a notebook it shows both results instead, and where to report them.
"""

from __future__ import annotations

import html
from typing import Any, Protocol, Self
from urllib.parse import urlencode

import torch

from zero_or_nan.ignoring.engine.problems import REPORT

from . import recorded, show


class ClaimFailed(AssertionError):
    """A claim or a verdict of a page does not hold. The message shows expected and observed side by side."""


class Statement(show.Shown, Protocol):
    """A claim or a verdict. Its JSON has what was observed, and the method if the statement is about one method."""

    case: str
    quantity: str

    @property
    def holds(self) -> bool: ...

    def check(self) -> Self:
        """Show the statement. If it does not hold, raise `ClaimFailed`, or, in a notebook, also the recorded result.

        In a notebook nothing is raised, so that a reader with another PyTorch can run the rest of the page. A build
        still fails, because it reads every statement from the executed notebook.
        """
        show.show(self)
        if not self.holds:
            if show.raises():
                raise ClaimFailed(self.text())
            facts = self.json() or {}
            method = facts.get("method")
            name = f"{self.case} · {method or 'verdict'} · {self.quantity}"
            there = recorded.observed(self.case, method, self.quantity)
            show.show(not_as_recorded(name, facts["observed"], there))
        return self


def not_as_recorded(name: str, observed: Any, there: tuple[str, Any] | None) -> show.Item:
    """A result here, in its JSON form, beside the recorded one with its version, or beside nothing.

    The link leads to a new issue that already contains both results.
    """
    version, value = there or ("", None)
    rows = [
        ("recorded on", f"torch {version}" if version else "nothing", _brief(value) if version else ""),
        ("here, on", f"torch {torch.__version__}, {recorded.device()}", _brief(observed)),
    ]
    width = max(len(where) for _, where, _ in rows)
    sides = [f"{what:<11}  {where:<{width}}  {text}".rstrip() for what, where, text in rows]
    body = "\n".join(["```", name, *sides, "```"])[:4000]
    url = f"{REPORT}/new?{urlencode({'title': f'{name} differs on torch {torch.__version__}', 'body': body})}"
    link = f'<a href="{html.escape(url, quote=True)}">report it</a>'
    return show.Item(
        "\n".join(["not what this page expects; the notebook goes on.", *sides, f"report it: {url}"]),
        f'<div class="zn-claim zn-fails"><p>Not what this page expects. Has PyTorch changed? Please {link}; '
        f"the notebook goes on.</p><pre>{html.escape(chr(10).join(sides))}</pre></div>",
    )


def _brief(value: Any) -> str:
    """The JSON form of an outcome, or the words of a verdict, as one line."""
    if "raised" in value:
        return f"raises {value['raised']}"
    if "absent" in value:
        return "None"
    if "entries" in value:
        shown = value["entries"][:24]
        more = f", … {len(value['entries']) - 24} more" if len(value["entries"]) > 24 else ""
        return f"[{', '.join(shown)}{more}] of shape {value['shape']}"
    return ", ".join(f"{method}: {word}" for method, word in value.items())
