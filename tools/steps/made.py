"""What earlier builds made, and of what: nothing is made twice, and nothing stale is taken for new.

A result is as it should be when what it is made from, and the result itself, have the digests that they had when it was
made. Times of files are not asked: a clock, a copy or git sets them as it likes.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from ..project import Project, write


def digest(*parts: str | bytes) -> str:
    """SHA-256 of some texts; where one ends and the next begins counts too."""
    found = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        found.update(len(content).to_bytes(8, "big") + content)
    return found.hexdigest()


READER = digest(version("jupytext"), version("nbformat"), Path(__file__).with_name("read.py").read_bytes())
"""Of what turns the text of a chapter into a notebook."""


class Made:
    """The digests of results by their names, kept in one file in `_build`.

    Every entry is true by itself, and checked against the result before it is believed: builds at the same time may
    lose each other's entries, and then do something twice.
    """

    def __init__(self, project: Project) -> None:
        self._path = project.build / "made.json"
        self._entries = self._read()
        self._new: dict[str, list[str]] = {}

    def is_current(self, name: str, source: str, result: str) -> bool:
        """Whether the result of that digest was made from what has the digest `source`."""
        return self._entries.get(name) == [source, result]

    def is_intact(self, name: str, result: str) -> bool:
        """Whether the result has the digest that it had when it was made, from whatever."""
        return self._entries.get(name, [])[1:] == [result]

    def remember(self, name: str, source: str, result: str) -> None:
        """Note what was made, and from what; `save` writes it down."""
        self._entries[name] = self._new[name] = [source, result]

    def save(self) -> None:
        """Write down what is new, if anything is."""
        if self._new:
            write(self._path, json.dumps({**self._read(), **self._new}, indent=1, sort_keys=True) + "\n")
            self._new.clear()

    def _read(self) -> dict[str, list[str]]:
        try:
            return dict(json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):  # not there, or not ours
            return {}
