"""Says on stderr how long a search will take, and on a terminal how many inputs were tried."""

from __future__ import annotations

import sys
import time

LONG = 2.0
"""Searches of fewer seconds say nothing."""

_SURE = 0.5
"""The seconds after which the time of a run is trusted: the first runs take longer."""

_BETWEEN = 0.1
"""The seconds between two counts."""


class Progress:
    """The progress of a search.

    Args:
        seconds: how long the search may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, time.monotonic()
        self._first: float | None = None
        self._is_said, self._shown = False, self._began

    def show(self, each: float, tried: int, count: int) -> None:
        """Say once how long the search will take if that is long, and count on a terminal.

        Args:
            each: the seconds of one of the first runs of the loss.
            tried: how many inputs were tried.
            count: how many there are, as far as is known.
        """
        now = time.monotonic()
        self._first = now if self._first is None else self._first
        spent, each = now - self._began, min(each, (now - self._first) / tried) if tried else each
        total = spent + each * max(0, count - tried)
        if not self._is_said and self._seconds >= LONG < total and spent > _SURE:
            self._is_said = True
            ends = f", but the search stops after {self._seconds:g}" if total > self._seconds else ""
            print(
                f"explain.probe tries about {count} inputs, which takes about {total:.0f} seconds{ends}",
                file=sys.stderr,
                flush=True,
            )
        if self._is_said and now - self._shown > _BETWEEN and sys.stderr.isatty():
            self._shown = now
            print(f"\r{tried} inputs tried", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the count."""
        if self._is_said and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
