"""Compares the rows with the recorded words, and writes the output: lines with advice, or JSON."""

from __future__ import annotations

import json
import platform
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from .. import __version__
from ..functions.registry import release
from ..ignoring.engine.problems import REPORT
from .checking import NO_SAMPLE, NOT_FOLLOWED, Row
from .lacking import lacking
from .words import ROUNDED, ULPS

WIDTH = 80
COUNTS = ("samples", "contaminated", "fixed", "broken", "other_bits")
CASES_HEAD = f"{'case':41}{'plain PyTorch':19} ignoring"
OPERATORS_HEAD = f"{'operator':33}{'poisoned':>9}{'contaminated':>13}{'fixed':>7}{'broken':>7}{'other bits':>11}"

RELEASES = [f"2.{minor}" for minor in range(6, 16)]
"""The releases of torch for which there are records, all made on CPUs."""

BROKEN_HERE = "broken here"
FIXED_UPSTREAM = "fixed upstream"
CHANGED_UPSTREAM = "changed upstream"
KINDS = (BROKEN_HERE, FIXED_UPSTREAM, CHANGED_UPSTREAM)


@dataclass(frozen=True)
class Deviation:
    """A word that differs from the recorded word."""

    kind: str
    name: str
    method: str
    observed: str
    recorded: str


def differences(row: Row, device: str) -> Iterator[Deviation]:
    """The differences between a row's words and the recorded words.

    There are records only for the CPU. So on another device, two cases are no difference: an operator that the device
    doesn't have, and a kernel of the device without a rule in `ignoring`, which warns about it.
    """
    plain, ours = row.recorded
    if device != "cpu" and (row.plain == NO_SAMPLE or row.ignoring == NOT_FOLLOWED):
        return
    if row.plain != plain:
        kind = FIXED_UPSTREAM if row.plain == "right" else CHANGED_UPSTREAM
        yield Deviation(kind, row.name, "plain", row.plain, plain)
    # If plain PyTorch has no gradient either, `ignoring` is not broken.
    nothing = row.ignoring == row.plain and (row.plain == NO_SAMPLE or row.plain.startswith("raises "))
    if row.ignoring not in ("right", ours) and not nothing:
        yield Deviation(BROKEN_HERE, row.name, "ignoring", row.ignoring, ours)


@dataclass
class Comparison:
    """The rows so far, compared with the records of the nearest release."""

    device: torch.device
    version: str = torch.__version__
    rows: list[Row] = field(default_factory=list)
    left_out: str | None = None

    @property
    def recorded_with(self) -> str:
        """The release whose records are used: the version's own, else the newest release before it, else the oldest.

        >>> Comparison(torch.device("cpu"), "2.5.1").recorded_with
        '2.6'
        """
        return [RELEASES[0], *(each for each in RELEASES if release(each) <= release(self.version))][-1]

    def differences_of(self, row: Row) -> list[Deviation]:
        return list(differences(row, self.device.type))

    @property
    def differences(self) -> list[Deviation]:
        return [each for row in self.rows for each in self.differences_of(row)]

    def head(self) -> str:
        """The first lines: versions, device, the release with the records, and the private names that PyTorch lacks."""
        versions = self._versions()
        text = (
            f"zero_or_nan {versions['zero_or_nan']}, torch {versions['torch']}, Python {versions['python']}, "
            f"{versions['platform']}, on {self.device} ({name_of(self.device)}). "
            f"Compared with what was recorded with torch {self.recorded_with} on a CPU"
        )
        if release(self.version) != release(self.recorded_with):
            text += f", the nearest to {self.version.split('+')[0]} of which there is a record"
        if self.device.type != "cpu":
            text += f"; nothing was recorded on {self.device.type}"
        text += (
            f". A gradient is right within {ULPS} ulps of a reference in float64 on the CPU, unless the case says "
            f"otherwise, and rounded within {ROUNDED}."
        )
        return "\n".join(textwrap.fill(each, WIDTH) for each in (text, *lacking()))

    def line(self, row: Row) -> str:
        """A row as text, with its differences below."""
        if row.tally is None or not row.tally.samples or row.ignoring == NOT_FOLLOWED:
            text = f"{row.name:41}{row.plain:19} {row.ignoring}"
        else:
            counts = [getattr(row.tally, count) for count in COUNTS]
            text = f"{row.name:33}" + "".join(
                f"{count:>{width}}" for count, width in zip(counts, (9, 13, 7, 7, 11), strict=True)
            )
        notes = [
            f"  {each.kind}: {'plain PyTorch' if each.method == 'plain' else 'ignoring'} is {each.observed}, "
            f"recorded is {each.recorded}"
            for each in self.differences_of(row)
        ]
        return "\n".join([text, *notes])

    def summary(self) -> str:
        """The result in a sentence, and what to do after a difference."""
        found = Counter(each.kind for each in self.differences)
        text = f"All {len(self.rows)} as recorded."
        if found:
            kinds = ", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind])
            text = (
                f"Not as recorded: {kinds}. Please report it at {REPORT}/new, with what the same command prints with "
                "--json at its end."
            )
        if self.left_out:
            text += f" The operators were left out: {self.left_out}."
        return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)

    def json(self) -> str:
        """The whole result as JSON, as described in the package's docstring."""
        content = {
            "versions": self._versions(),
            "device": {"type": self.device.type, "name": name_of(self.device)},
            "recorded_with": self.recorded_with,
            "lacking": lacking(),
            "cases": [
                {"name": row.name, "thread": row.case.thread, "ulps": row.case.ulps, **_words(row)}
                for row in self.rows
                if row.case
            ],
            "operators": [
                {"name": row.name, **_words(row), **{count: getattr(row.tally, count) for count in COUNTS}}
                for row in self.rows
                if row.tally
            ],
            "operators_left_out": self.left_out,
            "differences": [asdict(each) for each in self.differences],
        }
        return json.dumps(content, indent=1)

    def _versions(self) -> dict[str, str]:
        return {
            "zero_or_nan": __version__,
            "torch": self.version,
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
        }


def _words(row: Row) -> dict[str, Any]:
    plain, ours = row.recorded
    return {"plain": row.plain, "ignoring": row.ignoring, "recorded": {"plain": plain, "ignoring": ours}}


def name_of(device: torch.device) -> str:
    """The name of the device, if torch knows it."""
    if device.type == "cpu":
        return str(torch.backends.cpu.get_cpu_capability())
    told = getattr(getattr(torch, device.type, None), "get_device_name", None)
    return str(told(device)) if told else device.type
