"""Sphinx extension: the whole book as an EPUB, made from the pages of the site.

E-readers run no scripts, send no forms, and read XML instead of HTML. Some can't open folded parts. Therefore each page
is changed on its way into the book. The pages of the site are not changed. The templates in `theme/epub` describe the
package, because Sphinx's own templates know neither the parts of the contents nor which pages have drawings.
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
from ..steps.origin import Repository
from . import checkout
from .cards import cover
from .feedback import versions
from .theme import metadata, outputs

NAME = "zero_or_nan_epub"

_CHECKS = ".cell.tag_hide-cell:not(.tag_solution, .tag_explain)"
"""Cells that check the page's statements. A reader of the book sees only their results."""

_CASED = (
    "clipPath clipPathUnits gradientTransform gradientUnits linearGradient markerHeight markerUnits markerWidth "
    "patternContentUnits patternTransform patternUnits preserveAspectRatio radialGradient refX refY viewBox"
)
_SVG = {name.lower(): name for name in _CASED.split()}
"""Names in drawings that have capitals. An HTML parser makes them lower case, but XML distinguishes the cases."""


def readable(body: str, link: Callable[[str], str], page: str) -> str:
    """The text of a page as XHTML, for a reader without scripts.

    Folded parts are open. Code that only draws, or only checks, is left out, but its outputs stay. A chart has two
    layouts, and the layout for a wide page stays, because not every e-reader can choose. A form is replaced by a link
    to the page on the site.

    Args:
        body: the text as HTML.
        link: gives the place in the book that a link should lead to.
        page: the address of the page on the site.
    """
    soup = BeautifulSoup(outputs(body), "html.parser")
    for unseen in soup.select(f".cell.tag_hide-input > details, {_CHECKS} .cell_input, .zn-narrow, script, [hidden]"):
        unseen.decompose()
    for line in soup.select("details.hide > summary"):
        # MyST-NB writes the line for each state as a paragraph, but a summary may contain no paragraphs.
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

    Two builds of the same sources differ only in the date in the package.
    """

    def init(self) -> None:
        """Use the version of the library."""
        from zero_or_nan import __version__  # here, because it imports PyTorch, which the site does not need

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
        """Write a page. A page of the book is changed for e-readers."""
        if "body" in addctx:
            addctx["address"] = address = self._project.address(pagename)
            addctx["body"] = readable(addctx["body"], lambda href: self._place(pagename, href), address)
        super().handle_page(pagename, addctx, templatename, outfilename, event_arg)

    def _place(self, page: str, href: str) -> str:
        """The destination of a link in the book: a page of the book, or else the web."""
        path, sharp, anchor = href.partition("#")
        if not path or path.endswith(self.out_suffix):
            return href
        address = urljoin(self._project.address(page), path)
        name = self._names.get(address)
        return (self.get_relative_uri(page, name) if name else address) + sharp + anchor

    def handle_finish(self) -> None:
        """Write the files that describe the book, and pack all files into one."""
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
        """The data for the templates that describe the book."""
        project, root = self._project, self._project.names[0]
        at = Repository(*self.config.zero_or_nan_origin) if self.config.zero_or_nan_origin else None
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
        """The parts of the contents. The first page is in no part."""
        contents = self.config.external_site_map

        def page(name: str) -> dict[str, str]:
            title = contents[name].title or self.env.titles[name].astext()
            return {"title": title, "file": self.get_target_uri(name)}

        yield {"caption": "", "pages": [page(contents.root.docname)]}
        for part in contents.root.subtrees:
            yield {"caption": part.caption, "pages": [page(name) for name in part.items]}
        yield {"caption": "", "pages": [{"title": "Index", "file": self.get_target_uri("genindex")}]}


def _plain(css: str) -> str:
    """The styles for e-readers that support neither `:is` nor `:has`. Rules with `:has` are removed.

    >>> _plain("p:is(.a, .b) i { top: 0 } q:has(b) { top: 0 }")
    'p.a i, p.b i { top: 0 }'
    """

    def each(found: re.Match[str]) -> str:
        return ", ".join(f"{found[1]}{one.strip()}{found[3]}" for one in found[2].split(","))

    css = re.sub(r"\s*[^{}]*:has\([^{}]*{[^{}]*}", "", css)
    return re.sub(r"([^{}\n,]*):is\(([^()]*)\)([^{},]*?)(?=\s*[{,])", each, css)


def _properties(page: Path) -> str:
    """The properties of a page for the package: whether it is the contents, and whether it has a drawing."""
    if page.stem == "nav":
        return "nav"
    return "svg" if "<svg" in page.read_text(encoding="utf-8") else ""


def _packed(folder: Path, names: list[str]) -> bytes:
    """The files of a book in one ZIP file. The first file gives the media type, and is not compressed."""
    content = io.BytesIO()
    with ZipFile(content, "w") as book:
        for number, name in enumerate(names):
            entry = ZipInfo(name)  # dated 1980, so that the time of a build does not change the book
            entry.external_attr = 0o644 << 16
            book.writestr(entry, (folder / name).read_bytes(), ZIP_DEFLATED if number else ZIP_STORED)
    return content.getvalue()


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_html_theme(NAME, str(Path(app.confdir) / "theme" / "epub"))
    app.add_builder(Epub, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
