"""A chapter as a notebook: read once in a build, for the notebook that Colab opens and for the kernel alike."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

from myst_nb.core.read import MystMetadataParsingError, read_myst_markdown_notebook
from nbformat import NotebookNode

from ..project import Problem, page_text


def read(chapter: Path) -> NotebookNode:
    """A chapter as the site's renderer reads it, so that both find the same entry in the cache; yours to change.

    Raises:
        Problem: when the options of a cell can't be read, when a cell loads its code from another file, or when there
            is no code cell.
    """
    return copy.deepcopy(_read(chapter, page_text(chapter)))


@functools.cache
def _read(chapter: Path, text: str) -> NotebookNode:
    try:
        notebook = read_myst_markdown_notebook(text, path=chapter)
    except MystMetadataParsingError as error:
        raise Problem(f"{chapter.name}: {' '.join(str(error).split())}") from error
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not code:
        raise Problem(f"{chapter.name} names a kernel but has no code cell")
    if any("load" in cell.metadata for cell in code):
        raise Problem(f"{chapter.name}: a cell loads its code from another file; in Colab it would be empty")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # by itself it gets a random one, and no two builds would be alike
    return notebook
