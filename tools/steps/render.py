"""Step 5: the site, from the executed notebooks. Warnings are errors, and every reference is checked."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType

from ..project import Project

# Importing the renderer, and what draws tables, takes seconds, in which the first kernels start. It then finds out what
# is to be done, and waits before it reads the first page.
_RENDER = """
import sys
import jupyter_book.cli.main, jupyter_book.sphinx, myst_nb.sphinx_ext
%s
from tools.pages import cached_pages

cached_pages.ready = sys.stdin.readline
jupyter_book.cli.main.main(sys.argv[1:])
"""


_NOT_OURS = "ignore::FutureWarning:sphinx_external_toc.collectors"
"""A warning of PyTorch's that says nothing of a page: this module asks every object in memory for its type."""


class RenderFailed(RuntimeError):
    """The site could not be rendered; the message is what the renderer said."""


class Renderer:
    """The command that people know, `jupyter-book build`, made strict and started ahead of its turn.

    Use it as a context: on leaving, a renderer that was not needed goes away.

    Args:
        project: the checkout.
        builder: what to make of the pages, by the name that Sphinx has for it.
    """

    def __init__(self, project: Project, builder: str = "html") -> None:
        # What draws tables imports PyTorch: a book in which no chapter claims anything has none.
        draws = any(b"helpers" in page.read_bytes() for page in (project.root / "chapters").glob("*.md"))
        command = [
            sys.executable,
            "-W",
            _NOT_OURS,
            "-c",
            _RENDER % ("import helpers" if draws else ""),
            "build",
            str(project.root),
            "-q",
            "-W",
            "-n",
            "--keep-going",
            *(["--builder", "custom", "--custom-builder", builder] if builder != "html" else []),
        ]
        self._process = subprocess.Popen(
            command,
            cwd=project.root,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def render(self, everything: bool = False) -> None:
        """Render the site into `_build/html`. Every notebook is in the cache by now, so nothing is executed.

        Args:
            everything: write every page, also those whose file is newer than its sources.

        Raises:
            RenderFailed: on a warning or an error, with the renderer's own words.
        """
        output, _ = self._process.communicate("all\n" if everything else "go\n")
        if self._process.returncode:
            raise RenderFailed(output.strip())
