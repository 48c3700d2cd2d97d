"""A public case and its page: the facts of the thread, the claims about methods, and the verdict at the end."""

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
from .methods import method
from .releases import Since, epochs
from .threads import Thread, thread
from .verdict import Verdict


class Case:
    """One public case: an issue or a forum thread that a page reproduces.

    Args:
        key: the case's key in `helpers.threads`, such as `"10729"`.

    Raises:
        KeyError: if there is no such key. The message lists all keys.

    To show a case in a notebook, write it on the last line of a cell. The notebook then shows the thread, the thread's
    state on the day when we read it, and the versions that this run verifies.

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
        method: str,
        quantity: str,
        observed: Any,
        expected: Any,
        *,
        ulps: int = 0,
        rtol: float = 0.0,
        atol: float = 0.0,
        signed_zero: bool = False,
        because: str = "",
    ) -> None:
        """State what a method gives, check it, and show it.

        Args:
            method: the method, by its name in `helpers.methods`.
            quantity: the name of what is observed, in the form that a reader would write: `"x.grad"`.
            observed: a tensor, `MaskedTensor`, number, or None (for a `.grad` that is None).
            expected: a value of the same kinds, or a nested list of numbers that may contain `nan`, `inf` and `MASKED`.
                Plain numbers are rounded to the observed dtype. If a release of PyTorch changed the result, a `Since`
                of such values. `...` says that the value is still to be filled in.
            ulps: the largest allowed difference, in units in the last place of the observed dtype; at most 64.
            rtol: the largest allowed difference, as a fraction of the expected value. `atol` is added to it.
            atol: the largest allowed difference, as an absolute number.
            signed_zero: whether -0.0 and 0.0 count as different.
            because: the reason for `rtol` or `atol`. Readers see it.

        Raises:
            ClaimFailed: if the claim does not hold. The message shows both sides and the first difference.
            KeyError: if no method with this name is registered.
            TypeError, ValueError: if one side has no elements to compare, or if a tolerance is negative, too wide, or
                given without its reason.
            NotImplementedError: if `expected` is `...`. The message says what to fill in.

        >>> Case("4132").claim("vanilla", "x.grad", torch.tensor([float("nan"), 1.0]), [float("nan"), 1.0])
        holds: 4132 · vanilla · x.grad = [NaN, 1]  (exactly)
        """
        tolerance = Tolerance(ulps, rtol, atol, signed_zero, because)
        self._check(method, quantity, expected, outcome, outcome(observed), tolerance)

    @contextmanager
    def raises(
        self, method: str, quantity: str, exception: type[BaseException] | Since, match: str = ""
    ) -> Iterator[None]:
        """State that a method fails: the block raises `exception`, and its message contains `match`.

        The name of the type must be exactly the same. So if a release of PyTorch raises another exception, or none, the
        claim fails. Keep `match` short: only the words that say what the message is about, because the rest of a
        message changes between releases. If releases raise different types, pass a `Since` of types. None in it means
        that the block raises nothing.

        Warnings that the block gives are shown with the claim, one line for each. They are not compared.

        Raises:
            ClaimFailed: if the block ends without an exception, or with a different one.

        >>> with Case("67180").raises("vanilla", "backward", RuntimeError):
        ...     torch.ones(2).sum().backward()
        holds: 67180 · vanilla · backward = raises RuntimeError  (exactly)
        """
        seen: Outcome = outcome(None)
        # Shown with the claim. Shown separately, the warnings would contain this machine's paths.
        with warnings.catch_warnings(record=True) as caught:
            try:
                yield
            except Exception as error:
                seen = outcome(error)
        lines = dict.fromkeys(str(warning.message).strip().split("\n")[0] for warning in caught)

        def raised(kind: type[BaseException] | None) -> Outcome:
            return Absent() if kind is None else Raised(kind.__name__, match)

        self._check(method, quantity, exception, raised, seen, Tolerance(), tuple(lines))

    def verdict(
        self,
        quantity: str,
        reference: Entries,
        expected: Mapping[str, str | Since],
        *,
        rows: Sequence[str] | None = None,
        ulps: int = 2,
    ) -> None:
        """Compare each method's claim about `quantity` with the reference, and show a table of verdicts.

        Args:
            quantity: the quantity that the claims are about. If a method made several such claims, the last one counts.
            reference: the right gradient, from `helpers.reference`.
            expected: for each method, the word that it must get: one of `helpers.verdict.JUDGEMENTS`, or `"raises X"`,
                or a `Since` of such words. The columns of the table have the same order.
            rows: a label for each element. By default, the label is the element's index.
            ulps: the largest difference from the reference that counts as *right*; at most 64.

        Raises:
            ClaimFailed: if a method gets a different word.
            LookupError: if a method in `expected` made no claim about `quantity`.
            ValueError: if the shapes differ, if the number of labels is wrong, or if `ulps` is too large.
        """
        if fault := Tolerance(ulps).fault(reference):
            raise ValueError(f"the verdict on {quantity!r}: {fault}")
        words: Mapping[str, object] = expected
        for name, word in words.items():
            if word is ...:
                raise NotImplementedError(f"fill in the word that {name} gets for {quantity}, in place of ...")
        made = {claim.method: claim for claim in self.claims if claim.quantity == quantity}
        lacking = [name for name in expected if name not in made]
        if lacking:
            raise LookupError(
                f"these methods made no claim about {quantity!r} before the verdict: {', '.join(lacking)}; "
                f"methods that made one: {', '.join(made) or 'none'}"
            )
        labels = list(rows) if rows is not None else reference.labels()
        if len(labels) != len(reference):
            raise ValueError(
                f"rows has {len(labels)} row labels for {len(reference)} elements; give one for each element"
            )
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
        if expected is ...:
            raise NotImplementedError(f"fill in what {name} gives for {quantity}, in place of ...")
        here = form(expected.at(torch.__version__) if isinstance(expected, Since) else expected)
        if fault := tolerance.fault(here):
            raise ValueError(f"the claim {quantity!r} is compared {tolerance}: {fault}")
        history = epochs(expected, form)
        claim = Claim(self.key, method(name).name, quantity, here, observed, tolerance, warned, history)
        self.claims.append(claim)
        claim.check()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/plain": self.text(), "text/html": show.page(self.html()), show.MIME: self.json()}

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        return f"{self.thread.text()}; run on {_versions()}.{self._recorded()}"

    def html(self) -> str:
        return self.thread.html(f"<p>This page ran on {_versions()}.{self._recorded()}</p>")

    def json(self) -> dict[str, Any]:
        return {**self.thread.json(), "type": "case"}

    def _recorded(self) -> str:
        """The other versions on which every claim of the case is recorded and holds."""
        here = "cpu", ".".join(torch.__version__.split(".")[:2])
        verified = [(device, recorded.spans(versions)) for device, versions in recorded.verified(self.key)]
        found = [f"{versions} ({device.upper()})" for device, versions in verified if (device, versions) != here]
        return f" All its checks also passed on PyTorch {'; '.join(found)}." if found else ""


def _versions() -> str:
    return f"PyTorch {torch.__version__}, Python {platform.python_version()}"
