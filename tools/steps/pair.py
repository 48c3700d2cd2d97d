"""Step 1: chapters/*.md to notebooks/*.ipynb, what Colab opens.

A notebook is its chapter with three changes that only make sense away from the site: a badge that opens it in Colab,
a first cell that brings library and helpers where they are missing, and links to other pages made absolute.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import jupytext
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell

from ..project import Problem, Project, write

# A clone on the path, and no pip: torch can't be replaced, and no package named helpers stays where others find it.
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
_PAGE_LINK = re.compile(r"\]\((?!https?:|#)([\w-]+)\.md(#[\w-]*)?\)")


def notebook(project: Project, chapter: Path) -> str:
    """The text of a chapter's `.ipynb`: no outputs, ids that depend on the cells alone.

    Raises:
        Problem: when the chapter has no code cell.
    """
    book = jupytext.read(chapter)
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = _absolute_links(project, chapter, cell.source)
    first_code = next((i for i, cell in enumerate(book.cells) if cell.cell_type == "code"), None)
    if first_code is None:
        raise Problem(f"{chapter.name} names a kernel but has no code cell")
    setup = SETUP.format(repository=project.repository, branch=project.branch)
    book.cells.insert(first_code, new_code_cell(setup, metadata={"tags": ["remove-cell"]}))
    badge = (
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({project.colab_url(chapter)})"
    )
    book.cells.insert(0, new_markdown_cell(badge))
    book.metadata = nbformat.from_dict(
        {"kernelspec": dict(book.metadata["kernelspec"]), "language_info": {"name": "python"}}
    )
    book.nbformat, book.nbformat_minor = 4, 5
    _name_cells(book)
    nbformat.validate(book)
    return str(nbformat.writes(book)) + "\n"


def out_of_step(project: Project) -> list[Path]:
    """The notebooks that are missing, that differ from what their chapter gives, or that have no chapter."""
    wanted = {project.notebook(chapter): notebook(project, chapter) for chapter in project.chapters}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    orphans = [path for path in sorted(project.notebooks.glob("*.ipynb")) if path not in wanted]
    return stale + orphans


def pair(project: Project) -> list[Path]:
    """Bring `notebooks/` in step with `chapters/`; return what changed. Unchanged files are not touched."""
    changed = out_of_step(project)
    wanted = {project.notebook(chapter): chapter for chapter in project.chapters}
    for path in changed:
        if path in wanted:
            write(path, notebook(project, wanted[path]))
        else:
            path.unlink()
    return changed


def _absolute_links(project: Project, chapter: Path, text: str) -> str:
    folder = chapter.parent.relative_to(project.root).as_posix()
    return _PAGE_LINK.sub(lambda link: f"]({project.site_url}/{folder}/{link[1]}.html{link[2] or ''})", text)


def _name_cells(book: nbformat.NotebookNode) -> None:
    """Ids from what a cell says, so that an edit changes one id; the second of two equal cells counts on."""
    seen: dict[str, int] = {}
    for cell in book.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
