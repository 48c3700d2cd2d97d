"""A small book to break: the real tools, helpers and configuration, with chapters that a test writes."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import psutil

from tools.__main__ import main
from tools.project import Project
from tools.steps.warm import Warmth

ROOT = Path(__file__).resolve().parents[1]

FRONT = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""


class Book:
    """A book in a folder of its own, driven from outside as a reader would drive it.

    Args:
        root: an empty or missing folder.
        chapters: the code cells of each chapter, by its name, in the order of the table of contents. The first
            chapter is the root page.
    """

    def __init__(self, root: Path, chapters: dict[str, list[str]]) -> None:
        self.root = root
        for folder in ("tools", "src", "theme"):
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "_config.yml", root)
        (root / "chapters").mkdir()
        for name, cells in chapters.items():
            # The search page leads to this place on the first page.
            text = f'{FRONT}\n# The page {name}\n\nWords of {name}.\n\n<a id="what-do-you-see"></a>\n'
            self.chapter(name).write_text(text, encoding="utf-8")
            self.append(name, *cells)
        self.contents(*chapters)

    @property
    def site(self) -> Path:
        return self.root / "_build" / "html"

    def chapter(self, name: str) -> Path:
        return self.root / "chapters" / f"{name}.md"

    def contents(self, first: str, *others: str) -> None:
        """Write the table of contents."""
        toc = f"format: jb-book\nroot: chapters/{first}\n"
        if others:
            toc += "chapters:\n" + "".join(f"  - file: chapters/{name}\n" for name in others)
        (self.root / "_toc.yml").write_text(toc, encoding="utf-8")

    def append(self, name: str, *cells: str) -> None:
        """Add code cells at the end of a chapter."""
        with self.chapter(name).open("a", encoding="utf-8") as file:
            for cell in cells:
                file.write(f"\n```{{code-cell}} ipython3\n{cell}\n```\n")

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text that must be there."""
        edit(self.root / path, old, new)

    def page(self, name: str) -> str:
        """A page of the site, as HTML."""
        return (self.site / Project(self.root).path(f"chapters/{name}")).read_text(encoding="utf-8")

    def git(self, *arguments: str) -> str:
        """What a git command prints in the folder of the book."""
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self) -> str:
        """Everything but what was built, in a new commit."""
        (self.root / ".gitignore").write_text("/_build/\n__pycache__/\n", encoding="utf-8")
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "HEAD")

    def here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `python -m tools` in this process, with this checkout's tools.

        It needs no second for imports, and its kernels are forks of one server, which has imported PyTorch once.
        """
        command, out, error = ["tools", *arguments], StringIO(), StringIO()
        before = set(threading.enumerate())  # a thread that another test left may wait for work for ever
        with ExitStack() as stack:
            for changed in (
                patch.dict(os.environ, self.environment),
                patch("sys.argv", command),
                patch("sys.path", [str(self.root / "src"), *sys.path]),  # that of the kernels too
                patch("tools.steps.run.Warmth", lambda several: Warmth(several=True)),
                chdir(self.root),
                redirect_stdout(out),
                redirect_stderr(error),
                warnings.catch_warnings(action="ignore"),  # of the event loops that nbclient leaves in its threads
            ):
                stack.enter_context(changed)
            status = main()
            for thread in set(threading.enumerate()) - before:
                if thread.name.startswith("ThreadPoolExecutor"):
                    thread.join(5)
            gc.collect()
        return subprocess.CompletedProcess(command, status, out.getvalue(), error.getvalue())

    def run(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `python -m tools` to its end."""
        return self._run(sys.executable, "-m", "tools", *arguments, timeout=timeout)

    def jupyter_book(self, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a plain `jupyter-book build .` to its end."""
        return self._run(str(Path(sys.executable).with_name("jupyter-book")), "build", ".", timeout=timeout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `python -m tools` in a process group of its own, as a terminal does."""
        return subprocess.Popen(
            [sys.executable, "-m", "tools", *arguments],
            cwd=self.root,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        # The helpers of this book, before those that are installed.
        return {**os.environ, "PYTHONPATH": str(self.root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

    def _run(self, *command: str, timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.root, env=self.environment, text=True, capture_output=True, timeout=timeout
        )


def edit(path: Path, old: str, new: str) -> None:
    """Replace text in a file; the text must be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def processes(root: Path) -> list[psutil.Process]:
    """All that runs in a folder, or was told of it when it started."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(root) in " ".join([process.cwd(), *process.cmdline()]):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            pass
    return found


def end(root: Path, build: subprocess.Popen[str]) -> None:
    """Leave nothing behind, whatever a test found out."""
    build.kill()
    for process in processes(root):
        process.kill()
    build.communicate(timeout=20)


def copied(root: Path, target: Path) -> Book:
    """A book in another folder, to be changed and built there; its site is left behind."""
    book = object.__new__(Book)
    book.root = target
    others = (".*", "__pycache__", "*.egg-info", "tests")
    shutil.copytree(root, target, ignore=shutil.ignore_patterns("_build", *others))
    if (root / "_build" / "executed").exists():
        shutil.copytree(root / "_build" / "executed", target / "_build" / "executed")
    if (root / "_build" / "notebooks.json").exists():  # without it, no build would overwrite a notebook
        (target / "_build").mkdir(exist_ok=True)
        shutil.copy(root / "_build" / "notebooks.json", target / "_build")
    return book
