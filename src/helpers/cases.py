"""A public case, as a page works with it: facts of its thread, claims about its ways, a verdict at the end."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from . import recorded, show
from .claims import Claim
from .compare import Tolerance
from .entries import Absent, Entries, Outcome, Raised, outcome
from .releases import Since, epochs
from .threads import Thread, thread
from .verdict import Verdict
from .ways import way


class Case:
    """One public case.

    Args:
        key: the case's key in `helpers.threads`, such as `"10729"`.

    Raises:
        KeyError: naming the keys that exist.

    A notebook shows a case by naming it on the last line of a cell: its thread, the thread's state on the day it was
    looked up, and the versions that this very run verifies.

    >>> case = Case("52248")
    >>> case.thread.number
    52248
    """

    def __init__(self, key: str) -> None:
        self.thread: Thread = thread(key)
        self.key = key
        self.claims: list[Claim] = []

    def claim(
        self,
        way: str,
        quantity: str,
        observed: Any,
        expected: Any,
        *,
        ulps: int = 0,
        rtol: float = 0.0,
        atol: float = 0.0,
        signed_zero: bool = False,
    ) -> None:
        """State what a way gives, check it, and show it.

        Args:
            way: a name from `helpers.ways`.
            quantity: what is observed, as a reader would write it: `"x.grad"`.
            observed: a tensor, `MaskedTensor`, number, or None (for a `.grad` that is None).
            expected: the same, or a nested list of numbers with `nan`, `inf` and `MASKED` in it. Plain numbers are
                rounded to the observed dtype. A `Since` of such, where a release of PyTorch changed it.
            ulps: how many units in the last place of the observed dtype an element may be off.
            rtol: how far it may be off, as a part of what is expected; counted together with `atol`.
            atol: how far it may be off, whatever is expected.
            signed_zero: whether -0.0 is told from 0.0.

        Raises:
            ClaimFailed: when the claim does not hold, with both sides and the first difference.
            KeyError: when no such way is registered.
            TypeError, ValueError: when a side has no elements to compare, or a tolerance is negative.

        >>> Case("4132").claim("vanilla", "x.grad", torch.tensor([float("nan"), 1.0]), [float("nan"), 1.0])
        holds: 4132 · vanilla · x.grad = [NaN, 1]  (exactly)
        """
        self._check(way, quantity, expected, outcome, outcome(observed), Tolerance(ulps, rtol, atol, signed_zero))

    @contextmanager
    def raises(
        self, way: str, quantity: str, exception: type[BaseException] | Since, match: str = ""
    ) -> Iterator[None]:
        """State that a way cannot do it: the block raises `exception`, with `match` somewhere in its message.

        The type is compared by name and exactly: the day upstream raises something else, or nothing, the page knows.
        `match` is what the message is about and no more: the rest of it changes with each release. A `Since` of types
        says what another release raises; None in it, that the block comes to its end there.

        Warnings given on the way are shown with the claim, a line each, and not compared.

        Raises:
            ClaimFailed: when the block ends without an exception, or with another one.

        >>> with Case("67180").raises("vanilla", "backward", RuntimeError):
        ...     torch.ones(2).sum().backward()
        holds: 67180 · vanilla · backward = raises RuntimeError  (exactly)
        """
        seen: Outcome = outcome(None)
        # Shown beside the claim, not on their own: there they would carry this machine's paths.
        with warnings.catch_warnings(record=True) as caught:
            try:
                yield
            except Exception as error:
                seen = outcome(error)
        lines = dict.fromkeys(str(warning.message).strip().split("\n")[0] for warning in caught)

        def raised(kind: type[BaseException] | None) -> Outcome:
            return Absent() if kind is None else Raised(kind.__name__, match)

        self._check(way, quantity, exception, raised, seen, Tolerance(), tuple(lines))

    def verdict(
        self,
        quantity: str,
        reference: Entries,
        expected: Mapping[str, str | Since],
        *,
        rows: Sequence[str] | None = None,
        ulps: int = 2,
    ) -> None:
        """Put the ways that made a claim about `quantity` beside the reference, and judge them.

        Args:
            quantity: what the claims were about. The newest claim of each way counts.
            reference: from `helpers.reference`.
            expected: the word that each way earns: one of `helpers.verdict.JUDGEMENTS`, or `"raises X"`; or a
                `Since` of such words. Columns follow its order.
            rows: a label for each element; its index by default.
            ulps: how far from the reference still counts as *right*.

        Raises:
            ClaimFailed: when a way earns another word.
            LookupError: when a way in `expected` made no claim about `quantity`.
            ValueError: when the shapes, or the number of rows, do not fit.
        """
        made = {claim.way: claim for claim in self.claims if claim.quantity == quantity}
        lacking = [name for name in expected if name not in made]
        if lacking:
            raise LookupError(
                f"no claim about {quantity!r} by {', '.join(lacking)}; made by: {', '.join(made) or 'none'}"
            )
        labels = list(rows) if rows is not None else reference.labels()
        if len(labels) != len(reference):
            raise ValueError(f"{len(labels)} row labels for {len(reference)} elements")
        chosen = {name: made[name] for name in expected}
        Verdict(self.key, quantity, reference, chosen, expected, labels, ulps).check()

    def _check(
        self,
        name: str,
        quantity: str,
        expected: Any,
        form: Callable[[Any], Outcome],
        observed: Outcome,
        tolerance: Tolerance,
        warned: tuple[str, ...] = (),
    ) -> None:
        here = form(expected.at(torch.__version__) if isinstance(expected, Since) else expected)
        history = epochs(expected, form)
        claim = Claim(self.key, way(name).name, quantity, here, observed, tolerance, warned, history)
        self.claims.append(claim)
        claim.check()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/plain": self.text(), "text/html": show.page(self.html()), show.MIME: self.json()}

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        return f"{self.thread.text()}; verified on {_versions()}{self._recorded()}"

    def html(self) -> str:
        return self.thread.html(f"<p>Verified by this page on {_versions()}{self._recorded()}.</p>")

    def json(self) -> dict[str, Any]:
        return {**self.thread.json(), "type": "case"}

    def _recorded(self) -> str:
        """The other versions on which every claim of the case is recorded to hold."""
        found = [f"{recorded.spans(versions)} ({device.upper()})" for device, versions in recorded.verified(self.key)]
        return f", and recorded on PyTorch {'; '.join(found)}" if found else ""


def _versions() -> str:
    return f"PyTorch {torch.__version__}, Python {platform.python_version()}"
