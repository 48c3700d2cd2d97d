"""Digests of earlier results and their sources, with which a build repeats no work and uses no outdated result.

A result is up to date if it and its sources have the digests that were recorded when it was made. The times of files
are not used, because a clock, a copy or git can set them arbitrarily.
"""

from __future__ import annotations

import hashlib
import json

from ..project import Project, write


def digest(*parts: str | bytes) -> str:
    """SHA-256 of some texts. The boundaries between the texts count too."""
    found = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        found.update(len(content).to_bytes(8, "big") + content)
    return found.hexdigest()


class Made:
    """The digests of results by their names, kept in one file in `_build`.

    Each record is valid by itself, and is compared with the result before it is used. Builds that run at the same time
    may therefore lose each other's records; a later build then repeats some work.
    """

    def __init__(self, project: Project) -> None:
        self._path = project.build / "made.json"
        self._entries = self._read()
        self._new: dict[str, list[str]] = {}

    def is_current(self, name: str, source: str, result: str) -> bool:
        """Whether the result with the digest `result` was made from sources with the digest `source`."""
        return self._entries.get(name) == [source, result]

    def is_intact(self, name: str, result: str) -> bool:
        """Whether the result still has the digest that it had when it was made, from whichever sources."""
        return self._entries.get(name, [])[1:] == [result]

    def remember(self, name: str, source: str, result: str) -> None:
        """Record that a result was made from these sources. Call `save` to write this to the file."""
        self._entries[name] = self._new[name] = [source, result]

    def save(self) -> None:
        """Write the new records to the file, if there are any."""
        if self._new:
            write(self._path, json.dumps({**self._read(), **self._new}, indent=1, sort_keys=True) + "\n")
            self._new.clear()

    def _read(self) -> dict[str, list[str]]:
        try:
            return dict(json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):  # the file is missing, or has another format
            return {}
