"""Expectations that a release of PyTorch changed, and the choice of the expectation for this release."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .entries import Outcome


@dataclass(frozen=True)
class Since:
    """What a claim expects, if a release of PyTorch changed the result.

    Args:
        release: the first release that gives `now`, such as `"2.14"` or `"2.14.1"`. The nightly builds of this release
            count as this release.
        now: the expected result of this release and of all newer releases.
        before: the expected result of older releases. If an older release changed the result too, another `Since`.
        pull: the number of the PyTorch pull request that changed the result, if we know it.

    Raises:
        ValueError: if `release` is not a release number, or is not newer than the release of `before`.

    >>> Since("2.14", now=[0.0], before=[1.0], pull=191142).at("2.13.0+cpu")
    [1.0]
    """

    release: str
    now: Any
    before: Any
    pull: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+\.\d+(\.\d+)?", self.release):
            raise ValueError(f"{self.release!r} is not the number of a PyTorch release: write a number such as '2.14'")
        if isinstance(self.now, Since):
            raise ValueError("`now` is a Since, but the outer Since must be the newest: pass the older one as `before`")
        if isinstance(self.before, Since) and number(self.before.release) >= number(self.release):
            raise ValueError(f"`before` is of release {self.before.release}, which is not older than {self.release}")

    def at(self, version: str) -> Any:
        """The expected result of a version, such as `torch.__version__`."""
        if number(version) >= number(self.release):
            return self.now
        return self.before.at(version) if isinstance(self.before, Since) else self.before


@dataclass(frozen=True)
class Epoch:
    """The result that is expected from the release `since` on. For the oldest result, `since` is empty."""

    since: str
    expected: Outcome
    pull: int | None = None

    def json(self) -> dict[str, Any]:
        return {"since": self.since, "expected": self.expected.json(), "pull": self.pull}


def number(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared. A nightly build counts as the release that it leads to.

    >>> number("2.9.1+cpu") < number("2.14.0.dev20260101+cu126") == number("2.14.0")
    True
    """
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        raise ValueError(f"{version!r} is not a version of PyTorch, such as '2.14.0'")
    return tuple(int(part or 0) for part in found.groups())


def epochs(expected: Any, form: Callable[[Any], Outcome]) -> tuple[Epoch, ...]:
    """The history of an expectation, the oldest first. Empty if no release changed the expectation.

    Args:
        expected: the expectation that a claim was given.
        form: converts one expectation to the form that is compared.
    """
    found: list[Epoch] = []
    while isinstance(expected, Since):
        found.append(Epoch(expected.release, form(expected.now), expected.pull))
        expected = expected.before
    return tuple(reversed([*found, Epoch("", form(expected))])) if found else ()
