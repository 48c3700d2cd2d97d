"""Sphinx extension: the whole book as an EPUB, from the pages that the site has too.

An e-reader runs no script, sends no form, may not be able to unfold what is folded, and reads XML where a browser reads
HTML. So each page is changed on its way into the book, and only there. The package is described by the templates in
`theme/epub`: Sphinx's own knows neither the parts of the contents nor which page has a drawing in it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.builders.epub3 import Epub3Builder

from ..project import write
from ..steps.origin import Origin
from . import checkout
from .cover import cover
from .feedback import versions
from .theme import metadata, outputs

NAME = "zero_or_nan_epub"

_CHECKS = ".cell.tag_hide-cell:not(.tag_solution, .tag_explain)"
"""Cells that check what the page says: a reader gets their results."""

_CASED = (
    "clipPath clipPathUnits gradientTransform gradientUnits linearGradient markerHeight markerUnits markerWidth "
    "patternContentUnits patternTransform patternUnits preserveAspectRatio radialGradient refX refY viewBox"
)
_SVG = {name.lower(): name for name in _CASED.split()}
"""Names in drawings that have capitals. HTML's parser takes them away; in XML another case is another name."""


def readable(body: str, link: Callable[[str], str], page: str) -> str:
    """The text of a page as XHTML, for a reader without scripts.

    What is folded is open. Code that only draws, or only checks, is left out, and its outputs stay. Of a chart's two
    layouts the one for a wide page stays: not every e-reader can choose. A form is replaced by a link to the page on
    the site.

    Args:
        body: the text as HTML.
        link: gives the place in the book of what a link leads to.
        page: the address of the page on the site.
    """
    soup = BeautifulSoup(outputs(body), "html.parser")
    for unseen in soup.select(f".cell.tag_hide-input > details, {_CHECKS} .cell_input, .zn-narrow, script, [hidden]"):
        unseen.decompose()
    for line in soup.select("details.hide > summary"):
        # MyST-NB gives a line for each state, as paragraphs, which no summary may have.
        line.string = " ".join(said.get_text() for said in line.select(".expanded"))
    for box in soup.find_all("details"):
        box["open"] = "open"
    for form in soup.find_all("form"):
        there = soup.new_tag("a", href=page)
        there.string = "The form is on the site."
        form.replace_with(there)
        there.wrap(soup.new_tag("p"))
    for tag in soup.find_all("a", href=True):
        tag["href"] = link(str(tag["href"]))
    for tag in (tag for svg in soup.find_all("svg") for tag in (svg, *svg.find_all(True))):
        tag.name = _SVG.get(tag.name, tag.name)
        tag.attrs = {_SVG.get(name, name): value for name, value in tag.attrs.items()}
    return soup.decode(formatter="minimal")


class Epub(Epub3Builder):
    """Sphinx's builder, with readable pages, a title page, and the parts of the contents.

    Of two builds of the same sources only the date in the package differs.
    """

    def init(self) -> None:
        """Take the version from the library, whose book it is."""
        from zero_or_nan import __version__  # here, for it imports PyTorch, and the site does not need it

        super().init()
        self.config.version = __version__
        self._project = checkout(self.app)
        self._names = {self._project.address(name): name for name in self._project.names}
        self._names[f"{self._project.site_url}/index.html"] = self._project.names[0]

    def get_theme_config(self) -> tuple[str, dict[str, str | int | bool]]:
        """The theme in `theme/epub`."""
        return NAME, {}

    def handle_page(
        self,
        pagename: str,
        addctx: dict[str, Any],
        templatename: str = "page.html",
        outfilename: Any = None,
        event_arg: Any = None,
    ) -> None:
        """Write a page, changed for e-readers if it is one of the book's."""
        if "body" in addctx:
            addctx["address"] = address = self._project.address(pagename)
            addctx["body"] = readable(addctx["body"], lambda href: self._place(pagename, href), address)
        super().handle_page(pagename, addctx, templatename, outfilename, event_arg)

    def _place(self, page: str, href: str) -> str:
        """Where a link leads in the book: to a page of it, or else to the web."""
        path, sharp, anchor = href.partition("#")
        if not path or path.endswith(self.out_suffix):
            return href
        address = urljoin(self._project.address(page), path)
        name = self._names.get(address)
        return (self.get_relative_uri(page, name) if name else address) + sharp + anchor

    def handle_finish(self) -> None:
        """Write what describes the book, and pack it into one file."""
        self.build_mimetype()
        self.build_container()
        book = self._described()
        self.handle_page("title", dict(book), "title.html")
        self.handle_page("nav", {**book, "title": "Contents"}, "nav.html")
        folder = Path(self.outdir)
        pages = [f"{name}{self.out_suffix}" for name in ("title", "nav", *self._project.names, "genindex")]
        book["pages"] = [{"file": page, "properties": _properties(folder / page)} for page in pages]
        write(folder / "content.opf", self.templates.render("content.opf", book))
        style = folder / "_static" / "book.css"
        rules = (self._project.helpers / "style.css", style)
        write(style, _plain("\n".join(path.read_text(encoding="utf-8") for path in rules)))
        write(folder / "cover.png", cover(book["title"], book["description"], book["author"]))
        names = ["mimetype", "META-INF/container.xml", "content.opf", "cover.png", "_static/book.css", *pages]
        write(self._project.epub, _packed(folder, names))

    def _described(self) -> dict[str, Any]:
        """What the templates say of the book."""
        project, root = self._project, self._project.names[0]
        at = Origin(*self.config.zero_or_nan_origin) if self.config.zero_or_nan_origin else None
        return {
            "author": self.config.author,
            "commit": at.commit[:10] if at else "",
            "changed": at.changed if at else False,
            "date": self.content_metadata()["date"],
            "description": metadata(self.env.get_doctree(root))["description"],
            "home": f"{project.site_url}/",
            "language": self.config.language,
            "parts": list(self._parts()),
            "repository": project.repository,
            "title": self.config.html_title,
            "tree": f"{project.repository}/tree/{at.commit}" if at else "",
            "version": self.config.version,
            "versions": versions(),
        }

    def _parts(self) -> Iterator[dict[str, Any]]:
        """The parts of the contents. The first page is in none."""
        contents = self.config.external_site_map

        def page(name: str) -> dict[str, str]:
            title = contents[name].title or self.env.titles[name].astext()
            return {"title": title, "file": self.get_target_uri(name)}

        yield {"caption": "", "pages": [page(contents.root.docname)]}
        for part in contents.root.subtrees:
            yield {"caption": part.caption, "pages": [page(name) for name in part.items]}
        yield {"caption": "", "pages": [{"title": "Index", "file": self.get_target_uri("genindex")}]}


def _plain(css: str) -> str:
    """The rules for readers that know neither `:is`, which can be said without it, nor `:has`, which can't.

    >>> _plain("p:is(.a, .b) i { top: 0 } q:has(b) { top: 0 }")
    'p.a i, p.b i { top: 0 }'
    """

    def each(found: re.Match[str]) -> str:
        return ", ".join(f"{found[1]}{one.strip()}{found[3]}" for one in found[2].split(","))

    css = re.sub(r"\s*[^{}]*:has\([^{}]*{[^{}]*}", "", css)
    return re.sub(r"([^{}\n,]*):is\(([^()]*)\)([^{},]*?)(?=\s*[{,])", each, css)


def _properties(page: Path) -> str:
    """What a package has to say of a page: whether it is the contents, and whether it has a drawing."""
    if page.stem == "nav":
        return "nav"
    return "svg" if "<svg" in page.read_text(encoding="utf-8") else ""


def _packed(folder: Path, names: list[str]) -> bytes:
    """The files of a book in one. The first says what it is, and is not compressed."""
    content = io.BytesIO()
    with ZipFile(content, "w") as book:
        for number, name in enumerate(names):
            entry = ZipInfo(name)  # of 1980, always: the time of a build is no part of the book
            entry.external_attr = 0o644 << 16
            book.writestr(entry, (folder / name).read_bytes(), ZIP_DEFLATED if number else ZIP_STORED)
    return content.getvalue()


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_html_theme(NAME, str(Path(app.confdir) / "theme" / "epub"))
    app.add_builder(Epub, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
