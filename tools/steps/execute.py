"""Step 2: run every chapter whose outputs are not in the cache, several at a time."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.cache.main import JupyterCacheBase
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from ..project import Project
from . import session
from .collect import failed, statements
from .environment import cache_folder, forget_old_caches
from .warm import Warmth

TIMEOUT = 120
"""Seconds that one cell may take."""


@dataclass(frozen=True)
class Trouble:
    """A cell that did not do what its chapter means it to: it raised, hung, or killed its kernel."""

    cell: int
    line: str
    what: str


@dataclass(frozen=True)
class Run:
    """A chapter with its outputs: how long they took, or whether they were in the cache already."""

    chapter: Path
    notebook: NotebookNode
    seconds: float
    cached: bool
    troubles: tuple[Trouble, ...] = ()


def execute(
    project: Project,
    chapters: Sequence[Path],
    report: Callable[[Run], None] = lambda run: None,
    timeout: int = TIMEOUT,
    jobs: int | None = None,
) -> list[Run]:
    """Bring every chapter's outputs up to date with its code and the environment.

    A cell that raises does not keep the later cells from running, so that all failing claims of a chapter are known
    at the end; a chapter with trouble, or with a claim that does not hold, never enters the cache.

    Args:
        project: the checkout.
        chapters: the sources to run.
        report: called with each finished run, in the order in which they finish.
        timeout: seconds that one cell may take.
        jobs: chapters at a time; by default one more than there are processors, for kernels also wait.

    Returns:
        One run per chapter, in the order of `chapters`.
    """
    # A hanging cell leaves a task of nbclient's unfinished; that the cell hangs is reported already.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    cache = get_cache(cache_folder(project))
    cache.path.touch()
    session.begin(project)
    forget_old_caches(project)
    done: dict[Path, Run] = {}
    todo: list[tuple[Path, NotebookNode]] = []
    for chapter in chapters:
        notebook = read(chapter)
        cached = _from_cache(cache, notebook)
        if cached is None:
            todo.append((chapter, notebook))
        else:
            done[chapter] = Run(chapter, cached, 0.0, cached=True)
            report(done[chapter])
    # The longest first, so that no long chapter is left running alone at the end.
    todo.sort(key=lambda pair: -sum(len(cell.source) for cell in pair[1].cells if cell.cell_type == "code"))
    if todo:
        pool = ThreadPoolExecutor(jobs or (os.cpu_count() or 1) + 1)
        with Warmth():
            try:
                futures = [pool.submit(_run, chapter, notebook, timeout) for chapter, notebook in todo]
                for future in as_completed(futures):
                    run = future.result()
                    if not run.troubles and not failed(statements(run.notebook, run.chapter.stem)):
                        _into_cache(cache, run)
                    done[run.chapter] = run
                    report(run)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    return [done[chapter] for chapter in chapters]


def cached(project: Project) -> dict[Path, NotebookNode]:
    """The chapters whose outputs are in the cache, with those outputs."""
    cache = get_cache(cache_folder(project))
    found = {chapter: _from_cache(cache, read(chapter)) for chapter in project.chapters}
    return {chapter: notebook for chapter, notebook in found.items() if notebook is not None}


def read(chapter: Path) -> NotebookNode:
    """A chapter as the site's renderer reads it, so that both find the same entry in the cache."""
    notebook = read_myst_markdown_notebook(chapter.read_text(encoding="utf-8"), path=chapter)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # by itself it gets a random one, and no two builds would be alike
    return notebook


def _from_cache(cache: JupyterCacheBase, notebook: NotebookNode) -> NotebookNode | None:
    try:
        return cache.merge_match_into_notebook(notebook)[1]
    except (KeyError, ValueError):  # not there, or only half there after an interruption
        return None


def _into_cache(cache: JupyterCacheBase, run: Run) -> None:
    _, key = cache.create_hashed_notebook(run.notebook)
    shutil.rmtree(cache.path / "executed" / key, ignore_errors=True)  # half an entry would be in the way
    bundle = CacheBundleIn(run.notebook, str(run.chapter), data={"execution_seconds": run.seconds})
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def _run(chapter: Path, notebook: NotebookNode, timeout: int) -> Run:
    started = time.monotonic()
    at = [0]

    def entered(cell: NotebookNode, cell_index: int) -> None:
        at[0] = cell_index

    fatal = None
    try:
        result = single_nb_execution(
            notebook,
            cwd=str(chapter.parent),
            timeout=timeout,
            allow_errors=True,
            on_cell_start=entered,
            # Not asked but ended: a kernel whose cell hangs would first raise KeyboardInterrupt there, and complain.
            shutdown_kernel="immediate",
        )
        if isinstance(result.err, CellTimeoutError):
            fatal = f"hangs: still running after {timeout} s"
    except DeadKernelError:
        fatal = "kills its kernel"
    troubles = [
        _trouble(notebook, index, f"raises {output.ename}: {output.evalue}")
        for index, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])
    ]
    if fatal is not None:
        troubles.append(_trouble(notebook, at[0], fatal))
    return Run(chapter, notebook, time.monotonic() - started, cached=False, troubles=tuple(troubles))


def _trouble(notebook: NotebookNode, index: int, what: str) -> Trouble:
    """Name a cell as a reader counts: the n-th code cell, and its first line."""
    count = sum(cell.cell_type == "code" for cell in notebook.cells[: index + 1])
    return Trouble(count, notebook.cells[index].source.strip().split("\n")[0], what)
