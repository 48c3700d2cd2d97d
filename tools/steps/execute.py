"""Step 2: run every chapter whose outputs are not there already, and hand all of them on in `_build/executed`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..project import Project, write
from .collect import is_good
from .environment import fingerprint
from .made import READER, Made, digest
from .ran import Notebook, Run

TIMEOUT = 120
"""Seconds that one cell may take."""


def execute(
    project: Project,
    chapters: Sequence[Path],
    report: Callable[[Run], None] = lambda run: None,
    timeout: int = TIMEOUT,
    jobs: int | None = None,
) -> list[Run]:
    """Bring every chapter's outputs up to date with its code and the environment.

    A cell that raises does not keep the later cells from running, so that all failing claims of a chapter are known
    at the end; a chapter with trouble, or with a claim that does not hold, is neither cached nor handed on.

    Args:
        project: the checkout.
        chapters: the sources to run.
        report: called with each finished run, in the order in which they finish.
        timeout: seconds that one cell may take.
        jobs: chapters at a time; by default one more than there are processors, for kernels also wait.

    Returns:
        One run per chapter, in the order of `chapters`.

    Raises:
        Problem: when a chapter can't be read, before any is run.
    """
    executed = Executed(project)
    done = {chapter: Run(chapter, notebook, 0.0, cached=True) for chapter, notebook in executed.known(chapters)}
    for run in done.values():
        report(run)
    if rest := [chapter for chapter in chapters if chapter not in done]:
        from .run import run_all  # here, for importing what runs a notebook takes longer than most builds

        for run in run_all(project, rest, timeout, jobs):
            if is_good(run):
                executed.keep(run.chapter, run.notebook)
            done[run.chapter] = run
            report(run)
    return [done[chapter] for chapter in chapters]


def cached(project: Project) -> dict[Path, Notebook]:
    """The chapters whose outputs are there or in the cache, with those outputs; all are handed on then."""
    executed = Executed(project)
    found = dict(executed.known(project.chapters))
    if rest := [chapter for chapter in project.chapters if chapter not in found]:
        from .run import from_cache

        for chapter, notebook in from_cache(project, rest):
            executed.keep(chapter, notebook)
            found[chapter] = notebook
    return {chapter: found[chapter] for chapter in project.chapters if chapter in found}


class Executed:
    """The executed notebooks in `_build/executed`: one file for each chapter, for whatever reads outputs."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._made = Made(project)
        self._environment = digest(fingerprint(project), READER)

    def known(self, chapters: Sequence[Path]) -> Iterator[tuple[Path, Notebook]]:
        """Those chapters, with outputs, whose file is of their text and of this environment."""
        for chapter in chapters:
            path = self._path(chapter)
            content = path.read_bytes() if path.is_file() else b""
            if self._made.is_current(self._name(chapter), self._source(chapter), digest(content)):
                yield chapter, json.loads(content)

    def keep(self, chapter: Path, notebook: Notebook) -> None:
        """Hand on the outputs of a chapter."""
        import nbformat

        content = str(nbformat.writes(notebook)) + "\n"
        write(self._path(chapter), content)
        self._made.remember(self._name(chapter), self._source(chapter), digest(content))
        self._made.save()

    def _path(self, chapter: Path) -> Path:
        return self._project.executed / f"{self._project.name(chapter)}.ipynb"

    def _name(self, chapter: Path) -> str:
        return self._path(chapter).relative_to(self._project.root).as_posix()

    def _source(self, chapter: Path) -> str:
        return digest(self._environment, chapter.read_bytes())
