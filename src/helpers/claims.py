"""A claim about the result of a method, and what claims and verdicts share: each is shown and checked.

If a statement does not hold, it raises. In a notebook it shows both results instead, and where to report them.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from urllib.parse import urlencode

import torch

from zero_or_nan.ignoring.engine.problems import REPORT

from . import recorded, show
from .compare import Tolerance, differing
from .entries import Entries, Outcome, Raised, describe
from .releases import Epoch, number


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


@dataclass(frozen=True)
class Claim(Statement):
    """A claim: what a page asserts about one method of one case.

    `warned` holds the first line of each warning that the code gave. The warnings are shown, but not compared.
    `differing` holds the flat indices at which observed and expected differ. It is empty if the claim holds. It is None
    if the two can't be compared element by element: one of them has another shape, is an exception, or is absent.
    `history` holds what is expected of older and newer releases. It is empty if no release changed the result.
    """

    case: str
    method: str
    quantity: str
    expected: Outcome
    observed: Outcome
    tolerance: Tolerance = Tolerance()
    warned: tuple[str, ...] = ()
    history: tuple[Epoch, ...] = ()
    differing: list[int] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "differing", differing(self.expected, self.observed, self.tolerance))

    @property
    def holds(self) -> bool:
        """True if the observed value is the expected value, within the tolerance."""
        return self.differing == []

    def text(self) -> str:
        """The claim as text. One line if it holds; otherwise both sides, with the differences marked."""
        name = f"{self.case} · {self.method} · {self.quantity}"
        if self.holds:
            return f"holds: {name} = {describe(self.observed)}  ({self.tolerance})"
        head = f"claim does not hold: {name}\non torch {torch.__version__}, compared {self.tolerance}\n"
        warned = [f"\n  warned: {line}" for line in self.warned]
        return "\n".join([head, *self._side_by_side(), *warned])

    def html(self) -> str:
        name = f"<strong>{html.escape(self.method)}</strong> · <code>{html.escape(self.quantity)}</code>"
        if not self.holds:
            sides = html.escape(self.text())
            return f'<div class="zn-claim zn-fails"><p>✗ {name} does not hold</p><pre>{sides}</pre></div>'
        within = "" if self.tolerance == Tolerance() else html.escape(f", {self.tolerance}")
        note = f' <span class="zn-note">(as stated{within})</span>'
        said = [f"warned: {line}" for line in self.warned]
        if isinstance(self.observed, Raised) and self.observed.message:
            said.append(f"message: {self.observed.message}")
        message = "".join(f'<p class="zn-note">{html.escape(_first_sentence(line))}</p>' for line in said)
        message += "".join(f'<p class="zn-note zn-history">{line}</p>' for line in self._other_releases())
        joint = " " if isinstance(self.observed, Raised) else " = "
        place = anchor(self.case, self.method, self.quantity)
        entries = f'<span class="zn-entries">{show.result(self.observed)}</span>'
        return f'<div class="zn-claim zn-stated" id="{place}"><p>{name}{joint}{entries}{note}</p>{message}</div>'

    def json(self) -> dict[str, Any]:
        return {
            "type": "claim",
            "case": self.case,
            "method": self.method,
            "quantity": self.quantity,
            "expected": self.expected.json(),
            "observed": self.observed.json(),
            "tolerance": str(self.tolerance),
            "warned": list(self.warned),
            "holds": self.holds,
            "differing": self.differing,
            "history": [epoch.json() for epoch in self.history],
            "torch": torch.__version__,
            "device": recorded.device(),
            "text": self.text(),
        }

    def _other_releases(self) -> list[str]:
        """The results of other releases as HTML, each change with the pull request that made it."""
        lines = []
        for older, newer in zip(self.history, self.history[1:], strict=False):
            changed = number(torch.__version__) >= number(newer.since)
            when, other = ("Before", older) if changed else ("Since", newer)
            pull = f"https://github.com/pytorch/pytorch/pull/{newer.pull}"
            by = f' (<a href="{pull}">pytorch#{newer.pull}</a>)' if newer.pull else ""
            lines.append(f"{when} PyTorch {newer.since}{by}: {show.result(other.expected)}")
        return lines

    def _side_by_side(self, limit: int = 20) -> list[str]:
        expected, observed = self.expected, self.observed
        if self.differing is None or not (isinstance(expected, Entries) and isinstance(observed, Entries)):
            return [f"  expected  {_with_shape(expected)}", f"  observed  {_with_shape(observed)}"]
        # Enough digits to identify each number, because two numbers that differ must not look the same here.
        cells = list(zip(observed.labels(), expected.texts(None), observed.texts(None), strict=True))
        first, wrong = self.differing[0], set(self.differing)
        start = 0 if len(cells) <= limit else max(0, min(first - 2, len(cells) - limit))
        shown = range(start, min(start + limit, len(cells)))
        widths = [max(len(title), *(len(cells[i][k]) for i in shown)) for k, title in enumerate(_TITLES)]
        lines = ["  " + "  ".join(title.ljust(width) for title, width in zip(_TITLES, widths, strict=True))]
        for i in shown:
            mark = "  <-- first difference" if i == first else "  <--" if i in wrong else ""
            lines.append(
                "  " + "  ".join(cell.ljust(width) for cell, width in zip(cells[i], widths, strict=True)) + mark
            )
        if len(cells) > limit:
            lines.append(f"  … {len(cells) - limit} elements not shown")
        lines.append(f"\n{len(wrong)} of {len(cells)} elements differ.")
        return lines


def anchor(case: str, method: str, quantity: str) -> str:
    """The id of a claim on its page, for links.

    >>> anchor("10729", "vanilla", "x.grad, result clamped")
    'claim-10729-vanilla-x-grad-result-clamped'
    """
    return show.anchor("claim", case, method, quantity)


_TITLES = ("element", "expected", "observed")


def _with_shape(value: Outcome) -> str:
    if isinstance(value, Entries):
        text = describe(value, digits=None)
        return text if " of shape " in text else f"{text}  of shape {list(value.shape)}"
    message = f": {value.message}" if isinstance(value, Raised) and value.message else ""
    return describe(value) + message


def _first_sentence(message: str) -> str:
    """The start of an exception's message, because some messages of PyTorch are paragraphs long."""
    line = message.strip().split("\n")[0]
    return line if len(line) <= 160 else line[:159].rsplit(" ", 1)[0] + " …"
