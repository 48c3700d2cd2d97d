"""Step 1: chapters/*.md to notebooks/*.ipynb, what Colab opens.

A notebook is its chapter with four changes that only make sense away from the site: a badge that opens it in Colab, a
first cell that brings library and helpers where they are missing, links to other pages made absolute, and the code that
the site folds folded in Jupyter's and Colab's own way. What a page has for download is the same, with outputs.
`unpair` is the other direction.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..project import Project, write
from .made import READER, Made, digest
from .setup_cell import setup

if TYPE_CHECKING:
    from nbformat import NotebookNode

_BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
_PAGE_LINK = re.compile(r"\]\((?!https?:|#)([\w-]+)\.md(#[\w-]*)?\)")


def notebook(project: Project, chapter: Path) -> str:
    """The text of a chapter's `.ipynb`: no outputs, ids that depend on the cells alone.

    Raises:
        Problem: when the chapter can't be read as a notebook.
    """
    from .read import read  # here, for most builds write no notebook

    return anywhere(project, chapter, read(chapter))


def with_outputs(project: Project, chapter: Path, executed: str) -> str:
    """The text of the notebook that a page has for download: as `notebook`, but with the outputs of the build.

    Args:
        project: the checkout.
        chapter: the source of the page.
        executed: the text of the executed notebook.
    """
    import nbformat

    return anywhere(project, chapter, nbformat.reads(executed, as_version=4))


def anywhere(project: Project, chapter: Path, book: NotebookNode) -> str:
    """The text of a notebook with those four changes; where it has outputs, the set-up cell has none."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell

    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = _absolute_links(project, chapter, cell.source)
        elif {"hide-cell", "hide-input"} & set(cell.metadata.get("tags", [])):
            cell.metadata.update({"jupyter": {"source_hidden": True}, "cellView": "form"})
    first_code = next(i for i, cell in enumerate(book.cells) if cell.cell_type == "code")
    book.cells.insert(first_code, new_code_cell(setup(project), metadata={"tags": ["remove-cell"]}))
    book.cells.insert(0, new_markdown_cell(f"[![Open in Colab]({_BADGE})]({project.colab_url(chapter)})"))
    book.metadata = nbformat.from_dict(
        {"kernelspec": dict(book.metadata["kernelspec"]), "language_info": {"name": "python"}}
    )
    book.nbformat, book.nbformat_minor = 4, 5
    _name_cells(book)
    nbformat.validate(book)
    return str(nbformat.writes(book)) + "\n"


def is_badge(cell: NotebookNode) -> bool:
    """Whether a cell is a badge that opens Colab, and nothing else: ours, or the one that Colab itself adds."""
    return cell.cell_type == "markdown" and _BADGE in cell.source and len(cell.source.strip().splitlines()) == 1


def out_of_step(project: Project) -> list[Path]:
    """The notebooks that are missing, that differ from what their chapter gives, or that have no chapter."""
    return list(_changes(project))


def pair(project: Project) -> list[Path]:
    """Bring `notebooks/` in step with `chapters/`; return what changed. Unchanged files are not touched."""
    changes = _changes(project)
    for path, text in changes.items():
        if text is None:
            path.unlink()
        else:
            write(path, text)
    return list(changes)


def _changes(project: Project) -> dict[Path, str | None]:
    """What the notebooks that are out of step have to say; None for those that have no chapter."""
    made = Made(project)
    changes: dict[Path, str | None] = {}
    for chapter in project.chapters:
        path = project.notebook(chapter)
        name, source = path.relative_to(project.root).as_posix(), _source(project, chapter)
        there = path.read_bytes() if path.is_file() else b""
        if not made.is_current(name, source, digest(there)):
            text = notebook(project, chapter)
            made.remember(name, source, digest(text))
            if there != text.encode():
                changes[path] = text
    made.save()
    orphans = set(project.notebooks.glob("*.ipynb")) - {project.notebook(chapter) for chapter in project.chapters}
    return changes | dict.fromkeys(sorted(orphans))


def _source(project: Project, chapter: Path) -> str:
    """A digest of all that a chapter's notebook is made from."""
    places = (project.repository, project.branch, project.site_url, project.name(chapter), project.names[0])
    return digest(READER, Path(__file__).read_bytes(), *places, chapter.read_bytes())


def _absolute_links(project: Project, chapter: Path, text: str) -> str:
    folder = chapter.parent.relative_to(project.root).as_posix()
    return _PAGE_LINK.sub(lambda link: f"]({project.address(f'{folder}/{link[1]}')}{link[2] or ''})", text)


def _name_cells(book: NotebookNode) -> None:
    """Ids from what a cell says, so that an edit changes one id; the second of two equal cells counts on."""
    seen: dict[str, int] = {}
    for cell in book.cells:
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[name] = seen.get(name, 0) + 1
        cell.id = name if seen[name] == 1 else f"{name}-{seen[name]}"
