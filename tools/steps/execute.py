"""Step 2: run every chapter whose outputs are missing or outdated, and write all outputs to `_build/executed`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..project import Project, write
from .collect import ChapterRun, Notebook, is_good
from .environment import fingerprint
from .made import READER, Made, digest


def execute(
    project: Project, chapters: Sequence[Path], report: Callable[[ChapterRun], None], timeout: int
) -> list[ChapterRun]:
    """Bring every chapter's outputs up to date with its code and the environment.

    If a cell raises, the later cells still run, so that the build can report all failing claims of a chapter. A chapter
    with an unexpected error, or with a claim that does not hold, is neither cached nor written to `_build/executed`.

    Args:
        project: the checkout.
        chapters: the sources to run.
        report: called with each finished run, in the order in which the runs finish.
        timeout: the most seconds that one cell may take.

    Returns:
        One run per chapter, in the order of `chapters`.

    Raises:
        Problem: if a chapter can't be read. No chapter is run then.
    """
    executed = Executed(project)
    done = {chapter: ChapterRun(chapter, notebook, 0.0, cached=True) for chapter, notebook in executed.known(chapters)}
    for run in done.values():
        report(run)
    if rest := [chapter for chapter in chapters if chapter not in done]:
        from .run import run_all  # here, because this import takes longer than most builds

        for run in run_all(project, rest, timeout):
            if is_good(run):
                executed.keep(run.chapter, run.notebook)
            done[run.chapter] = run
            report(run)
    return [done[chapter] for chapter in chapters]


def cached(project: Project) -> dict[Path, Notebook]:
    """The chapters whose outputs are in `_build/executed` or in the cache, with these outputs.

    Writes all to the former.
    """
    executed = Executed(project)
    found = dict(executed.known(project.chapters))
    if rest := [chapter for chapter in project.chapters if chapter not in found]:
        from .run import from_cache

        for chapter, notebook in from_cache(project, rest):
            executed.keep(chapter, notebook)
            found[chapter] = notebook
    return {chapter: found[chapter] for chapter in project.chapters if chapter in found}


class Executed:
    """The executed notebooks in `_build/executed`: one file for each chapter. All steps that read outputs use them."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._made = Made(project)
        self._environment = digest(fingerprint(project), READER)

    def known(self, chapters: Sequence[Path]) -> Iterator[tuple[Path, Notebook]]:
        """Those of the chapters whose file has outputs of the present text and environment, with these outputs."""
        for chapter in chapters:
            path = self._path(chapter)
            content = path.read_bytes() if path.is_file() else b""
            if self._made.is_current(self._name(chapter), self._source(chapter), digest(content)):
                yield chapter, json.loads(content)

    def keep(self, chapter: Path, notebook: Notebook) -> None:
        """Write the outputs of a chapter to `_build/executed`."""
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
