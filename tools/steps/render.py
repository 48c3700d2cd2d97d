"""Step 5: the site, from the executed notebooks. Warnings are errors, and every reference is checked."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType

from ..project import Project

# Importing the renderer and the modules that draw tables takes seconds. The process therefore starts early, while the
# first kernels start. After the imports it finds out which pages to write, and waits before it reads the first page.
_RENDER = """
import sys
import jupyter_book.cli.main, jupyter_book.sphinx, myst_nb.sphinx_ext
%s
from tools.pages import cached_pages

cached_pages.ready = sys.stdin.readline
jupyter_book.cli.main.main(sys.argv[1:])
"""


_NOT_OURS = "ignore::FutureWarning:sphinx_external_toc.collectors"
"""sphinx_external_toc looks at every object in memory, and PyTorch warns about one of them.

No page causes this warning.
"""


class RenderFailed(RuntimeError):
    """The site could not be rendered. The message is the renderer's output."""


class Renderer:
    """Runs the ordinary command `jupyter-book build`, made strict, and starts it before its input is ready.

    Use it as a context manager: at the end of the block, it ends a renderer that was not needed.

    Args:
        project: the checkout.
    """

    def __init__(self, project: Project) -> None:
        # The modules that draw tables import PyTorch. A book whose chapters import no helpers does not need them.
        draws = any(b"helpers" in page.read_bytes() for page in (project.root / "chapters").glob("*.md"))
        # -W makes warnings errors, -n checks every reference, and --keep-going reports all warnings, not just one.
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

    def render(self) -> None:
        """Render the site into `_build/html`. The outputs of every page are kept by now, so nothing is executed.

        Raises:
            RenderFailed: if the renderer gives a warning or an error; with its output.
        """
        output, _ = self._process.communicate("go\n")
        if self._process.returncode:
            raise RenderFailed(output.strip())
