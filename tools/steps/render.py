"""Step 5: the site, from the executed notebooks. Warnings are errors, and every reference is checked."""

from __future__ import annotations

import subprocess
import sys

from ..project import Project

_NOT_OURS = "ignore::FutureWarning:sphinx_external_toc.collectors"
"""sphinx_external_toc looks at every object in memory, and PyTorch warns about one of them.

No page causes this warning.
"""
# -W makes warnings errors, -n checks every reference, and --keep-going reports all warnings, not just one. A garbage
# collection finds nothing here, and all of them take a quarter of the time, because pages are many small objects.
_RENDER = """import gc; gc.disable()
from jupyter_book.cli.main import main; main(['build', '.', '-q', '-W', '-n', '--keep-going'])"""


class RenderFailed(RuntimeError):
    """The site could not be rendered. The message is the renderer's output."""


def render(project: Project) -> None:
    """Render the site into `_build/html`, by the ordinary command `jupyter-book build`, made strict.

    The outputs of every page are kept by now, so nothing is executed.

    Raises:
        RenderFailed: if the renderer gives a warning or an error; with its output.
    """
    command = [sys.executable, "-W", _NOT_OURS, "-c", _RENDER]
    done = subprocess.run(command, cwd=project.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RenderFailed(done.stdout.strip())
