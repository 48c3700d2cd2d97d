"""What a page about a case must have. A page is about a case if it shows the card of its thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .collect import Notebook, statements

FIX = "At a glance"
"""The section that every case page has. Its first cell is the fix: readers see the code, and what it prints."""
TABLE = "Results compared"
"""The section with the verdict, which is the table that compares the methods."""
COMPARED = ("What happens", "Why", "With ignoring.backward", TABLE, "What to do", "Exercises")
"""The other sections of a case page that compares methods."""
FOLDED = {"hide-cell", "hide-input", "remove-cell", "remove-input"}
"""The tags of cells whose code readers don't see at first."""


def lacking(notebook: Notebook) -> list[str]:
    """One text for everything that the page lacks, although it is about a case."""
    sections: dict[str, list[Any]] = {}
    for heading, cell in code_cells(notebook):
        sections.setdefault(heading, []).append(cell)
    if not _states(sections, "case", *sections):
        return []
    compares = _states(sections, "verdict", *sections) or TABLE in sections
    wanted = [FIX, *(COMPARED if compares else ())]
    found = [f"the page has no section *{heading}*, or no code in it" for heading in wanted if heading not in sections]
    first = sections.get(FIX, [{}])[0]
    if first and (FOLDED.intersection(first["metadata"].get("tags", [])) or not first["outputs"]):
        found.append(f"the first cell of *{FIX}* is not the fix: readers must see its code, and what it prints")
    if TABLE in sections and not _states(sections, "verdict", TABLE):
        found.append(f"the section *{TABLE}* has no verdict")
    return found


def _states(sections: dict[str, list[Any]], kind: str, *headings: str) -> bool:
    cells = [cell for heading in headings for cell in sections[heading]]
    return any(fact["type"] == kind for fact in statements({"cells": cells}, ""))


def code_cells(notebook: Notebook) -> Iterator[tuple[str, dict[str, Any]]]:
    """The code cells with the heading of their section."""
    heading = ""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield heading, cell
        else:
            heading = [heading, *re.findall(r"^## (.+)$", "".join(cell["source"]), re.MULTILINE)][-1]
