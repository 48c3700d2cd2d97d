"""The table at the end of a case: each method next to the reference, element by element, and a word for each method."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import recorded, show
from .claims import Claim, Statement
from .compare import ROUNDED, ulp_distance
from .entries import Absent, Entries, Raised, describe
from .methods import method
from .releases import Since

# From best to worst. The word of a method is the word of its worst element.
JUDGEMENTS = {
    "right": "✓",
    "rounded": "≈",
    "missing": "?",
    "wrong": "≠",
    "contaminated": "✗",
}
"""The words for an element of a gradient, with their marks.

- *right*: the element differs from the reference by at most the stated ulps, or is the same NaN or infinity as the
  reference. If the loss does not use the element, it is zero or masked.
- *rounded*: the difference is larger than that, but at most `helpers.compare.ROUNDED` ulps. Many small rounding errors
  cause it.
- *missing*: the element is masked or absent, although the loss uses it.
- *wrong*: the element is finite, but is not the gradient; or the reference is NaN or infinite, and the element is not
  the same.
- *contaminated*: the element is NaN or infinite, although the reference is finite or the loss does not use the element.
"""


def judge(reference: Entries, observed: Entries, ulps: int = 2) -> list[str]:
    """Judge every element of `observed` by the reference, with one word of `JUDGEMENTS` for each.

    Args:
        reference: the right gradient in float64, masked at each element that the loss does not use.
        observed: a gradient of the same shape and any real dtype. Integers are converted to float64.
        ulps: the largest difference that counts as *right*, in units in the last place of the observed dtype. The
            results of `exp`, `log` and `pow` differ by about one ulp between processors.

    Raises:
        ValueError: if the shapes differ.

    >>> from helpers.entries import outcome, MASKED
    >>> judge(outcome([1.0, MASKED]), outcome([1.0, float("nan")]))
    ['right', 'contaminated']
    """
    if reference.shape != observed.shape:
        raise ValueError(f"observed has shape {list(observed.shape)}, but the reference has {list(reference.shape)}")
    data = observed.data if observed.data.is_floating_point() else observed.data.double()
    rounded = reference.data.to(data.dtype)
    # Elements that are not finite are judged by kind below. Here they only must not disturb the distance.
    far = ulp_distance(rounded.flatten(), data.flatten()).abs().tolist()
    return [
        _judge_entry(want, used, got, shown, distance, ulps)
        for want, used, got, shown, distance in zip(
            rounded.flatten().tolist(),
            reference.mask.flatten().tolist(),
            data.flatten().tolist(),
            observed.mask.flatten().tolist(),
            far,
            strict=True,
        )
    ]


def _judge_entry(want: float, used: bool, got: float, shown: bool, distance: int, ulps: int) -> str:
    if not shown:
        return "missing" if used else "right"
    if not used:
        return "contaminated" if not math.isfinite(got) else "right" if got == 0 else "wrong"
    if not math.isfinite(want):
        return "right" if want == got or (math.isnan(want) and math.isnan(got)) else "wrong"
    if not math.isfinite(got):
        return "contaminated"
    return "right" if distance <= ulps else "rounded" if distance <= ROUNDED else "wrong"


@dataclass(frozen=True)
class Verdict(Statement):
    """A table with a column for each method and a row for each element, and a word for each method.

    `expected` gives the word that each method must get: one of `JUDGEMENTS`, or `raises X` for an exception of type X,
    or a `Since` of such words.
    """

    case: str
    quantity: str
    reference: Entries
    claims: Mapping[str, Claim]
    expected: Mapping[str, str | Since]
    rows: Sequence[str]
    ulps: int

    def words(self) -> dict[str, str]:
        """The word that each method got."""
        return {name: self._word(claim) for name, claim in self.claims.items()}

    def wanted(self) -> dict[str, str]:
        """The word that each method must get on this release of PyTorch."""
        here = torch.__version__
        return {name: word.at(here) if isinstance(word, Since) else word for name, word in self.expected.items()}

    @property
    def holds(self) -> bool:
        return self.words() == self.wanted()

    def text(self) -> str:
        wanted = self.wanted()
        lines = [f"verdict on {self.case} · {self.quantity}  (torch {torch.__version__})"]
        for name, word in self.words().items():
            mark = "" if word == wanted[name] else "  <-- differs"
            lines.append(f"  {name}: expected {wanted[name]}, observed {word}{mark}")
        lines.append(f"  reference: {describe(self.reference)}")
        lines += [f"  {name}: {describe(claim.observed)}" for name, claim in self.claims.items()]
        return "\n".join(lines)

    def html(self) -> str:
        head = ["element", "reference", *(html.escape(method(name).title) for name in self.claims)]
        columns = [show.cells(self.reference), *(self._column(claim) for claim in self.claims.values())]
        rows = [[html.escape(label), *cells] for label, *cells in zip(self.rows, *columns, strict=True)]
        words = [f'<span class="zn-mark">{html.escape(marked(word))}</span>' for word in self.words().values()]
        caption = f"Verdict on <code>{html.escape(self.quantity)}</code>"
        data = {"verdict": ", ".join(f"{name}: {word}" for name, word in self.words().items())}
        body = show.table(caption, head, rows, ["verdict", "", *words], data)
        failed = "" if self.holds else f"<pre>✗ {html.escape(self.text())}</pre>"
        note = (
            "The reference is computed in float64, from the used elements alone. "
            "<span class='zn-masked'>--</span> marks an element that the loss does not use."
        )
        within = f"differs from it by at most {self.ulps} ulps" if self.ulps else "equals it"
        note += f" <em>Right</em>: if the reference is rounded to the gradient's dtype, the gradient {within}."
        return f'{failed}{body}<p class="zn-note">{note}</p>'

    def json(self) -> dict[str, Any]:
        return {
            "type": "verdict",
            "case": self.case,
            "quantity": self.quantity,
            "reference": self.reference.json(),
            "expected": self.wanted(),
            "observed": self.words(),
            "entries": {name: self._counts(claim) for name, claim in self.claims.items()},
            "holds": self.holds,
            "torch": torch.__version__,
            "device": recorded.device(),
            "text": self.text(),
        }

    def _word(self, claim: Claim) -> str:
        if isinstance(claim.observed, Raised):
            return describe(claim.observed)
        if isinstance(claim.observed, Absent):
            return "missing"
        words = judge(self.reference, claim.observed, self.ulps)
        return max(words, key=list(JUDGEMENTS).index, default="right")

    def _counts(self, claim: Claim) -> dict[str, int]:
        """How many elements got each word."""
        if not isinstance(claim.observed, Entries):
            return {}
        words = judge(self.reference, claim.observed, self.ulps)
        return {word: words.count(word) for word in JUDGEMENTS if word in words}

    def _column(self, claim: Claim) -> list[str]:
        if not isinstance(claim.observed, Entries):
            return ["" for _ in self.rows]
        words = judge(self.reference, claim.observed, self.ulps)
        return [
            f'{cell} <span class="zn-mark" data-judged="{word}">{JUDGEMENTS[word]}</span>'
            for cell, word in zip(show.cells(claim.observed), words, strict=True)
        ]


def marked(word: str) -> str:
    """A word of a verdict after its mark. The mark of an exception is an exclamation mark.

    >>> marked("right"), marked("raises TypeError")
    ('✓ right', '! raises TypeError')
    """
    return f"{JUDGEMENTS.get(word, '!')} {word}"
