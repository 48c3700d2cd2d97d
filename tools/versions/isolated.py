"""Work in environments of their own: each is removed when its work is done, and what the work gave is kept.

A command that does so keeps its results in a folder of `_build` until all are through: interrupted, the same command
goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ..project import Problem, Project, write

DISK = 9 * 2**30
"""Bytes that one environment takes while pip unpacks it: on Linux a wheel brings the libraries of CUDA."""


def files(project: Project, *under: str) -> list[str]:
    """The files that belong to the checkout, sorted: in git, or new and not ignored; all, or those under some paths."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *under],
        cwd=project.root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = {name: project.root / name for name in listed.stdout.split("\0") if name}
    return sorted(name for name, path in paths.items() if path.is_file() and not path.is_symlink())


class Isolated:
    """One piece of work, with a folder of its own for an environment.

    Args:
        project: the checkout.
        name: of the work; its result and its log are called by it.
        room: the folder of the command.
        source: a digest of what is run; results of another one are done again.
        folder: the name of the folder, which is removed when the work is done.
    """

    def __init__(self, project: Project, name: str, room: Path, source: str, folder: str) -> None:
        self.project = project
        self.name = name
        self.source = source
        self.folder = room / folder
        self.file = room / f"{name}.json"
        self.log = room / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._door = threading.Lock()
        self._stopped = False

    def is_good(self, row: dict[str, Any]) -> bool:
        """Whether a result is final. The same command does the others again."""
        return "error" not in row

    def done(self) -> bool:
        """Whether an earlier run of the same source gave a final result."""
        if not self.file.is_file():
            return False
        kept = json.loads(self.file.read_text(encoding="utf-8"))
        return kept["source"] == self.source and self.is_good(kept["row"])

    def row(self) -> dict[str, Any]:
        return dict(json.loads(self.file.read_text(encoding="utf-8"))["row"])

    def perform(self) -> None:
        """Do the work, keep what it gave, and remove the environment, whatever happens."""
        try:
            self.log.unlink(missing_ok=True)
            row = self._row()
            write(self.file, json.dumps({"source": self.source, "row": row}) + "\n")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self) -> None:
        """End what runs, and let nothing more start."""
        with self._door:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _row(self) -> dict[str, Any]:
        """What the work gives; with `error` when it can't be done."""
        raise NotImplementedError

    def _environment(self, python: Path, packages: Sequence[str]) -> str:
        """Make the environment of this Python with these packages; return what was wrong, or nothing."""
        started = time.monotonic()
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", "--clear", str(python.parents[1])], [*pip, *packages]):
            if self._run(command, self.folder):
                error = next((line for line in reversed(self._said()) if line.startswith("ERROR")), "see the log")
                self._say(f"pip can't install it: {error}")
                return error
        self._say(f"installed, {time.monotonic() - started:.0f} s")
        return ""

    def _run(self, command: list[str], folder: Path, **variables: str) -> int:
        """Run a command to its end, its words in the log; return its status."""
        folder.mkdir(parents=True, exist_ok=True)
        # The library and helpers of the copy, on one thread: several environments share the processors.
        own = {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            with self._door:
                if self._stopped:
                    raise KeyboardInterrupt
                self._process = subprocess.Popen(
                    command, cwd=folder, env={**os.environ, **own}, stdout=log, stderr=log, start_new_session=True
                )
            status = self._process.wait()
        if self._stopped:
            raise KeyboardInterrupt
        return status

    def _said(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def _last(self) -> str:
        return next((line for line in reversed(self._said()) if line.strip()), "the log is empty")

    def _say(self, text: str) -> None:
        print(f"  {self.name:>8}  {text}", flush=True)


def open_room(project: Project, command: str) -> Path:
    """The folder in which a command keeps its environments and their results.

    Raises:
        Problem: if the disk has no room for one environment.
    """
    room = project.build / command
    room.mkdir(parents=True, exist_ok=True)
    for abandoned in room.glob("*/"):  # of a run that was killed
        shutil.rmtree(abandoned)
    free = shutil.disk_usage(room).free
    if free < DISK:
        raise Problem(
            f"{room} has {free / 2**30:.0f} GiB free, but an environment needs up to {DISK / 2**30:.0f} GiB; free "
            "some space"
        )
    return room


def perform(todo: Sequence[Isolated], at_once: int = 1) -> None:
    """Do each piece of work, some at a time. Interrupted, leave nothing that runs."""
    pool = ThreadPoolExecutor(at_once)
    # What runs is in sessions of its own: ended like this, the command would leave it behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for future in as_completed([pool.submit(each.perform) for each in todo]):
            future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for each in todo:
            each.stop()
        raise
    finally:
        pool.shutdown(wait=True)
        signal.signal(signal.SIGTERM, before)
