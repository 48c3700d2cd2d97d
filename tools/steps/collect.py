"""The result of running a chapter. Step 3: read the claims and verdicts out of executed notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The same text as helpers.show.MIME. Importing that module here would import PyTorch into every build, for one
# constant.
MIME = "application/vnd.zero-or-nan+json"
STATEMENTS = ("claim", "verdict")
"""The types of facts that can fail."""


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


def statements(notebook: Notebook, page: str) -> Iterator[dict[str, Any]]:
    """Every claim, verdict and case in the outputs of a notebook, with the page that made it.

    An output contains JSON next to the HTML that readers see. This function reads the JSON, and parses no text.
    """
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            facts = output.get("data", {}).get(MIME)
            if facts is not None:
                yield {**facts, "page": page}


def is_good(run: ChapterRun) -> bool:
    """Whether no cell failed unexpectedly, and every claim holds, so that the outputs can be cached."""
    return not run.troubles and not failed(statements(run.notebook, run.chapter.stem))


def collect(runs: Iterable[ChapterRun]) -> list[dict[str, Any]]:
    """The statements of all runs, in the order of the pages."""
    return [fact for run in runs for fact in statements(run.notebook, run.chapter.stem)]


def checked(facts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The statements that can fail: claims and verdicts."""
    return [fact for fact in facts if fact["type"] in STATEMENTS]


def failed(facts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims and verdicts that do not hold."""
    return [fact for fact in checked(facts) if not fact["holds"]]
