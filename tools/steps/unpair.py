"""The opposite of `pair`: writes the chapter of a notebook that a person edited.

`pair` makes four changes to a chapter. This step undoes them, and leaves out what Jupyter and Colab add by themselves.
The header of the chapter is kept: a notebook has no place for the words by which search engines find the page.
If the notebook is the one in `notebooks/`, it is then written again, without outputs.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..project import Problem, Project, page_text, write
from .git import holds
from .pair import is_badge, renew
from .setup_cell import is_setup, setup

if TYPE_CHECKING:
    from nbformat import NotebookNode

_COPY = re.compile(r"^Copy of |( ?\(\d+\)|-Copy\d+)+$")
"""What Colab, browsers and Jupyter add to the name of a copied file."""


def unpair(project: Project, path: Path, name: str = "") -> str:
    """Write the chapter of an edited notebook.

    Args:
        project: the checkout.
        path: the notebook, as Jupyter or Colab saved it.
        name: the name of the chapter. The default is the name of the file, without what a copy adds, such as ` (1)`.

    Returns:
        A line that says what changed.

    Raises:
        Problem: if the file is not a notebook, no chapter has this name, the chapter has changes that git does not
            hold, or the notebook can't become a chapter. No file is written then.
    """
    import nbformat

    try:
        edited = nbformat.read(path, as_version=4)
    except OSError as error:
        raise Problem(f"{path} can't be read: {error.strerror}") from error
    except Exception as error:  # nbformat raises a different exception for each kind of damage
        raise Problem(f"{path} is not a notebook: {str(error).splitlines()[0]}") from error
    (chapter,) = project.chapters_called(name or _COPY.sub("", path.stem))
    before = page_text(chapter)
    after = chapter_text(project, before, edited)
    shown = chapter.relative_to(project.root).as_posix()
    if after != before:
        if not holds(project, chapter):
            raise Problem(
                f"{shown} has changes that git does not hold, and this command would overwrite them. Run git add "
                f"{shown}, then the same command again. If the folder has no repository yet, run git init first"
            )
        write(chapter, after)
    if path.resolve() == project.notebook(chapter):
        renew(project, chapter)
    return f"{shown}: {_changes(before, after)}"


def chapter_text(project: Project, before: str, book: NotebookNode) -> str:
    """The text of a chapter whose notebook is `book`, with the header of the text `before`.

    Raises:
        Problem: if the set-up cell was edited, if a file is attached to a cell, or if no code cell is left.
    """
    import jupytext
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    cells = []
    for cell in book.cells:
        if is_badge(cell):
            continue
        if is_setup(cell):
            if cell.source.strip() != setup(project):
                raise Problem(
                    "the set-up cell was edited, but all notebooks share this cell: change it in "
                    "tools/steps/setup_cell.py instead"
                )
            continue
        if names := cell.get("attachments"):
            raise Problem(
                f"a cell of the notebook contains the file {', '.join(names)}, but a chapter can't: save it beside the "
                "chapter, and link to it"
            )
        if cell.cell_type == "code":
            tags = {"tags": list(cell.metadata["tags"])} if cell.metadata.get("tags") else {}
            cells.append(new_code_cell(cell.source.strip("\n"), metadata=tags))
        elif cell.source.strip():
            cells.append(new_markdown_cell(_relative_links(project, cell.source)))
    if not any(cell.cell_type == "code" for cell in cells):
        raise Problem("the notebook has no code cell left, but a chapter needs at least one")
    header, _ = _parts(before)
    found = jupytext.reads(before, fmt="md:myst")
    text = jupytext.writes(new_notebook(cells=cells, metadata=found.metadata), fmt="md:myst")
    return header + _parts(str(text))[1]


def _relative_links(project: Project, text: str) -> str:
    """Turn absolute links to pages of the site into relative links, as chapters have them."""
    for page in project.pages:
        text = re.sub(rf"\]\({re.escape(project.address(project.name(page)))}(?=[)#])", f"]({page.name}", text)
    return text


def _parts(text: str) -> tuple[str, str]:
    """The header of a chapter, with the delimiter after it, and the rest."""
    header, end, body = text.partition("\n---\n")
    return header + end, body


def _changes(before: str, after: str) -> str:
    """How many cells changed, in words."""
    import jupytext

    old, new = (
        [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in jupytext.reads(text, "md:myst").cells]
        for text in (before, after)
    )
    count = {"changed": 0, "added": 0, "removed": 0}
    matcher = difflib.SequenceMatcher(None, [*map(repr, old)], [*map(repr, new)], autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind != "equal":
            both = min(last - first, end - start)
            count["changed"] += both
            count["added"] += end - start - both
            count["removed"] += last - first - both
    if not any(count.values()):
        return "no cell changed"
    cells = ", ".join(f"{number} {word}" for word, number in count.items() if number)
    return f"cells: {cells}. Now run make record, then make book"
