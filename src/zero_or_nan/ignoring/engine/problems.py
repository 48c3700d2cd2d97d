"""What a pass could not follow, and the warnings that say so when the pass is over."""

from __future__ import annotations

import itertools
import sys
import traceback
import warnings

from ...functions.authoring import RuleFailed
from ...masks.cotangent import NotFollowed

REPORT = "https://github.com/zero-or-nan/zero-or-nan/issues"
HELP = "https://zero-or-nan.github.io/zero-or-nan/chapters/operators-of-your-own.html"

_THEN = "from there on the gradient is plain PyTorch's, and ignored elements may contaminate it"


class Problems:
    """The problems of one pass, by the name of what could not be followed.

    Attributes:
        lost: what has lost a mask.
        suspected: what may have lost one. It is reported only if a gradient is not finite.
    """

    def __init__(self) -> None:
        self.suspected: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self._mistakes: dict[str, str] = {}
        self._bugs: list[tuple[str, Exception]] = []

    def add(self, name: str, error: Exception, is_only_suspected: bool) -> None:
        """Add a problem. A `NotFollowed` may be only suspected to have lost a mask."""
        if isinstance(error, NotFollowed):
            (self.suspected if is_only_suspected else self.lost).setdefault(name, str(error))
        elif isinstance(error, RuleFailed):
            self._mistakes.setdefault(name, str(error))
        else:
            self._bugs.append((name, error))

    def report(self, raises_bugs: bool) -> None:
        """Warn of the problems. If `raises_bugs`, raise the first error that is a bug of the library."""
        if self._bugs and raises_bugs:
            raise self._bugs[0][1]
        for name, error in self._bugs[:1]:
            warnings.warn(
                f"ignoring failed at {name} ({type(error).__name__}: {error}). This is a bug in zero_or_nan; please "
                f"report it at {REPORT}. F{_THEN[1:]}",
                stacklevel=_users_line(),
            )
        for name, mistake in self._mistakes.items():
            warnings.warn(
                f"ignoring failed in your rule of {name} ({mistake}): {_THEN}. How to write a rule: {HELP}",
                stacklevel=_users_line(),
            )
        if self.lost:
            names = ", ".join(f"{name} ({reason})" for name, reason in sorted(self.lost.items()))
            warnings.warn(f"ignoring could not follow {names}: {_THEN}. What to do: {HELP}", stacklevel=_users_line())


def _users_line() -> int:
    """The `stacklevel` of the user's line, for a warning of the caller. Frames of the compiler are not the user's."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(1))]
    between = itertools.takewhile(lambda name: name.startswith(("zero_or_nan.", "torch._")), names)
    return 1 + len(list(between))
