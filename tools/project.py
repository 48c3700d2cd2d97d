"""The paths and addresses of the book, and the content of `_config.yml` and `_toc.yml`."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

MAIN = ("vanilla", "masked", "ignoring")
"""The methods that every case has, in the order in which pages show them. Other methods come after them."""

_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the loader in C is several times as fast


class Problem(Exception):
    """An error that stops a command and is not a bug of the project. Its message is one line that says what to do."""


class Project:
    """One checkout of the book.

    Args:
        root: the folder that holds `_config.yml`.

    Raises:
        Problem: if the folder has no `_config.yml` or no `_toc.yml`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        for name in ("_config.yml", "_toc.yml"):
            if not (self.root / name).is_file():
                raise Problem(f"{self.root} has no {name}: run the command in the top folder of the checkout")
        self.notebooks = self.root / "notebooks"
        self.source = self.root / "src"  # everything that a page imports: the library and the helpers
        self.helpers = self.source / "helpers"
        self.results = self.root / "results"
        self.claims = self.results / "claims.json"  # all outcomes on every release; helpers.recorded reads it
        self.outputs = self.results / "outputs.json"  # the recorded output of the cells of every page
        self.addresses = self.results / "addresses.txt"  # the pages and sections that people may link to
        self.threads = self.results / "threads.txt"  # the threads that pages name
        self.picture = self.results / "verdict.png"  # the README shows it
        self.matrix = self.results / "measured" / "matrix.json"  # names every release whose outcomes are recorded
        self.build = self.root / "_build"
        self.executed = self.build / "executed"  # the outputs of the cells of every page
        self.site = self.build / "html"

    @cached_property
    def config(self) -> dict[str, Any]:
        return _settings(self.root / "_config.yml")

    @property
    def repository(self) -> str:
        """The address of the repository. Only `_config.yml` contains it."""
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
            raise Problem(
                f"_toc.yml names files that do not exist: {', '.join(missing)}; add the files, or remove their lines"
            )
        return paths

    def name(self, page: Path) -> str:
        """A page's path from the top folder, without its ending. The page's address and its outputs use this name."""
        return page.relative_to(self.root).with_suffix("").as_posix()

    @cached_property
    def names(self) -> list[str]:
        """The name of every page, in the order of the table of contents."""
        return [self.name(page) for page in self.pages]

    def path(self, name: str) -> str:
        """The path of a page on the site. The first page is `index.html`."""
        return "index.html" if name == self.names[0] else f"{name}.html"

    def address(self, name: str) -> str:
        """The address of a page on the web. No page has a second address."""
        path = self.path(name)
        return f"{self.site_url}/{'' if path == 'index.html' else path}"

    @cached_property
    def chapters(self) -> list[Path]:
        """The pages that are notebooks: those whose front matter names a kernel."""
        return [page for page in self.pages if is_notebook(page)]

    def chapters_called(self, *names: str) -> list[Path]:
        """The chapters with these file names, such as `where-over-exp`; all chapters if no name is given.

        Raises:
            Problem: if there is no such chapter.
        """
        known = {chapter.stem: chapter for chapter in self.chapters}
        for name in names:
            if name not in known and (self.root / "chapters" / f"{name}.md").is_file():
                raise Problem(
                    f"chapters/{name}.md can't be run: it has no code, or it is not in _toc.yml; add it there"
                )
        return [known[name] for name in named(names, known, "chapter with code")] or self.chapters

    def notebook(self, chapter: Path) -> Path:
        """The generated `.ipynb` of a chapter."""
        return self.notebooks / f"{chapter.stem}.ipynb"

    def colab_url(self, chapter: Path) -> str:
        """The address that opens a chapter's notebook in Colab."""
        slug = self.repository.removeprefix("https://github.com/")
        path = self.notebook(chapter).relative_to(self.root).as_posix()
        return f"https://colab.research.google.com/github/{slug}/blob/{self.branch}/{path}"


def named(names: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The names, each once, if all of them are known.

    Raises:
        Problem: if a name is not known; with the known names that are close to it, or else with the first 40.
    """
    names, known = list(dict.fromkeys(names)), list(known)
    if unknown := [name for name in names if name not in known]:
        close = dict.fromkeys(each for name in unknown for each in difflib.get_close_matches(name, known))
        some = [*known[:40], *["…"] * (len(known) > 40)]
        hint = f"did you mean {' or '.join(close)}?" if close else f"the known names are {', '.join(some)}"
        raise Problem(f"no {what} is called {', '.join(unknown)}; {hint}")
    return names


def page_text(page: Path) -> str:
    """The text of a page.

    Raises:
        Problem: if the file is empty, or is not UTF-8.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Problem(f"{page}: is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8") from error
    if text.startswith("\ufeff"):
        raise Problem(f"{page}: begins with a byte order mark, which hides its front matter; save it without this mark")
    if not text.strip():
        raise Problem(f"{page}: is empty; write the page, or remove it from _toc.yml")
    return text


def is_notebook(page: Path) -> bool:
    """Whether a page has code to run: its front matter names a kernel.

    Raises:
        Problem: if the page, or its front matter, can't be read.
    """
    text = page_text(page)
    if not text.startswith("---\n"):
        return False
    front, closed, _ = text[3:].partition("\n---")
    if not closed:
        raise Problem(f"{page}: its front matter begins with --- but does not end; add a line --- after it")
    settings = _parsed(front, page)
    if "kernelspec" not in settings:
        return False
    kernel = settings["kernelspec"]
    if not (isinstance(kernel, dict) and {"name", "display_name"} <= kernel.keys()):
        raise Problem(f"{page}: kernelspec needs a name and a display_name; copy them from another chapter")
    return True


def _settings(path: Path) -> dict[str, Any]:
    return _parsed(path.read_text(encoding="utf-8"), path)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    """A YAML text that must be a mapping.

    Raises:
        Problem: if it is not a mapping, or not YAML; with the parser's own message.
    """
    try:
        return dict(yaml.load(text, Loader=_LOADER) or {})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise Problem(f"{path}: {' '.join(str(error).split())}") from error


def digest(*parts: str | bytes) -> str:
    """SHA-256 of some texts. The boundaries between the texts count too."""
    found = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        found.update(len(content).to_bytes(8, "big") + content)
    return found.hexdigest()


def read_record(path: Path) -> Any:
    """The content of a recorded JSON file, as `write_record` wrote it.

    Raises:
        Problem: if the file is missing, is not JSON, or was edited; with its path, and how to restore it.
    """
    again = f"restore it with `git checkout`, or delete it and run `make {_target(path)}`, which writes it again"
    try:
        content = dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise Problem(f"{path} is missing; {again}") from error
    except (TypeError, ValueError) as error:
        raise Problem(f"{path} is not valid JSON ({error}); {again}") from error
    if content.pop("digest", None) != _digest(content):
        raise Problem(f"{path} was edited: its digest does not fit its content; {again}")
    return content


def write_record(path: Path, content: dict[str, Any], indent: int | None = None) -> None:
    """Write a JSON file that ends with a digest of its content, so that `read_record` notices every edit.

    Without `indent`, the file has one line for each element of each value in `content`, and with it a line for each
    element of each list. A small change therefore gives a small diff. The file is written whole or not at all.
    """
    content = {**content, "digest": _digest(content)}
    text = "{\n" + ",\n".join(f"{_json(key)}: {_lines(value)}" for key, value in content.items()) + "\n}"
    write(path, (json.dumps(content, indent=indent, ensure_ascii=False) if indent else text) + "\n")


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(_json(content).encode()).hexdigest()[:16]


def _target(path: Path) -> str:
    """The target of the Makefile that writes a record. The outcomes of all releases are the work of `make matrix`."""
    name = path.stem.partition("-torch-")[0].replace("_", "-")
    others = {"claims": "matrix", "outputs": "record", "on-gpu": "gpu", "empty-rows": "gpu"}
    return others.get(name, name)


def _lines(value: Any) -> str:
    if isinstance(value, dict):
        opening, lines, closing = "{", [f"{_json(key)}: {_json(each)}" for key, each in value.items()], "}"
    elif isinstance(value, list):
        opening, lines, closing = "[", [_json(each) for each in value], "]"
    else:
        return _json(value)
    return opening + ",".join(f"\n {line}" for line in lines) + ("\n" if lines else "") + closing


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all. A text is written as UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _files(node: Any) -> list[str]:
    """The files that a table of contents names, from top to bottom."""
    if isinstance(node, list):
        return [name for item in node for name in _files(item)]
    if not isinstance(node, dict):
        return []
    own = [str(node[key]) for key in ("root", "file") if key in node]
    return own + [name for key in ("parts", "chapters", "sections") for name in _files(node.get(key))]
