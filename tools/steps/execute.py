"""Step 2: run every chapter whose outputs are missing or outdated, and keep all outputs in `_build/executed`."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from nbformat import NotebookNode, from_dict

from ..project import Project, digest, write
from .collect import ChapterRun, Notebook, is_good
from .read import code_of, read
from .session import STARTUP

_KEPT = 3
"""For how many states of a page, or of what it depends on, the outputs are kept: those that were made last."""
# ipykernel and IPython shape the outputs; the others compute them.
_PACKAGES = ("torch", "numpy", "matplotlib", "ipykernel", "ipython")
_HIDING = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")


def execute(
    project: Project, chapters: Sequence[Path], report: Callable[[ChapterRun], None], timeout: int
) -> list[ChapterRun]:
    """Bring every chapter's outputs up to date with its code and the environment.

    If a cell raises, the later cells still run, so that the build can report all failing claims of a chapter. The
    outputs of a chapter with an unexpected error, or with a claim that does not hold, are not kept.

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
    executed = _executed(project)
    found = {chapter: executed.find(chapter) for chapter in chapters}
    done = {chapter: ChapterRun(chapter, book, 0.0, cached=True) for chapter, book in found.items() if book}
    for run in done.values():
        report(run)
    if rest := [chapter for chapter in chapters if chapter not in done]:
        from .run import run_all  # here, because this import takes longer than most builds

        for run in run_all(project, rest, timeout):
            if is_good(run):
                executed.keep(run)
            done[run.chapter] = run
            report(run)
    return [done[chapter] for chapter in chapters]


def cached(project: Project) -> dict[Path, NotebookNode]:
    """The chapters whose outputs are kept, with these outputs."""
    executed = _executed(project)
    return {chapter: book for chapter in project.chapters if (book := executed.find(chapter))}


@functools.cache
def _executed(project: Project) -> Executed:
    """The outputs of a checkout. The digest of the environment is computed once."""
    return Executed(project)


class Executed:
    """The outputs in `_build/executed`, which all steps use.

    The name of a file is a digest of the code of its chapter and of the environment. Therefore no file is outdated.
    """

    def __init__(self, project: Project) -> None:
        self._folder = project.executed
        self._environment = fingerprint(project)

    def find(self, chapter: Path) -> NotebookNode | None:
        """The chapter with the outputs of its present code; None if they are not kept."""
        notebook = read(chapter)
        path = self._path(chapter, notebook)
        if not path.is_file():
            return None
        kept = json.loads(path.read_bytes())
        notebook.metadata["language_info"] = kept["language_info"]
        for cell, made in zip(code_of(notebook), kept["cells"], strict=True):
            cell.update(from_dict(made))
        return notebook

    def keep(self, run: ChapterRun) -> None:
        """Keep the outputs of a chapter."""
        cells = [{key: cell[key] for key in ("execution_count", "outputs")} for cell in code_of(run.notebook)]
        path = self._path(run.chapter, run.notebook)
        made = {"language_info": run.notebook["metadata"]["language_info"], "cells": cells}
        write(path, json.dumps(made, sort_keys=True) + "\n")
        for old in sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)[:-_KEPT]:
            old.unlink(missing_ok=True)

    def _path(self, chapter: Path, notebook: Notebook) -> Path:
        code = [(cell["source"], cell["metadata"]) for cell in code_of(notebook)]
        name = digest(self._environment, json.dumps([notebook["metadata"]["kernelspec"], code], sort_keys=True))
        return self._folder / chapter.stem / f"{name[:16]}.json"


def fingerprint(project: Project) -> str:
    """A digest of everything that pages show, except their own code.

    It covers the modules that pages import from `src/`, and the results of other versions. It also covers the settings
    and the device with which a kernel starts, the processor, and the versions that can change a result.
    """
    found = hashlib.sha256(platform.python_version().encode())
    for package in _PACKAGES:
        found.update(f"{package}=={version(package)}\n".encode())
    found.update(f"{STARTUP}{os.environ.get('ZERO_OR_NAN_DEVICE', '')}{processor()}".encode())
    for path in [*sorted(project.source.rglob("*")), project.claims]:
        if path.is_file() and not any(part == "__pycache__" or part.endswith(".egg-info") for part in path.parts):
            found.update(path.relative_to(project.root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def processor() -> str:
    """What decides in which order PyTorch adds up: the processor, and the variables that hide a part of it."""
    cpus = Path("/proc/cpuinfo")
    flags = [line for line in cpus.read_text().split("\n") if line.startswith("flags")][:1] if cpus.is_file() else []
    return "".join([*flags, platform.processor(), *(os.environ.get(name, "") for name in _HIDING)])
