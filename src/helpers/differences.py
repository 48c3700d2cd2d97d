"""What a notebook shows if a claim does not hold on a reader's PyTorch: both results, and where to report them."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import torch

from zero_or_nan.ignoring.engine.problems import REPORT

from .recorded import device


@dataclass(frozen=True)
class NotAsRecorded:
    """A result that differs from the recorded result.

    `observed` is the JSON form of the result here. `recorded` is the version and the JSON form of the recorded result,
    or None if no result is recorded.
    """

    name: str
    observed: Any
    recorded: tuple[str, Any] | None

    def text(self) -> str:
        return "\n".join(
            ["not what this page expects; the notebook goes on.", *self._sides(), f"report it: {self.url()}"]
        )

    def html(self) -> str:
        sides = html.escape("\n".join(self._sides()))
        link = f'<a href="{html.escape(self.url(), quote=True)}">report it</a>'
        return (
            f'<div class="zn-claim zn-fails"><p>Not what this page expects. Has PyTorch changed? Please {link}; '
            f"the notebook goes on.</p><pre>{sides}</pre></div>"
        )

    def json(self) -> None:
        """None: the claim itself says in its JSON that it does not hold."""

    def url(self) -> str:
        """The address of a new issue that already contains both results."""
        body = "\n".join(["```", self.name, *self._sides(), "```"])
        title = f"{self.name} differs on torch {torch.__version__}"
        return f"{REPORT}/new?{urlencode({'title': title, 'body': body[:4000]})}"

    def _sides(self) -> list[str]:
        version, value = self.recorded or ("", None)
        there = f"torch {version}" if version else "nothing"
        here = f"torch {torch.__version__}, {device()}"
        rows = [("recorded on", there, _brief(value) if version else ""), ("here, on", here, _brief(self.observed))]
        width = max(len(where) for _, where, _ in rows)
        return [f"{what:<11}  {where:<{width}}  {text}".rstrip() for what, where, text in rows]


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
