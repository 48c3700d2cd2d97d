"""Sphinx extension: the book's own theme, and the data that its template shows.

`theme/` holds the template, the style sheet and the scripts. A page loads nothing from another host.
"""

from __future__ import annotations

import copy
import hashlib
import html
import json
import platform
import re
from collections.abc import Iterator
from importlib import metadata as packages
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.config import Config

from zero_or_nan.explain.report.remedies import PAGES

from ..project import Project, write
from ..steps.collect import checked, statements
from ..steps.git import Repository
from ..steps.pair import anywhere
from . import checkout, commit, executed
from .cards import card

NAME = "zero_or_nan"


class FrontDoor(StandaloneHTMLBuilder):
    """Sphinx's own builder, except that the first page of the book is the site's `index.html`, without a redirect."""

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """The address of a page from the top of the site."""
        return super().get_target_uri(self._place(docname), typ)

    def get_outfilename(self, pagename: str) -> str:
        """The file that a page is written to."""
        return super().get_outfilename(self._place(pagename))

    def _place(self, name: str) -> str:
        return "index" if name == self.config.root_doc else name


_STYLE = re.compile(r'(<div class="zn">)<style>.*?</style>', re.DOTALL)
"""The styles that every output carries for Colab. On the site they are in the style sheet."""

_OWN = re.compile(rf"(?<= href=['\"]){re.escape(PAGES)}")
"""How a link of a report or a table to a page of the book begins."""

_WORD = re.compile(r'<span class="pre">([^<]*)</span>')
_LITERAL = re.compile(r'<code class="(?:code )?docutils literal notranslate">')
"""docutils wraps each word of literal text in elements that our style sheet does not need: a fifth of the API page."""

_THREAD = re.compile(r' · ([^<>·]+)(?=</a>|</h1>|<a class="headerlink"|\Z)')
"""The part of a title after the symptom: the number of its thread."""
_HEADING = re.compile("<h1>.*?</h1>", re.DOTALL)


def page(app: Sphinx, name: str, context: dict[str, Any], doctree: nodes.document | None) -> dict[str, Any]:
    """The data that the template shows on a page, in addition to Sphinx's own context."""
    project = checkout(app)
    book = str(app.config.html_title)
    meta = metadata(doctree)
    heading = html.unescape(_plain(context.get("title", "")))
    # Reports and tables have the address of the site. Here, their links stay in this copy of the site.
    body = _OWN.sub(context["pathto"]("chapters/", 1), outputs(context.get("body", "")))
    description = meta.get("description", f"{heading}: a page of {book}")
    shown: dict[str, Any] = {
        "actions": _actions(app, project, name) if doctree is not None else [],
        "address": project.address(name),
        "body": body,
        "contents": _contents(context),
        "description": description,
        "has_backward": "data-backward" in body,
        "has_control": "data-control=" in body,
        "has_filter": any(f'class="{listed}' in body for listed in ("zn-point", "zn-nodes", "py ")),
        "has_paste": 'class="paste"' in body,
        "has_terms": 'class="term ' in body,
        "has_verdict": "data-verdict" in body,
        "files": f"{project.repository}/blob/{project.branch}",
        "heading": heading,
        "home": project.site_url,
        "keywords": meta.get("keywords", ""),
        "made": _made(app, project, name) if doctree is not None else {},
        "feedback": {"edit": edit(project, name), "report": report(project, name, heading, commit(app))}
        if doctree is not None
        else {},
        "repository": project.repository,
        "sections": _sections(context),
        "title": _title(meta.get("title", heading), book),
        "titled": titled,
        "version": version(project),
    }
    if doctree is not None:
        facts = list(_facts(app, project, name))
        shown["checked"] = len(checked(facts))
        shown["card"] = f"{project.site_url}/{card(project, name, heading, description, facts)}"
        shown["card_alt"] = f"{book} {heading}"
        shown["data"] = _structured(shown, book, str(app.config.author), facts)
    return shown


def metadata(doctree: nodes.document | None) -> dict[str, str]:
    """The content of `html_meta` in the front matter: the description, the keywords, and a title for search engines."""
    if doctree is None:
        return {}
    return {str(node["name"]): str(node["content"]) for node in doctree.findall(nodes.meta) if "name" in node}


def version(project: Project) -> str:
    """A digest that changes with the styles and scripts, so that browsers don't use an outdated file."""
    files = [project.helpers / "style.css", *sorted((project.root / "theme" / "static").rglob("*"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files if path.is_file())).hexdigest()[:8]


def _title(title: str, book: str) -> str:
    return html.escape(title if title == book else f"{title} — {book}")


def titled(fragment: str) -> str:
    """A title as HTML. The part after its last dot, the number of a thread, is less prominent, and is never broken.

    >>> titled("NaN from exp · pytorch#1</a>")
    'NaN from exp <span class="thread"><span>· </span>pytorch#1</span></a>'
    """
    return _THREAD.sub(
        r' <span class="thread"><span>· </span>\1</span>', str(fragment)
    )  # without `str`, the template's markup type would escape the replacement


def _plain(fragment: Any) -> str:
    return re.sub(r"<[^>]*>", "", str(fragment))


def outputs(body: str) -> str:
    """The text of a page, without repeated styles and without the label that MyST-NB gives to folded code.

    That label would replace the visible one for screen readers.
    """
    body = _LITERAL.sub("<code>", _WORD.sub(r"\1", body))
    body = _HEADING.sub(lambda heading: titled(heading[0]), body, count=1)
    return _STYLE.sub(r"\1", body).replace(' aria-label="Toggle hidden content"', "")


def _contents(context: dict[str, Any]) -> str:
    """The table of contents. The link to the present page is marked for screen readers too."""
    tree = str(context["toctree"](maxdepth=1, collapse=False, includehidden=True, titles_only=True) or "")
    tree = tree.replace(' role="heading"', "")  # Sphinx gives no level, so this is not a valid heading
    return titled(re.sub(r'(<a class="current[^"]*")', r'\1 aria-current="page"', tree))


def _sections(context: dict[str, Any]) -> str:
    """The list of a page's sections, without the page's own title; empty if there is only one section."""
    toc = str(context.get("toc", "")) if context.get("display_toc") else ""
    inner = re.fullmatch(r"\s*<ul>\s*<li><a [^>]*>.*?</a>\s*(<ul>.*</ul>)\s*</li>\s*</ul>\s*", toc, re.DOTALL)
    return inner[1] if inner and inner[1].count("<li>") > 1 else ""


def _actions(app: Sphinx, project: Project, name: str) -> list[dict[str, Any]]:
    """Links at the top of a page: its notebook in Colab, its outputs to download, its source."""
    path = project.root / f"{name}.md"
    up = "../" * project.path(name).count("/")
    actions: list[dict[str, Any]] = []
    if path in project.chapters:
        notebook = anywhere(project, path, copy.deepcopy(executed(app)[path]))
        write(Path(app.outdir) / "_sources" / f"{name}.ipynb", notebook)
        actions += [
            {"name": "colab", "address": project.colab_url(path), "icon": "play", "text": "Open in Colab"},
            {
                "name": "notebook",
                "address": f"{up}_sources/{name}.ipynb",
                "icon": "download",
                "text": "Notebook",
                "download": True,
            },
        ]
    source = f"{project.repository}/blob/{project.branch}/{name}.md"
    return [*actions, {"name": "source", "address": source, "icon": "code", "text": "Source"}]


def _made(app: Sphinx, project: Project, name: str) -> dict[str, Any]:
    """The versions, the commit that a page is made from and its date; for a page with code the command that runs it."""
    made: dict[str, Any] = {"versions": versions()}
    if found := commit(app):
        made["commit"], made["date"] = found.commit[:10], found.date
        made["tree"] = f"{project.repository}/tree/{found.commit}"
        made["changed"] = found.changed
    chapter = project.root / f"{name}.md"
    if chapter in project.chapters:
        made["command"] = f"make check CHAPTER={chapter.stem}"
    return made


def edit(project: Project, name: str) -> str:
    """The address that opens the source of a page in the repository's editor."""
    return f"{project.repository}/edit/{project.branch}/{name}.md"


def report(project: Project, name: str, heading: str, made: Repository | None) -> str:
    """The address of a new issue that already contains the page and the versions that it was built with.

    If the reader's address names a place on the page, site.js adds this place after the line with the page's address.
    """
    commit = f", commit {made.commit}{' with changes since' * made.changed}" if made else ""
    made_of = f"{project.address(name)}\nBuilt with {versions()}{commit}\n"
    body = f"What is wrong, and what should the page say instead?\n\n\n\n---\n{made_of}"
    return f"{project.repository}/issues/new?{urlencode({'title': f'{heading}: ', 'body': body})}"


def versions() -> str:
    """The versions that the pages are built with."""
    return f"torch {packages.version('torch')}, Python {platform.python_version()}"


def _facts(app: Sphinx, project: Project, name: str) -> Iterator[dict[str, Any]]:
    """The statements of an executed page: its thread, its claims and its verdicts."""
    path = project.root / f"{name}.md"
    if path in project.chapters:
        yield from statements(executed(app)[path], path.stem)


def _structured(shown: dict[str, Any], book: str, author: str, facts: list[dict[str, Any]]) -> str:
    """The page as a technical article, for search engines (schema.org)."""
    data = {
        "@context": "https://schema.org",
        "@type": "TechArticle",
        "headline": shown["heading"],
        "description": shown["description"],
        "url": shown["address"],
        "image": shown["card"],
        "inLanguage": "en",
        "dependencies": "PyTorch",
        "license": "https://spdx.org/licenses/MIT",
        "author": {"@type": "Organization", "name": author, "url": shown["repository"]},
        "isPartOf": {"@type": "Book", "name": book, "url": f"{shown['home']}/"},
    }
    threads = [fact["url"] for fact in facts if fact["type"] in ("case", "thread")]
    if threads:
        data["isBasedOn"] = threads
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")


def _show(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if app.builder.name == "html":
        context["site"] = page(app, pagename, context, doctree)


def _settings(app: Sphinx, config: Config) -> None:
    config.html_theme_options = {}  # without this, Jupyter Book passes the options of its own default theme


def _assets(app: Sphinx, failure: Exception | None) -> None:
    """Write one style sheet from the styles of the theme and of the outputs, and the files that no page shows."""
    if failure is None and app.builder.name == "html":
        project = checkout(app)
        parts = (project.root / "theme" / "static" / "site.css", project.helpers / "style.css")
        styles = "\n".join(path.read_text(encoding="utf-8") for path in parts)
        write(Path(app.outdir) / "_static" / "site.css", styles)
        write(Path(app.outdir) / "sitemap.xml", sitemap(project))
        _back_door(app, project)


def sitemap(project: Project) -> str:
    """The addresses of all pages for search engines, in the order of the table of contents.

    sphinx-sitemap is not used: it lists only the pages that a build writes again, and the first page by its redirect.
    """
    entries = "".join(f"<url><loc>{html.escape(project.address(name))}</loc></url>\n" for name in project.names)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n'
    )


def _back_door(app: Sphinx, project: Project) -> None:
    """Write a page at the address that the first page would have by its name. It redirects to `index.html`."""
    name, builder = project.names[0], app.builder
    if isinstance(builder, FrontDoor) and name != "index":
        shown = {
            "address": project.address(name),
            "front": "../" * name.count("/") + project.path(name),
            "language": app.config.language,
            "title": app.config.html_title,
        }
        write(Path(app.outdir) / f"{name}.html", builder.templates.render("moved.html", shown) + "\n")


def _not_found(app: Sphinx) -> list[tuple[str, dict[str, Any], str]]:
    return [("404", {"title": "No such page"}, "404.html")] if app.builder.name == "html" else []


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_config_value("comments_config", {}, "")  # Jupyter Book sets this value for an extension that is not loaded
    app.add_html_theme(NAME, str(Path(app.confdir) / "theme"))
    app.add_builder(FrontDoor, override=True)
    app.connect("config-inited", _settings)
    app.connect("html-page-context", _show)
    app.connect("html-collect-pages", _not_found)
    app.connect("build-finished", _assets)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
