"""Runs chapters in kernels, several at a time."""

from __future__ import annotations

import atexit
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from nbformat import NotebookNode

from ..project import Project
from . import session
from .collect import ChapterRun, Trouble
from .read import code_of, read
from .warm import Warmth


def run_all(project: Project, chapters: Sequence[Path], timeout: int) -> Iterator[ChapterRun]:
    """Yield each chapter's run as soon as it is done."""
    # If a cell hangs, nbclient leaves a task unfinished, and asyncio logs it. The hanging cell is reported already.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    session.begin(project)
    todo = {chapter: read(chapter) for chapter in chapters}
    # The longest chapter starts first, so that no long chapter runs alone at the end.
    first = sorted(todo, key=lambda each: -sum(len(cell.source) for cell in code_of(todo[each])))
    pool = ThreadPoolExecutor((os.cpu_count() or 1) + 1)  # one more than the processors, because kernels also wait
    # One folder for all threads, because after Ctrl-C nobody waits for the threads. They may still write into it then.
    folder = tempfile.TemporaryDirectory(prefix="kernels-", ignore_cleanup_errors=True)
    with folder, Warmth(several=sum(map(needs_torch, todo.values())) > 1):
        import nbclient  # noqa: F401  # here, before the threads need it, because the warm server starts meanwhile

        try:
            futures = [pool.submit(run_one, chapter, todo[chapter], timeout, folder.name) for chapter in first]
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def needs_torch(notebook: NotebookNode) -> bool:
    """Whether a chapter imports PyTorch, by itself or with the helpers or the library."""
    code = "\n".join(cell.source for cell in code_of(notebook))
    return bool(re.search(r"^\s*(import|from) (torch|helpers|zero_or_nan)\b", code, re.MULTILINE))


def run_one(chapter: Path, notebook: NotebookNode, timeout: int, folder: str) -> ChapterRun:
    """Run the notebook of a chapter in a kernel with its files in `folder`, and write the outputs into the notebook."""
    from myst_nb.core.utils import coalesce_streams
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    started = time.monotonic()
    at: list[int] = []

    def entered(cell: NotebookNode, cell_index: int) -> None:
        at[:] = [cell_index]

    def execute() -> str | None:
        client = NotebookClient(
            notebook,
            resources={"metadata": {"path": str(chapter.parent)}},
            timeout=timeout,
            allow_errors=True,
            record_timing=False,
            on_cell_start=entered,
            # The kernel is killed, not asked to end. If a cell hangs, a kernel that is asked to end first raises
            # KeyboardInterrupt in the cell, and prints a traceback.
            shutdown_kernel="immediate",
            config=Config(KernelManager=_connection(tempfile.mkdtemp(dir=folder))),
        )
        try:
            client.execute()
        except DeadKernelError:
            return "ends its kernel: the Python process died"
        except CellTimeoutError:
            return f"does not end: still running after {timeout} s"
        except RuntimeError as error:
            if at:
                raise
            atexit.unregister(client._cleanup_kernel)  # nbclient leaves it there, and it would fail at exit
            return f"has no kernel: {error}"
        return None

    fatal = execute()
    if fatal and not at:  # the kernel died before its first cell: nothing has run, so it starts a second time
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
    return ChapterRun(chapter, notebook, time.monotonic() - started, cached=False, troubles=tuple(troubles))


def _connection(folder: str) -> dict[str, str]:
    """The settings by which the build reaches a kernel: files in the folder, if the system has sockets that are files.

    A port would be chosen before the kernel opens it. Until then any other process could take the port, also a process
    of the chapter, and the kernel would die before its first cell.
    """
    return {"transport": "ipc", "connection_file": f"{folder}/connection.json"} if os.name == "posix" else {}


def whole(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell, with consecutive pieces of printed text joined. A kernel sends any number of pieces.

    MyST-NB shows each piece on its own line, and so it would break a line that came in two pieces.
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
    """The failure of a cell, named by its position among the code cells, and by its first line."""
    count = sum(cell.cell_type == "code" for cell in notebook.cells[: index + 1])
    return Trouble(count, notebook.cells[index].source.strip().split("\n")[0], what)
