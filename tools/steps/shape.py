"""What a page about a case must have. A page is about a case if it shows the card of its thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .collect import statements
from .ran import Notebook

FIX = "At a glance"
"""The section that every case page has. Its first cell is the fix: readers see the code, and what it prints."""
TABLE = "Results compared"
"""The section with the verdict, which is the table that compares the methods."""
COMPARED = ("What happens", "Why", "With ignoring.backward", TABLE, "What to do", "Exercises")
"""The other sections of a case page that compares methods."""
_FOLDED = {"hide-cell", "hide-input", "remove-cell", "remove-input"}


def lacking(notebook: Notebook) -> list[str]:
    """One text for everything that the page lacks, although it is about a case."""
    facts = {fact["type"] for fact in statements(notebook, "")}
    if "case" not in facts:
        return []
    sections = list(_sections(notebook))
    headings = {heading for heading, _ in sections}
    wanted = [FIX, *(COMPARED if "verdict" in facts or TABLE in headings else ())]
    found = [
        f"the page has no section *{heading}*, or no code below it" for heading in wanted if heading not in headings
    ]
    first = next((cell for heading, cell in sections if heading == FIX), None)
    if first and (_FOLDED.intersection(first["metadata"].get("tags", [])) or not first["outputs"]):
        found.append(f"the first cell of *{FIX}* is not the fix: readers must see its code, and what it prints")
    compared = {"cells": [cell for heading, cell in sections if heading == TABLE]}
    if TABLE in headings and all(fact["type"] != "verdict" for fact in statements(compared, "")):
        found.append(f"the section *{TABLE}* has no verdict")
    return found


def _sections(notebook: Notebook) -> Iterator[tuple[str, dict[str, Any]]]:
    """The code cells with the heading of their section."""
    heading = ""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield heading, cell
        else:
            heading = [heading, *re.findall(r"^## (.+)$", "".join(cell["source"]), re.MULTILINE)][-1]
