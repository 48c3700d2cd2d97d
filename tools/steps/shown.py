"""Step 6: read the rendered pages back. What a reader sees is what was executed, and every link leads somewhere.

Sphinx gives no warning if a setting in `_config.yml` or the tag of a cell leaves out an output. It also does not follow
links in the HTML of tables and figures. Therefore the pages themselves are compared with the executed notebooks.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from zero_or_nan.explain.report.remedies import PAGES

from ..picture import PAGE, is_outdated
from ..project import Project
from .addresses import lost_addresses
from .collect import ChapterRun
from .controls import wrong_controls
from .outputs import visible

_AREA = '<div class="cell_output docutils container">'
"""How MyST-NB begins what a cell shows."""
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
"""The styles that every output carries for Colab. On the site they are in the style sheet."""
_OWN = re.compile(rf"""(?<= href=['"])(?:{re.escape(PAGES)}|\./|chapters/)(?=[\w-]+\.html)""")
"""How a link to a page of the book begins. In an output it is the address of the site, and on a page it is relative."""
_GENERATED = ("genindex.html", "search.html")
"""The pages that Sphinx makes without a source."""
_LINK = re.compile(r'<(?:a|link)\b[^>]*?\shref="([^"]*)"')
_ANCHOR = re.compile(r'\s(?:id|name)="([^"]+)"')
_MOST = 10
"""How many missing outputs or broken links a message names."""


def problems(project: Project, runs: Iterable[ChapterRun]) -> list[str]:
    """A text for each kind of fault that the rendered pages have: missing outputs, links to nowhere, wrong controls."""
    files = {path: project.site / path for path in (*map(project.path, project.names), *_GENERATED)}
    pages = {path: file.read_text(encoding="utf-8") if file.is_file() else "" for path, file in files.items()}
    absent = [
        f"{run.chapter.relative_to(project.root)}, {cell}"
        for run in runs
        for cell in missing(run.notebook, pages[project.path(project.name(run.chapter))])
    ]
    lost = broken(project.site, pages, project.site_url)
    gone = lost_addresses(project, {path: page for path, page in pages.items() if path not in _GENERATED})
    found = []
    if absent:
        advice = "Check execute_notebooks in _config.yml, and the tags of these cells, such as remove-output"
        found.append(f"the output of these code cells is not on their page. {advice}:\n{_some(absent)}")
    if lost:
        found.append(f"these links lead to a page or a section that does not exist:\n{_some(lost)}")
    if gone:
        advice = (
            "If a section is gone, write its name as a label, such as (old-anchor)=, above the section that has its "
            "content now. If a page is gone, keep a page of that name that links to the new one"
        )
        found.append(f"these addresses are gone, but people may link to them. {advice}:\n{_some(gone)}")
    if is_outdated(project, pages):
        found.append(
            f"{project.picture} is not the picture that was taken of the verdict on {PAGE}. Run `make picture`, and "
            "then this command again"
        )
    return found + wrong_controls(project.root / "theme" / "static" / "control.js", pages.values())


def missing(notebook: Mapping[str, Any], page: str) -> list[str]:
    """The code cells whose outputs are not on the page, in the order of the cells.

    Args:
        notebook: the executed notebook.
        page: the HTML of the page.
    """
    areas = _OWN.sub("", _STYLE.sub("", page)).split(_AREA)[1:]
    cells = [(name, list(map(_html, outputs))) for name, _, outputs in visible(notebook)]
    left_out = len(areas) != len(cells)
    found = []
    for name, outputs in cells:
        if areas and all(output in areas[0] for output in outputs):
            del areas[0]
            continue
        found.append(name)
        if not left_out:
            del areas[0]  # the area of this cell, with something else in it
    return found


def _html(output: Mapping[str, Any]) -> str:
    """An output as the page contains it; of a picture in a file, or of an exception, only how it begins."""
    data = output.get("data", {})
    if "text/html" in data:
        return _OWN.sub("", _STYLE.sub("", "".join(data["text/html"]))).strip()
    if "ename" in output or any(kind.startswith("image/") for kind in data):
        return str(output.get("ename", "<img"))
    text = "".join(output["text"] if "text" in output else data["text/plain"])
    return f"<pre><span></span>{html.escape(text, quote=False).rstrip()}\n</pre>"


def broken(site: Path, pages: Mapping[str, str], address: str) -> list[str]:
    """Each link inside the site that leads nowhere, after the path of its page.

    Args:
        site: the folder of the site.
        pages: the HTML of each page, by its path in the site.
        address: the address of the site on the web.
    """
    anchors = {path: set(map(html.unescape, _ANCHOR.findall(page))) for path, page in pages.items()}
    return [
        f"{path}: {link}"
        for path, page in pages.items()
        for link in dict.fromkeys(map(html.unescape, _LINK.findall(page)))
        if not _leads(site, path, link.replace(address, "http://site", 1), anchors)
    ]


def _leads(site: Path, path: str, link: str, anchors: Mapping[str, set[str]]) -> bool:
    target = urlsplit(urljoin(f"http://site/{path}", link))
    file, anchor = unquote(target.path).lstrip("/") or "index.html", unquote(target.fragment)
    if target.netloc != "site":
        return True
    if file in anchors:
        return not anchor or anchor in anchors[file]
    # The file of a page that is gone may still be there.
    return (site / file).is_file() and not file.endswith(".html")


def _some(lines: list[str]) -> str:
    more = [f"… and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    return "\n".join(f"  {line}" for line in [*lines[:_MOST], *more])
