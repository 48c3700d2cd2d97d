"""Sphinx extension: `sitemap.xml`, the addresses of all pages for search engines.

sphinx-sitemap is not used: it lists only the pages that a build writes again, and the first page by its redirect.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from ..project import Project, write
from . import checkout


def sitemap(project: Project) -> str:
    """The pages in the order of the table of contents."""
    entries = "".join(f"<url><loc>{escape(project.address(name))}</loc></url>\n" for name in project.names)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n'
    )


def _write(app: Sphinx, failure: Exception | None) -> None:
    if failure is None and app.builder.name == "html":
        write(Path(app.outdir) / "sitemap.xml", sitemap(checkout(app)))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
