"""Runs work in separate environments, one after another. Each environment is removed when its work is done.

The results are kept in a folder of `_build` until all work is done. If you interrupt the command, run it again, and it
continues. nox and tox are not used: both keep every environment, which has gigabytes, and neither continues where it
stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..project import Problem, Project, digest, write

DISK = 9 * 2**30
"""The bytes that one environment needs while pip unpacks it. On Linux a wheel brings the libraries of CUDA."""

Row = dict[str, Any]
"""The result of a piece of work."""


class Failed(Exception):
    """The work can't be done. The message becomes the `error` of its result."""


class Isolated:
    """A folder with an environment, in which commands run with their output in a log.

    Args:
        name: the name of the work, for the lines that are printed.
        folder: the folder, which is removed when the work is done.
        log: the file of the log, which is kept if the work fails.
    """

    def __init__(self, name: str, folder: Path, log: Path) -> None:
        self.name, self.folder, self.log = name, folder, log
        self.python = folder / "environment" / "bin" / "python"

    def install(self, *packages: str) -> None:
        """Make the environment with these packages.

        Raises:
            Failed: if pip can't install them.
        """
        started = time.monotonic()
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", "--clear", str(self.python.parents[1])], [*pip, *packages]):
            if self.run(command, self.folder):
                raise Failed(next((line for line in reversed(self._said()) if line.startswith("ERROR")), "see the log"))
        self.say(f"installed, {time.monotonic() - started:.0f} s")

    def run(self, command: Sequence[str], folder: Path, **variables: str) -> int:
        """Run a command to its end, and return its exit status. It imports the library and helpers of the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        own = {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            return subprocess.run(command, cwd=folder, env={**os.environ, **own}, stdout=log, stderr=log).returncode

    def last_words(self) -> str:
        """The last line of the log."""
        return next((line for line in reversed(self._said()) if line.strip()), "the log is empty")

    def say(self, text: str) -> None:
        """Print a line about this work."""
        print(f"  {self.name:>8}  {text}", flush=True)

    def _said(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()


def files(project: Project, *under: str) -> list[str]:
    """The files of the checkout below some paths, sorted: files in git, and new files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *under]
    listed = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = {name: project.root / name for name in listed if name}
    return sorted(name for name, path in paths.items() if path.is_file() and not path.is_symlink())


def results(
    project: Project, command: str, works: Mapping[str, Callable[[Isolated], Row]], sources: Sequence[str]
) -> dict[str, Row]:
    """The result of each piece of work by its name. Results that an earlier run kept are not computed again.

    Args:
        project: the checkout.
        command: the name of the command, which keeps its results in this folder of `_build`.
        works: does the work in an environment, by name.
        sources: the paths of the code that runs. If the code has changed, everything is computed again.

    Raises:
        Problem: if the disk has no room for one environment.
    """
    room = project.build / command
    room.mkdir(parents=True, exist_ok=True)
    for abandoned in room.glob("*/"):  # left by a run that was killed
        shutil.rmtree(abandoned)
    free = shutil.disk_usage(room).free
    if free < DISK:
        raise Problem(
            f"{room} has {free / 2**30:.0f} GiB free, but an environment needs up to {DISK / 2**30:.0f} GiB; free "
            "some space"
        )
    source = digest(*(part for name in files(project, *sources) for part in (name, (project.root / name).read_bytes())))
    kept = {name: row for name in works if (row := _kept(room / f"{name}.json", source)) is not None}
    print(f"running {len(works) - len(kept)} of {len(works)}", flush=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM ends the running process too
    try:
        for name, work in works.items():
            if name not in kept:
                kept[name] = _performed(work, Isolated(name, room / f"of-{name}", room / f"{name}.log"))
                write(room / f"{name}.json", json.dumps({"source": source, "row": kept[name]}) + "\n")
    finally:
        signal.signal(signal.SIGTERM, before)
    return {name: kept[name] for name in works}


def _kept(file: Path, source: str) -> Row | None:
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found["row"] if found.get("source") == source else None


def _performed(work: Callable[[Isolated], Row], environment: Isolated) -> Row:
    environment.log.unlink(missing_ok=True)
    try:
        return work(environment)
    except Failed as error:
        environment.say(f"failed: {error}")
        return {"error": str(error)}
    finally:
        shutil.rmtree(environment.folder, ignore_errors=True)


def clean(project: Project, command: str, wrong: Sequence[str]) -> int:
    """Remove the folder of a command, and return 0.

    If some work is wrong, print its names, keep the folder with the logs and the other results, and return 1.
    """
    room = project.build / command
    if not wrong:
        shutil.rmtree(room)
        return 0
    for name in wrong:
        (room / f"{name}.json").unlink()
    print(
        f"failed: {', '.join(wrong)}. Their logs are in {room}. The same command runs only these again.",
        file=sys.stderr,
    )
    return 1
