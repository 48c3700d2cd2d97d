"""The picture of the README: the verdict on pytorch#10729, as the built site shows it.

The build compares the picture with a digest, and the table in the picture with the table of the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .measure.browser import VIEWS, Visit, built, chromium, served
from .project import Project, digest, read_record, write, write_record

PAGE = "chapters/where-over-exp.html"
_VERDICT = re.compile(r"<table[^>]* data-verdict=.*?</table>", re.DOTALL)


def picture(project: Project) -> None:
    """Write `results/verdict.png`, and what it shows to `results/measured/picture.json`.

    Raises:
        Problem: if no site is built, or if there is no Chromium.
    """
    site = built(project)
    with (
        served(site) as address,
        chromium() as browser,
        Visit(browser, address, **VIEWS["wide, light"], device_scale_factor=2) as visit,
    ):
        visit.open(PAGE)
        write(project.picture, visit.page.locator("table[data-verdict]").screenshot())
    write_record(_record(project), _shown(project, (site / PAGE).read_text(encoding="utf-8")))
    print(f"written: {project.picture.relative_to(project.root)}")


def is_outdated(project: Project, pages: Mapping[str, str]) -> bool:
    """Whether the picture is not the one that was taken, or the page shows another table now.

    `pages` has the HTML of each page, by its path in the site.
    """
    if not project.picture.is_file() or PAGE not in pages:
        return False
    return bool(read_record(_record(project)) != _shown(project, pages[PAGE]))


def _record(project: Project) -> Path:
    return project.results / "measured" / "picture.json"


def _shown(project: Project, page: str) -> dict[str, Any]:
    """A digest of the picture, and the words of the first verdict on the page, row by row."""
    table = _VERDICT.search(page)
    rows = [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in (table[0] if table else "").split("</tr>")]
    return {"picture": digest(project.picture.read_bytes()), "table": rows[:-1]}
