"""Chapters in kernels, several at a time, and the cache of what kernels gave."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.cache.main import JupyterCacheBase
from nbformat import NotebookNode

from ..project import Project
from . import session
from .collect import is_good
from .environment import cache_folder, forget_old_caches
from .ran import Run, Trouble
from .read import read
from .warm import Warmth


def run_all(project: Project, chapters: Sequence[Path], timeout: int, jobs: int | None) -> Iterator[Run]:
    """Take from the cache what is there, run the others, yield each when it is done."""
    # A hanging cell leaves a task of nbclient's unfinished; that the cell hangs is reported already.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    cache = _cache(project)
    session.begin(project)
    todo = {chapter: read(chapter) for chapter in chapters}  # all of them, before any is run
    for chapter, notebook in _found(cache, todo):
        del todo[chapter]
        yield Run(chapter, notebook, 0.0, cached=True)
    if not todo:
        return
    # The longest first, so that no long chapter is left running alone at the end.
    first = sorted(todo, key=lambda each: -sum(len(c.source) for c in todo[each].cells if c.cell_type == "code"))
    pool = ThreadPoolExecutor(jobs or (os.cpu_count() or 1) + 1)
    with Warmth(several=sum(map(needs_torch, todo.values())) > 1):
        import nbclient  # noqa: F401  # here, while the warm server starts; before the threads that need it

        try:
            futures = [pool.submit(run_one, chapter, todo[chapter], timeout) for chapter in first]
            for future in as_completed(futures):
                run = future.result()
                if is_good(run):
                    _into_cache(cache, run)
                yield run
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def needs_torch(notebook: NotebookNode) -> bool:
    """Whether a chapter imports PyTorch, by itself or with the helpers or the library."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return bool(re.search(r"^\s*(import|from) (torch|helpers|zero_or_nan)\b", code, re.MULTILINE))


def from_cache(project: Project, chapters: Sequence[Path]) -> Iterator[tuple[Path, NotebookNode]]:
    """Those chapters whose outputs are in the cache, with those outputs."""
    yield from _found(_cache(project), {chapter: read(chapter) for chapter in chapters})


def _cache(project: Project) -> JupyterCacheBase:
    cache = get_cache(cache_folder(project))
    cache.path.touch()
    forget_old_caches(project)
    return cache


def _found(cache: JupyterCacheBase, notebooks: dict[Path, NotebookNode]) -> list[tuple[Path, NotebookNode]]:
    found = []
    for chapter, notebook in notebooks.items():
        with suppress(KeyError, ValueError):  # not there, or only half there after an interruption
            found.append((chapter, cache.merge_match_into_notebook(notebook)[1]))
    return found


def _into_cache(cache: JupyterCacheBase, run: Run) -> None:
    _, key = cache.create_hashed_notebook(run.notebook)
    shutil.rmtree(cache.path / "executed" / key, ignore_errors=True)  # half an entry would be in the way
    bundle = CacheBundleIn(run.notebook, str(run.chapter), data={"execution_seconds": run.seconds})
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def run_one(chapter: Path, notebook: NotebookNode, timeout: int) -> Run:
    """Run the notebook of a chapter in a kernel. The notebook gets the outputs."""
    from jupyter_cache.executors.utils import single_nb_execution
    from myst_nb.core.utils import coalesce_streams
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    started = time.monotonic()
    at: list[int] = []

    def entered(cell: NotebookNode, cell_index: int) -> None:
        at[:] = [cell_index]

    def execute() -> str | None:
        with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
            try:
                result = single_nb_execution(
                    notebook,
                    cwd=str(chapter.parent),
                    timeout=timeout,
                    allow_errors=True,
                    on_cell_start=entered,
                    # Not asked but ended: a kernel whose cell hangs would first raise KeyboardInterrupt there, and
                    # complain.
                    shutdown_kernel="immediate",
                    config=Config(KernelManager=_connection(folder)),
                )
            except DeadKernelError:
                return "ends its kernel: the Python process died"
            except RuntimeError as error:
                if at:
                    raise
                return f"has no kernel: {error}"
        return f"does not end: still running after {timeout} s" if isinstance(result.err, CellTimeoutError) else None

    fatal = execute()
    if fatal and not at:  # the kernel died before its first cell: nothing has run, so it may start once more
        fatal = execute()
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = coalesce_streams(whole(cell.outputs))
    troubles = [
        _trouble(notebook, index, f"raises {output.ename}: {output.evalue}")
        for index, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])
    ]
    if fatal is not None:
        troubles.append(_trouble(notebook, at[0] if at else 0, fatal))
    return Run(chapter, notebook, time.monotonic() - started, cached=False, troubles=tuple(troubles))


def _connection(folder: str) -> dict[str, str]:
    """A kernel is reached through files in a folder of its own, where the system has sockets that are files.

    A port is chosen before the kernel opens it. Until then any other process may take it, a chapter's own too, and the
    kernel would die before its first cell.
    """
    return {"transport": "ipc", "connection_file": f"{folder}/connection.json"} if os.name == "posix" else {}


def whole(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell with what was printed in one piece: in how many a kernel sends it is left to chance.

    MyST-NB's own way takes each piece for a line of its own, and would break a line that came in two.
    """
    found: list[NotebookNode] = []
    for output in outputs:
        last = found[-1] if found else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            found.append(output)
    return found


def _trouble(notebook: NotebookNode, index: int, what: str) -> Trouble:
    """Name a cell as a reader counts: the n-th code cell, and its first line."""
    count = sum(cell.cell_type == "code" for cell in notebook.cells[: index + 1])
    return Trouble(count, notebook.cells[index].source.strip().split("\n")[0], what)
