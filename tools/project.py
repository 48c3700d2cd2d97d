"""Where things are, and what `_config.yml` and `_toc.yml` say."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

MAIN = ("vanilla", "masked", "ignoring")
"""The ways that every case has, in the order in which they are shown; others come after them."""


class Problem(Exception):
    """What stops a command and is not a bug of ours: told in a line, which says what to do about it."""


class Project:
    """One checkout of the book.

    Args:
        root: the folder that holds `_config.yml`.

    Raises:
        Problem: when there is no `_config.yml` or `_toc.yml` in it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        for name in ("_config.yml", "_toc.yml"):
            if not (self.root / name).is_file():
                raise Problem(f"{self.root} holds no {name}: run this from the top of the checkout")

    @property
    def notebooks(self) -> Path:
        return self.root / "notebooks"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def source(self) -> Path:
        """The folder of all that a page imports: the library and the helpers."""
        return self.root / "src"

    @property
    def helpers(self) -> Path:
        return self.source / "helpers"

    @property
    def build(self) -> Path:
        return self.root / "_build"

    @property
    def site(self) -> Path:
        return self.build / "html"

    @property
    def executed(self) -> Path:
        """Where the renderer keeps the executed notebooks."""
        return self.build / "jupyter_execute"

    @cached_property
    def config(self) -> dict[str, Any]:
        return _settings(self.root / "_config.yml")

    @property
    def repository(self) -> str:
        """The address of the repository, named once, in `_config.yml`."""
        return str(self.config["repository"]["url"]).rstrip("/")

    @property
    def branch(self) -> str:
        return str(self.config["repository"]["branch"])

    @property
    def site_url(self) -> str:
        return str(self.config["html"]["baseurl"]).rstrip("/")

    @cached_property
    def pages(self) -> list[Path]:
        """The source of every page, in the order of the table of contents."""
        paths = [self.root / f"{name}.md" for name in _files(_settings(self.root / "_toc.yml"))]
        missing = [str(path.relative_to(self.root)) for path in paths if not path.is_file()]
        if missing:
            raise Problem(f"_toc.yml names files that do not exist: {', '.join(missing)}")
        return paths

    def name(self, page: Path) -> str:
        """A page's path from the top, without its ending: what its address and its outputs are called by."""
        return page.relative_to(self.root).with_suffix("").as_posix()

    @property
    def names(self) -> list[str]:
        """The name of every page, in the order of the table of contents."""
        return [self.name(page) for page in self.pages]

    @property
    def chapters(self) -> list[Path]:
        """The pages that are notebooks: those whose front matter names a kernel."""
        return [page for page in self.pages if is_notebook(page)]

    def notebook(self, chapter: Path) -> Path:
        """The generated `.ipynb` of a chapter."""
        return self.notebooks / f"{chapter.stem}.ipynb"

    def colab_url(self, chapter: Path) -> str:
        """The address that opens a chapter's notebook in Colab."""
        slug = self.repository.removeprefix("https://github.com/")
        path = self.notebook(chapter).relative_to(self.root).as_posix()
        return f"https://colab.research.google.com/github/{slug}/blob/{self.branch}/{path}"


def is_notebook(page: Path) -> bool:
    """Whether a page has code to run: its front matter names a kernel."""
    text = page.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        return False
    front, closed, _ = text[3:].partition("\n---")
    return bool(closed) and "kernelspec" in _parsed(front, page)


def _settings(path: Path) -> dict[str, Any]:
    return _parsed(path.read_text(encoding="utf-8"), path)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    """YAML that has to be a mapping.

    Raises:
        Problem: when it is none, with the parser's own words.
    """
    try:
        return dict(yaml.safe_load(text) or {})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise Problem(f"{path}: {error}") from error


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; text as UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _files(node: Any) -> list[str]:
    """The files that a table of contents names, top to bottom."""
    if isinstance(node, list):
        return [name for item in node for name in _files(item)]
    if not isinstance(node, dict):
        return []
    own = [str(node[key]) for key in ("root", "file") if key in node]
    return own + [name for key in ("parts", "chapters", "sections") for name in _files(node.get(key))]
