"""Step 1: writes notebooks/*.ipynb, which Colab opens, from chapters/*.md.

A notebook is its chapter with four changes that make sense only outside the site:

- A badge opens the notebook in Colab.
- A first cell fetches the library and the helpers if they are missing.
- Links to other pages are absolute.
- Code that the site folds is folded by the settings of Jupyter and Colab.

The notebook that a page offers for download is the same, with outputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..project import Problem, Project, digest, write
from .git import holds
from .read import read, setup

if TYPE_CHECKING:
    from nbformat import NotebookNode

_BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
_PAGE_LINK = re.compile(r"\]\((?!https?:|#)([\w-]+)\.md(#[\w-]*)?\)")


def notebook(project: Project, chapter: Path) -> str:
    """The text of a chapter's `.ipynb`: without outputs, and with ids that depend only on the cells.

    Raises:
        Problem: if the chapter can't be read as a notebook.
    """
    return anywhere(project, chapter, read(chapter))


def anywhere(project: Project, chapter: Path, book: NotebookNode) -> str:
    """The text of a notebook with the four changes, which are made in `book` too.

    The notebook that a page offers for download has the outputs of the build; its set-up cell has none.
    """
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


def out_of_step(project: Project) -> list[Path]:
    """The notebooks that are missing, that differ from what their chapter gives, or that have no chapter."""
    return list(_changes(project, _texts(project)))


def pair(project: Project) -> list[Path]:
    """Bring `notebooks/` up to date with `chapters/`, and return the files that were written or deleted.

    Other files are not touched.

    Raises:
        Problem: if a notebook would be overwritten or deleted whose content git does not hold, unless the last build
            wrote this content. No file is changed then.
    """
    texts, written = _texts(project), _written(project)
    changes = _changes(project, texts)
    _stop_before_loss(project, written, changes)
    try:
        for path, new in changes.items():
            if new is None:
                path.unlink()
            else:
                write(path, new)
    finally:  # after an interruption too: the next build must recognize what this build wrote
        now = {_name(project, path): digest(text) for path, text in texts.items() if _is(path, text)}
        write(project.build / "notebooks.json", json.dumps({**written, **now}, indent=1) + "\n")
    return list(changes)


def _texts(project: Project) -> dict[Path, str]:
    """The text of every notebook, as its chapter gives it."""
    return {project.notebook(chapter): notebook(project, chapter) for chapter in project.chapters}


def _changes(project: Project, texts: dict[Path, str]) -> dict[Path, str | None]:
    """The new text of each outdated notebook; None for a notebook that has no chapter."""
    orphans = sorted(path for path in project.notebooks.glob("*.ipynb") if path.is_file() and path not in texts)
    return {path: text for path, text in texts.items() if not _is(path, text)} | dict.fromkeys(orphans)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _written(project: Project) -> dict[str, str]:
    """The digest of each notebook as the last build wrote it, by its name."""
    with suppress(OSError, ValueError, TypeError):  # the file is missing, or has another format
        return dict(json.loads((project.build / "notebooks.json").read_bytes()))
    return {}


def _stop_before_loss(project: Project, written: dict[str, str], changes: dict[Path, str | None]) -> None:
    """Stop if a notebook has changes that neither the last build wrote nor git holds."""
    at_risk = [
        path
        for path in changes
        if os.path.lexists(path)
        and not (path.is_file() and written.get(_name(project, path)) == digest(path.read_bytes()))
        and not holds(project, path)
    ]
    edited = [_name(project, path) for path in at_risk if changes[path]]
    orphans = [_name(project, path) for path in at_risk if not changes[path]]
    told = []
    if edited:
        told.append(
            f"It would overwrite {', '.join(edited)}. If you changed a notebook, make the change in its chapter. Then "
            "delete the notebook, and the build writes it again."
        )
    if orphans:
        told.append(
            f"It would delete {', '.join(orphans)}, because no chapter has this name. To keep the notebook, move it "
            "out of notebooks/. Otherwise delete it."
        )
    if told:
        raise Problem(f"the command stopped, because work that git does not hold could be lost. {' '.join(told)}")


def _name(project: Project, path: Path) -> str:
    return path.relative_to(project.root).as_posix()


def _absolute_links(project: Project, chapter: Path, text: str) -> str:
    folder = chapter.parent.relative_to(project.root).as_posix()
    return _PAGE_LINK.sub(lambda link: f"]({project.address(f'{folder}/{link[1]}')}{link[2] or ''})", text)


def _name_cells(book: NotebookNode) -> None:
    """Make each cell's id from its text, so that an edit changes one id. Equal cells get a number in addition."""
    seen: dict[str, int] = {}
    for cell in book.cells:
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[name] = seen.get(name, 0) + 1
        cell.id = name if seen[name] == 1 else f"{name}-{seen[name]}"
