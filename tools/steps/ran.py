"""A chapter that was run: its outputs, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Notebook = Mapping[str, Any]
"""A notebook as its file has it: a mapping with a list of `cells`."""


@dataclass(frozen=True)
class Trouble:
    """A cell that did not do what its chapter means it to: it raised, hung, or killed its kernel."""

    cell: int
    line: str
    what: str


@dataclass(frozen=True)
class Run:
    """A chapter with its outputs: how long they took, or whether they were there already."""

    chapter: Path
    notebook: Notebook
    seconds: float
    cached: bool
    troubles: tuple[Trouble, ...] = ()
