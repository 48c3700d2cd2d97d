"""Reads a chapter as a notebook. The notebook for Colab, which has one cell more, and the kernel both use it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jupytext
from jupytext.myst import MystMetadataParsingError
from nbformat import NotebookNode

from ..project import Problem, Project, page_text

# A clone on sys.path instead of pip: so torch can't be replaced, and no package named helpers stays installed.
SETUP = """\
# Brings the library and the helpers of this book where they are missing. Nothing is installed, torch stays as it is.
import pathlib, subprocess, sys

try:
    from helpers import Case
    from zero_or_nan import ignoring
except ImportError:
    book = pathlib.Path("zero-or-nan").resolve()
    if not book.exists():
        clone = "git clone --quiet --depth 1 --branch {branch} {repository}"
        subprocess.run([*clone.split(), str(book)], check=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "helpers"]:
        del sys.modules[name]  # another of that name
    sys.path.insert(0, str(book / "src"))\
"""


def setup(project: Project) -> str:
    """The code of the set-up cell."""
    return SETUP.format(repository=project.repository, branch=project.branch)


def read(chapter: Path) -> NotebookNode:
    """A chapter as Jupytext reads it. The caller may change the result.

    The site's renderer reads the same code cells.

    Raises:
        Problem: if the options of a cell can't be read, if a cell loads its code from another file, if a cell is the
            set-up cell of a notebook, or if there is no code cell.
    """
    return copy.deepcopy(_read(chapter, page_text(chapter)))


def code_of(notebook: Mapping[str, Any]) -> list[NotebookNode]:
    """The code cells of a notebook."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@functools.cache
def _read(chapter: Path, text: str) -> NotebookNode:
    try:
        notebook = jupytext.reads(text, fmt="md:myst")
    except MystMetadataParsingError as error:
        raise Problem(f"{chapter.name}: {' '.join(str(error).split())}") from error
    code = code_of(notebook)
    if not code:
        raise Problem(
            f"{chapter.name} names a kernel but has no code cell; add a cell, or remove kernelspec from its front "
            "matter"
        )
    if any(cell.source.startswith(SETUP.partition("\n")[0]) for cell in code):
        raise Problem(
            f"{chapter.name} contains the set-up cell of its notebook: Jupytext copied it. Remove it and the badge"
        )
    if any("load" in cell.metadata for cell in code):
        raise Problem(
            f"{chapter.name}: a cell loads its code from another file, and would be empty in Colab; write the code "
            "into it"
        )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # Jupytext gives random ids, with which no two builds would be equal
    return notebook
