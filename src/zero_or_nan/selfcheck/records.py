"""What was recorded with each release of PyTorch, on CPUs, and how a row of now differs from it.

`recorded.json` holds the releases, and for each case and operator the words by the release from which on they hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

from .checking import NO_SAMPLE, NOT_FOLLOWED, Row

BROKEN_HERE = "broken here"
FIXED_UPSTREAM = "fixed upstream"
CHANGED_UPSTREAM = "changed upstream"
KINDS = (BROKEN_HERE, FIXED_UPSTREAM, CHANGED_UPSTREAM)

Words = tuple[str, str]
"""Plain PyTorch's word, and ours."""


@dataclass(frozen=True)
class Records:
    """The words of each release: `tables["2.13"]["nansum"] == ("contaminated", "right")`."""

    tables: Mapping[str, Mapping[str, Words]]

    @property
    def releases(self) -> list[str]:
        """Those that are recorded, the oldest first."""
        return sorted(self.tables, key=_order)

    def nearest(self, version: str) -> str:
        """The recorded release to compare a version with: its own, else the newest before it, else the oldest.

        >>> Records({"2.6": {}, "2.13": {}}).nearest("2.14.0.dev20260901+cu126")
        '2.13'
        """
        known = self.releases
        return [known[0], *(each for each in known if _order(each) <= _order(release_of(version)))][-1]

    @classmethod
    def from_json(cls, text: str) -> Records:
        """Read what `json` wrote."""
        content = json.loads(text)
        tables: dict[str, dict[str, Words]] = {release: {} for release in content["releases"]}
        for name, changes in content["words"].items():
            for release in tables:
                since = [each for each in changes if _order(each) <= _order(release)]
                if since and (words := changes[max(since, key=_order)]):
                    tables[release][name] = (words[0], words[1])
        return cls(tables)

    def json(self) -> str:
        """The releases, and for each name its words by the release from which on they hold; null where it had none."""
        releases = self.releases
        words: dict[str, dict[str, Words | None]] = {}
        for name in dict.fromkeys(name for release in reversed(releases) for name in self.tables[release]):
            before = None
            words[name] = {}
            for release in releases:
                now = self.tables[release].get(name)
                if now != before:
                    words[name][release] = before = now
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(changes)}" for name, changes in words.items())
        return f'{{\n "releases": {json.dumps(releases)},\n "words": {{\n{lines}\n }}\n}}\n'


def recorded() -> Records:
    """The records that this package carries."""
    return Records.from_json(resources.files(__package__).joinpath("recorded.json").read_text(encoding="utf-8"))


def release_of(version: str) -> str:
    """The release of a version: `"2.13"` of `"2.13.1+cu126"`."""
    found = re.match(r"\d+\.\d+", version)
    if not found:
        raise ValueError(f"not a version of torch: {version!r}")
    return found[0]


@dataclass(frozen=True)
class Deviation:
    """A word that is not the recorded one."""

    kind: str
    name: str
    method: str
    observed: str
    recorded: str


def differences(row: Row, words: Words | None, device: str) -> Iterator[Deviation]:
    """How a row differs from the recorded words, or, without any, from being right.

    Two things are no difference on another device than the CPU, for which alone there are records: an operator that it
    doesn't have, and a kernel of its own that `ignoring` has no rule for, and warns of.
    """
    plain, ours = words or (row.plain, "right")
    if device != "cpu" and (row.plain == NO_SAMPLE or row.ignoring == NOT_FOLLOWED):
        return
    if row.plain != plain:
        kind = FIXED_UPSTREAM if row.plain == "right" else CHANGED_UPSTREAM
        yield Deviation(kind, row.name, "plain", row.plain, plain)
    # Where plain PyTorch gives nothing either, it is not ours to fix.
    nothing = row.ignoring == row.plain and (row.plain == NO_SAMPLE or row.plain.startswith("raises "))
    if row.ignoring not in ("right", ours) and not nothing:
        yield Deviation(BROKEN_HERE, row.name, "ignoring", row.ignoring, ours)


def _order(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
