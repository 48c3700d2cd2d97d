"""The result of running a chapter: its outputs, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Notebook = Mapping[str, Any]
"""A notebook in the form of its file: a mapping with a list of `cells`."""


@dataclass(frozen=True)
class Trouble:
    """A cell that failed unexpectedly: it raised, hung, or killed its kernel."""

    cell: int
    line: str
    what: str


@dataclass(frozen=True)
class ChapterRun:
    """A chapter with its outputs, how many seconds the run took, and whether the outputs came from the cache."""

    chapter: Path
    notebook: Notebook
    seconds: float
    cached: bool
    troubles: tuple[Trouble, ...] = ()
