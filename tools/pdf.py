"""The whole book as one PDF: Chromium prints every page of the built site, and pypdf joins them."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from .measure.browser import built, chromium, served
from .project import Project, write

MARGIN = {"top": "16mm", "bottom": "18mm", "left": "15mm", "right": "15mm"}
_READY = """() => {
    const boxes = "details:not(.tag_hide-cell *, .tag_hide-input *), .tag_solution details, .zn-prose > details";
    for (const box of document.querySelectorAll(boxes)) box.open = true;
}"""
"""Folded parts belong to the book, except the checks and the code of helpers."""


def pdf(project: Project) -> None:
    """Print the built site into `_build/zero-or-nan.pdf`, with a bookmark for each page.

    A link to another page of the book leads to that page in the file. The pages are printed without their scripts:
    figures then show all of their steps, and tables all of their rows.

    Raises:
        Problem: if no site is built, or if there is no Chromium.
    """
    site = built(project)
    pages = [project.path(name) for name in project.names]
    with served(site) as address, chromium() as browser, tempfile.TemporaryDirectory() as folder:
        printed = []
        tab = browser.new_page(color_scheme="light")
        tab.route("**/*.js*", lambda route: route.abort())
        for number, page in enumerate(pages, 1):
            tab.goto(f"{address}/{page}")
            tab.evaluate(_READY)
            path = Path(folder) / f"{number}.pdf"
            tab.pdf(path=path, format="A4", margin=MARGIN, print_background=True)
            printed.append((tab.locator("h1").first.inner_text().rstrip("#").strip(), path))
            print(f"  {number} of {len(pages)}: {page}", flush=True)
        book = _joined(printed, {f"{address}/{page}": number for number, page in enumerate(pages)}, address)
    write(project.pdf, book)
    print(f"written: {project.pdf.relative_to(project.root)}, {len(book) / 2**20:.1f} MiB")


def _joined(printed: list[tuple[str, Path]], places: dict[str, int], address: str) -> bytes:
    """One file of all pages. A link to a page of the book leads to that page in the file.

    Args:
        printed: the title and the file of each page.
        places: the number of the file, by the address that a page had on the site.
        address: the address at which the site was served. The book lacks the site's other files, such as notebooks, so
            links to them are removed.
    """
    from pypdf import PdfWriter
    from pypdf.annotations import Link
    from pypdf.generic import Fit

    book = PdfWriter()
    begins: list[int] = []
    for title, path in printed:
        begins.append(len(book.pages))
        book.append(str(path), import_outline=False)
        book.add_outline_item(title=title, page_number=begins[-1])
    for number, page in enumerate(book.pages):
        links: Any = page.get("/Annots", [])
        for index in reversed(range(len(links))):
            link = links[index].get_object()
            uri = str(link.get("/A", {}).get("/URI", ""))
            if not uri.startswith(address):
                continue
            del links[index]
            at = places.get(uri.partition("#")[0])
            if at is not None:
                there = Link(rect=link["/Rect"], target_page_index=begins[at], fit=Fit.fit_horizontally())
                book.add_annotation(number, there)
    book.add_metadata({"/Title": "Zero or NaN?"})
    content = io.BytesIO()
    book.write(content)
    return content.getvalue()
