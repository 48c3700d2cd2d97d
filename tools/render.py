"""Step 5: the site, from the executed notebooks. Warnings are errors, and every reference is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .project import Project


class RenderFailed(RuntimeError):
    """The site could not be rendered; the message is what the renderer said."""


def render(project: Project) -> None:
    """Render every page into `_build/html`.

    The same command that people know, `jupyter-book build`, made strict. Every notebook is in the cache by now, so
    nothing is executed.

    Raises:
        RenderFailed: on a warning or an error, with the renderer's own words.
    """
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [str(jupyter_book), "build", str(project.root), "-q", "-W", "-n", "--keep-going"]
    done = subprocess.run(command, cwd=project.root, text=True, capture_output=True)
    if done.returncode:
        raise RenderFailed((done.stderr + done.stdout).strip())
