"""The first code cell of a notebook. If the book is not installed, as on Colab, this cell fetches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..project import Project

if TYPE_CHECKING:
    from nbformat import NotebookNode

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


def is_setup(cell: NotebookNode) -> bool:
    """Whether a cell is the set-up cell, perhaps edited. Its first line identifies it."""
    return cell.cell_type == "code" and bool(cell.source.startswith(SETUP.partition("\n")[0]))
